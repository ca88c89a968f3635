// ZeRO-1 and ZeRO-2 with sums in fp32 beside a 16-bit model: since 0.19.8 one flat buffer of the own partition
// (stage_1_and_2.py, _build_compact_grad_partition_buffer), to which every reduction adds.
#include "planner/lower/stage12_runtime.h"

namespace dsplan {

void Stage12Runtime::open_sums() {
  if (accumulated_ != kNoBuffer) return;
  const DType type = training().grad_accum_dtype;
  accumulated_ = emitter_.allocate(storage(Elements(partition_), type), type, Role::Gradients, "gradient partition");
  emitter_.begin();
  emitter_.write(accumulated_);
  emitter_.compute("zero gradient partition");
}

// `begin`: the slice's first element in `from`.
void Stage12Runtime::add_to_sums(BufferId from, DType type, std::int64_t begin, const Slice& slice) {
  const DType wide = training().grad_accum_dtype;
  const Bytes target = storage(Elements(slice.target), wide);
  const Bytes bytes = storage(Elements(slice.count), wide);
  BufferId cast = kNoBuffer;
  if (type != wide) {
    cast = emitter_.allocate(bytes, wide, Role::RuntimeBuffers, "reduced gradient in accumulation dtype");
    emitter_.begin();
    emitter_.read(from, storage(Elements(begin), type), storage(Elements(slice.count), type));
    emitter_.write(cast);
    emitter_.compute("cast reduced gradient");
  }
  emitter_.begin();
  if (cast != kNoBuffer) {
    emitter_.read(cast);
  } else {
    emitter_.read(from, storage(Elements(begin), type), bytes);
  }
  emitter_.read(accumulated_, target, bytes);
  emitter_.write(accumulated_, target, bytes);
  emitter_.compute("add to gradient partition");
  if (cast != kNoBuffer) emitter_.release(cast, Reason::LastUse);
}

// ZeRO-1 (_fill_param_grad_accum_attribute): param.grad_accum, cast or added to when the gradient is ready.
void Stage12Runtime::widen(std::size_t parameter, BufferId gradient) {
  const DType wide = training().grad_accum_dtype;
  const BufferId cast = emitter_.allocate(storage(Elements(trained_[parameter].elements), wide), wide, Role::Gradients,
                                          "gradient in accumulation dtype");
  emitter_.begin();
  emitter_.read(gradient);
  emitter_.write(cast);
  emitter_.compute("cast gradient");
  emitter_.release(gradient, Reason::LastUse);
  accumulate(held_[at(trained_[parameter].id)], cast);
}

}  // namespace dsplan
