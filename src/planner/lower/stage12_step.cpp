// ZeRO-1 and ZeRO-2: overflow scan, norm, the update of the own partition and the gather of all.
#include "planner/lower/stage12_runtime.h"

#include <algorithm>

namespace dsplan {

void Stage12Runtime::step(bool first) {
  if (trained_.empty()) return;
  print("In step before checking overflow");
  scan_for_overflow();
  print("Before norm calculation");
  measure_gradients();
  hold_norms(DType::Float32, 0);
  print("After norm before optimizer");
  drop_late();
  const BufferId gradient = own_gradient();
  if (first) create_flat_state(partition_, state_);
  emitter_.begin();
  emitter_.read(master_);
  emitter_.read(gradient);
  read_all(state_);
  emitter_.write(master_);
  write_all(state_);
  record_update(gradient);
  emitter_.states_of_update(state_.size());
  emitter_.compute("optimizer update");
  emitter_.release(gradient, Reason::LastUse);
  const Bytes begin = in_model_dtype(checked_mul(rank(), partition_));
  const Bytes size = in_model_dtype(partition_);
  emitter_.begin();
  emitter_.read(master_);
  emitter_.write(flat_, begin, size);
  emitter_.compute("copy master to parameters");
  print("After optimizer before all-gather");
  gather_parameters();
  print("After zero_optimizer step");
  let_go_of_norms();
}

// In place: each rank's partition lies where the whole will have it.
void Stage12Runtime::gather_parameters() {
  if (world() == 1) return;
  emitter_.begin();
  emitter_.read(flat_, in_model_dtype(checked_mul(rank(), partition_)), in_model_dtype(partition_));
  emitter_.write(flat_);
  emitter_.communicate(Collective::AllGather, dtype(), in_model_dtype(padded_));
}

// fp16, and bf16 where check_grad_overflow.
bool Stage12Runtime::scans() const {
  return dtype() == DType::Float16 || (dtype() == DType::BFloat16 && training().check_grad_overflow);
}

// Since 0.19.8 it looks at the largest and the smallest value
// (runtime/utils.py, has_inf_or_nan); before, each fragment in turn had an fp32 copy, two masks, their union and its
// fp32 form, and what stands here is the turn of the largest one.
void Stage12Runtime::scan_for_overflow() {
  if (!scans()) return;
  if (training().deepspeed < kScanWithoutCopies && !fragments_.empty()) {
    const std::int64_t largest = *std::max_element(fragments_.begin(), fragments_.end());
    scratch(Bytes(checked_mul(largest, bytes_per_element(kept_dtype()) == 4 ? 7 : 11)), DType::UInt8, "overflow scan",
            fragments_.size());
  }
  Squares looked_at;
  if (emitter_.recording() != nullptr) looked_at.of = fragments_of(sources());
  control_all_reduce(Bytes(1), "overflow flag", looked_at);
}

// get_grad_norm_direct: each fragment in turn, padding left out.
void Stage12Runtime::measure_gradients() {
  for (std::size_t at = 0; at < fragments_.size(); ++at) {
    scratch(storage(Elements(fragments_[at]), DType::Float64), DType::Float64, "gradient in fp64", at);
  }
  control_all_reduce(Bytes(4), "gradient norm");
}

// `fragment`: the one that is measured; their number: none.
void Stage12Runtime::scratch(Bytes bytes, DType type, Label label, std::size_t fragment) {
  if (bytes == Bytes(0)) return;
  const BufferId buffer = emitter_.allocate(bytes, type, Role::Temporaries, label);
  emitter_.mark_scratch(buffer);
  emitter_.begin();
  if (accumulated_ != kNoBuffer) emitter_.read(accumulated_);
  emitter_.write(buffer);
  if (Recording* recording = emitter_.recording(); recording != nullptr && fragment < fragments_.size()) {
    const std::vector<ByteRange> ranges = fragments_of(sources());
    const bool counts = fragment < ranges.size() && counts_in_norm(parameter_of(fragment));
    recording->reads(counts ? std::vector<ByteRange>{ranges[fragment]} : std::vector<ByteRange>{});
  }
  emitter_.compute(label);
  emitter_.release(buffer, Reason::LastUse);
}

// This rank's gradient in master dtype: sums are taken as they are; fragments and padding are flattened, which for a
// single one is a view, and then cast.
BufferId Stage12Runtime::own_gradient() {
  std::vector<BufferId> parts;
  for (BufferId part : {std::exchange(accumulated_, kNoBuffer), std::exchange(padding_, kNoBuffer)}) {
    if (part != kNoBuffer) parts.push_back(part);
  }
  for (BufferId& own : own_) {
    if (own != kNoBuffer) parts.push_back(std::exchange(own, kNoBuffer));
  }
  kept_in_this_backward_ = kNoBuffer;
  const bool view = sums_partition_ || fragments_.size() + (padding() > 0 ? 1U : 0U) == 1;
  if (parts.empty()) parts.push_back(flatten({}));  // No gradient arrived: zeros.
  BufferId flat = view ? parts.front() : flatten(parts);
  if (training().master_dtype != emitter_.dtype(flat)) {
    const BufferId wide = cast_to_master(flat);
    if (flat != parts.front()) emitter_.release(flat, Reason::LastUse);
    flat = wide;
  }
  for (BufferId part : parts) {
    if (part != flat) emitter_.release(part, Reason::GradientHeld);
  }
  return flat;
}

std::vector<BufferId> Stage12Runtime::sources() const {
  std::vector<BufferId> parts;
  if (accumulated_ != kNoBuffer) parts.push_back(accumulated_);
  for (BufferId own : own_) {
    if (own != kNoBuffer) parts.push_back(own);
  }
  return parts;
}

// That of the fragment of this number.
ParameterId Stage12Runtime::parameter_of(std::size_t fragment) const {
  std::size_t next = 0;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (kept_offset_[i] >= 0 && next++ == fragment) return trained_[i].id;
  }
  return kNone;
}

// Sums lie as the partition does, then its padding; grads_in_partition and gradients apart hold whole parameters.
std::vector<ByteRange> Stage12Runtime::fragments_of(const std::vector<BufferId>& parts) const {
  std::vector<ByteRange> ranges;
  if (parts.empty()) return ranges;
  const std::int64_t first = checked_mul(rank(), partition_);
  const DType type = kept_dtype();
  std::int64_t filled = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    if (kept_offset_[i] < 0) continue;
    const std::int64_t skipped = std::max<std::int64_t>(0, first - offset_[i]);
    const std::int64_t count = fragments_[next++];
    const bool apart = !zero().contiguous_gradients;
    const std::int64_t begin = sums_partition_ ? filled : apart ? skipped : kept_offset_[i] + skipped;
    // Those of parameters apart come last.
    const std::size_t part = apart ? parts.size() - std::min(parts.size(), fragments_.size()) + next - 1 : 0;
    if (part < parts.size())
      ranges.push_back({parts[part], storage(Elements(begin), type), storage(Elements(count), type)});
    filled += count;
  }
  return ranges;
}

// The gradient in the size of the partition: grads_in_partition itself may be larger.
void Stage12Runtime::record_update(BufferId gradient) {
  Recording* recording = emitter_.recording();
  if (recording == nullptr || emitter_.size(gradient) == in_master_dtype(partition_)) return;
  std::vector<ByteRange> reads{{master_, Bytes(0), emitter_.size(master_)}};
  for (const ByteRange& range : fragments_of({gradient})) reads.push_back(range);
  for (BufferId state : state_) reads.push_back({state, Bytes(0), emitter_.size(state)});
  recording->reads(std::move(reads));
}

// Padding in fp32 makes fp32 of all that it is joined to (torch.cat).
BufferId Stage12Runtime::flatten(const std::vector<BufferId>& parts) {
  const bool wide =
      std::any_of(parts.begin(), parts.end(), [this](BufferId part) { return emitter_.dtype(part) == DType::Float32; });
  const DType type = wide ? DType::Float32 : dtype();
  const BufferId flat =
      emitter_.allocate(storage(Elements(partition_), type), type, Role::Temporaries, "flat gradient");
  emitter_.begin();
  for (BufferId part : parts) emitter_.read(part);
  emitter_.write(flat);
  if (emitter_.recording() != nullptr) emitter_.recording()->reads(fragments_of(parts));
  emitter_.compute("flatten gradient");
  return flat;
}

BufferId Stage12Runtime::cast_to_master(BufferId flat) {
  const BufferId cast = emitter_.allocate(in_master_dtype(partition_), training().master_dtype, Role::Temporaries,
                                          "gradient in master dtype");
  emitter_.begin();
  emitter_.read(flat);
  emitter_.write(cast);
  if (emitter_.recording() != nullptr && emitter_.size(flat) != in_model_dtype(partition_)) {
    emitter_.recording()->reads(fragments_of({flat}));
  }
  emitter_.compute("cast gradient");
  return cast;
}

}  // namespace dsplan
