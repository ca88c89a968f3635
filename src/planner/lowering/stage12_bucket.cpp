// ZeRO-1 and ZeRO-2: gradients on their way into the bucket and out of it into grads_in_partition.
#include "planner/lowering/stage12_runtime.h"

#include <algorithm>
#include <utility>

namespace dsplan {

void Stage12Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  BufferId& held = held_[at(parameter)];
  accumulate(held, gradient);  // ZeRO-1 between boundaries: it waits here.
  const bool now = zero().stage == 2 || (boundary_ && zero().overlap_comm);
  if (now) put_in_bucket(static_cast<std::size_t>(trained_index_[at(parameter)]), std::exchange(held, kNoBuffer));
}

void Stage12Runtime::put_in_bucket(std::size_t parameter, BufferId gradient) {
  const std::int64_t elements = trained_[parameter].elements;
  const std::int64_t limit = zero().reduce_bucket_size.value();
  if (filled_ + elements > limit) {
    flush();
    if (zero().overlap_comm && zero().contiguous_gradients) active_ = 1 - active_;
  }
  if (elements > limit) {
    reduce_large(parameter, gradient);
    return;
  }
  if (!zero().contiguous_gradients) {
    entries_.push_back({parameter, filled_, gradient});
    filled_ += elements;
    return;
  }
  open_buckets();
  const BufferId bucket = buckets_[active_];
  emitter_.begin();
  emitter_.read(gradient);
  emitter_.write(bucket, in_model_dtype(filled_), in_model_dtype(elements));
  emitter_.compute("copy gradient to bucket");
  emitter_.release(gradient, Reason::GradientHeld);
  entries_.push_back({parameter, filled_, kNoBuffer});
  filled_ += elements;
}

// setup_buckets: at the first gradient of a backward, all of them, whatever the model's size.
void Stage12Runtime::open_buckets() {
  const std::size_t count = zero().overlap_comm ? 2 : 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (buckets_[i] != kNoBuffer) continue;
    buckets_[i] = emitter_.allocate(storage(zero().reduce_bucket_size, dtype()), dtype(), Role::RuntimeBuffers,
                                    "gradient bucket", kNone, true);
  }
}

// A gradient larger than the bucket is reduced from its own storage.
void Stage12Runtime::reduce_large(std::size_t parameter, BufferId gradient) {
  if (zero().contiguous_gradients) open_buckets();
  std::vector<Slice> slices;
  append_slices(parameter, 0, slices);
  reduce(gradient, trained_[parameter].elements, slices);
  keep(parameter, gradient, 0);
  emitter_.release(gradient, Reason::GradientHeld);
}

void Stage12Runtime::backward_ends(bool boundary) {
  if (zero().stage == 1) {
    if (!boundary) return;
    // Without overlap the gradients are walked in parameter order after backward (reduce_gradients).
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      BufferId& gradient = held_[at(trained_[i].id)];
      if (gradient != kNoBuffer) put_in_bucket(i, std::exchange(gradient, kNoBuffer));
    }
  }
  flush();
  for (BufferId& bucket : buckets_) {
    if (bucket != kNoBuffer) emitter_.release(std::exchange(bucket, kNoBuffer), Reason::RuntimeBucket);
  }
  add_to_accumulated();
}

void Stage12Runtime::flush() {
  if (entries_.empty()) return;
  const BufferId tensor = zero().contiguous_gradients ? buckets_[active_] : join_entries();
  std::vector<Slice> slices;
  for (const Entry& entry : entries_) append_slices(entry.parameter, entry.offset, slices);
  reduce(tensor, filled_, slices);
  for (const Entry& entry : entries_) {
    keep(entry.parameter, tensor, entry.offset);
  }
  if (!zero().contiguous_gradients) emitter_.release(tensor, Reason::RuntimeBucket);
  entries_.clear();
  filled_ = 0;
}

// contiguous_gradients off: the pending gradients themselves are concatenated when they are flushed.
BufferId Stage12Runtime::join_entries() {
  const BufferId joined = emitter_.allocate(in_model_dtype(filled_), dtype(), Role::RuntimeBuffers, "joined gradients");
  emitter_.begin();
  for (const Entry& entry : entries_) emitter_.read(entry.own);
  emitter_.write(joined);
  emitter_.compute("concatenate gradients");
  for (const Entry& entry : entries_) emitter_.release(entry.own, Reason::GradientHeld);
  return joined;
}

// Cuts [0, count) of a tensor whose element 0 is element `first` of parameter `parameter` by owner.
void Stage12Runtime::append_slices(std::size_t parameter, std::int64_t begin, std::vector<Slice>& slices) const {
  std::int64_t from = offset_[parameter];
  const std::int64_t end = from + trained_[parameter].elements;
  while (from < end) {
    const std::int64_t owner = from / partition_;
    const std::int64_t to = std::min(end, (owner + 1) * partition_);
    if (!slices.empty() && slices.back().owner == owner) {
      slices.back().count += to - from;  // Adjacent slices of one owner merge.
    } else {
      slices.push_back({owner, begin, to - from});
    }
    begin += to - from;
    from = to;
  }
}

// A parameter that touches this rank's partition leaves its whole gradient in grads_in_partition.
void Stage12Runtime::keep(std::size_t parameter, BufferId from, std::int64_t offset) {
  if (kept_offset_[parameter] < 0) return;
  if (kept_in_this_backward_ == kNoBuffer) {
    kept_in_this_backward_ =
        emitter_.allocate(in_model_dtype(kept_), dtype(), Role::Gradients, "gradients in partition");
    if (accumulated_ == kNoBuffer) accumulated_ = kept_in_this_backward_;
  }
  const Bytes bytes = in_model_dtype(trained_[parameter].elements);
  emitter_.begin();
  emitter_.read(from, in_model_dtype(offset), bytes);
  emitter_.write(kept_in_this_backward_, in_model_dtype(kept_offset_[parameter]), bytes);
  emitter_.compute("keep gradient in partition");
}

// ZeRO-2, later micro-batches: the second tensor is added into the first and freed.
void Stage12Runtime::add_to_accumulated() {
  if (kept_in_this_backward_ == kNoBuffer || kept_in_this_backward_ == accumulated_) return;
  emitter_.begin();
  emitter_.read(kept_in_this_backward_);
  emitter_.read(accumulated_);
  emitter_.write(accumulated_);
  emitter_.compute("add gradients in partition");
  emitter_.release(std::exchange(kept_in_this_backward_, kNoBuffer), Reason::LastUse);
}

}  // namespace dsplan
