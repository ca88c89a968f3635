// ZeRO-1 and ZeRO-2: overflow scan, norm, the update of the own partition and the gather of all.
#include "planner/lowering/stage12_runtime.h"

namespace dsplan {

void Stage12Runtime::step(bool first) {
  if (trained_.empty()) return;
  measure_gradients();
  const BufferId gradient = own_gradient();
  if (first) create_flat_state(partition_, state_);
  emitter_.begin();
  emitter_.read(master_);
  emitter_.read(gradient);
  read_all(state_);
  emitter_.write(master_);
  write_all(state_);
  emitter_.compute("optimizer update");
  const Bytes begin = in_model_dtype(checked_mul(rank(), partition_));
  const Bytes size = in_model_dtype(partition_);
  emitter_.begin();
  emitter_.read(master_);
  emitter_.write(flat_, begin, size);
  emitter_.compute("copy master to parameters");
  emitter_.release(gradient, Reason::GradientHeld);
  if (world() == 1) return;
  emitter_.begin();
  emitter_.read(flat_, begin, size);
  emitter_.write(flat_);
  emitter_.communicate(Collective::AllGather, dtype(), in_model_dtype(padded_));
}

// Overflow scan (fp16; bf16 where check_grad_overflow) and norm, each over one fragment at a time; what stands here
// is the turn of the largest one. The scan makes an fp32 copy, two masks, their union and its fp32 form.
void Stage12Runtime::measure_gradients() {
  if (dtype() == DType::Float16 || (dtype() == DType::BFloat16 && training().check_grad_overflow)) {
    const std::int64_t per_element = dtype() == DType::Float32 ? 7 : 11;
    scratch(Bytes(checked_mul(largest_fragment_, per_element)), DType::UInt8, "overflow scan");
    control_all_reduce(Bytes(1), "overflow flag");
  }
  scratch(storage(Elements(largest_fragment_), DType::Float64), DType::Float64, "gradient norm");
  control_all_reduce(Bytes(4), "gradient norm");
}

void Stage12Runtime::scratch(Bytes bytes, DType type, Label label) {
  if (bytes == Bytes(0)) return;
  const BufferId buffer = emitter_.allocate(bytes, type, Role::Temporaries, label);
  emitter_.mark_scratch(buffer);
  emitter_.begin();
  if (accumulated_ != kNoBuffer) emitter_.read(accumulated_);
  emitter_.write(buffer);
  emitter_.compute(label);
  emitter_.release(buffer, Reason::LastUse);
}

// This rank's gradient in master dtype: flattened with padding unless it is one whole tensor, then cast.
BufferId Stage12Runtime::own_gradient() {
  BufferId gradient = accumulated_;
  accumulated_ = kNoBuffer;
  kept_in_this_backward_ = kNoBuffer;
  const bool is_view = fragments_ == 1 && largest_fragment_ == partition_ && kept_ == partition_;
  if (!is_view || gradient == kNoBuffer) {
    const BufferId flat = emitter_.allocate(in_model_dtype(partition_), dtype(), Role::Temporaries, "flat gradient");
    emitter_.begin();
    if (gradient != kNoBuffer) emitter_.read(gradient);
    emitter_.write(flat);
    emitter_.compute("flatten gradient");
    if (training().master_dtype == dtype()) {
      if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
      return flat;
    }
    const BufferId cast = cast_to_master(flat);
    emitter_.release(flat, Reason::LastUse);
    if (gradient != kNoBuffer) emitter_.release(gradient, Reason::GradientHeld);
    return cast;
  }
  if (training().master_dtype == dtype()) return gradient;
  const BufferId cast = cast_to_master(gradient);
  emitter_.release(gradient, Reason::LastUse);
  return cast;
}

BufferId Stage12Runtime::cast_to_master(BufferId flat) {
  const BufferId cast = emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Temporaries,
                                          "gradient in master dtype");
  emitter_.begin();
  emitter_.read(flat);
  emitter_.write(cast);
  emitter_.compute("cast gradient");
  return cast;
}

}  // namespace dsplan
