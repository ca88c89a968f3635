// ZeRO-1 and ZeRO-2: gradients on their way into the bucket and out of it into grads_in_partition.
#include "planner/lower/stage12_runtime.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dsplan {

void Stage12Runtime::backward_begins(bool boundary) {
  boundary_ = boundary;
  if (zero().stage == 2) kept_in_this_backward_ = kNoBuffer;
  // backward_prologue, before 0.18.3: on top of all activations; since then at the first gradient (setup_buckets).
  if (training().deepspeed < Version{0, 18, 3} && !trained_.empty()) open_buckets();
}

void Stage12Runtime::gradient_ready(ParameterId parameter, BufferId gradient) {
  open_buckets();
  BufferId& held = held_[at(parameter)];
  if (widens_) {
    widen(static_cast<std::size_t>(trained_index_[at(parameter)]), gradient);
  } else {
    accumulate(held, gradient);  // ZeRO-1 between boundaries: it waits here.
  }
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
  if (!zero().contiguous_gradients) {
    entries_.push_back({parameter, filled_, gradient});
    filled_ += elements;
    return;
  }
  if (elements > limit) {
    large_ = {parameter, own_storage(parameter, gradient)};
    filled_ += elements;
    return;
  }
  const BufferId bucket = buckets_[active_];
  emitter_.begin();
  emitter_.read(gradient);
  emitter_.write(bucket, staged(filled_), staged(elements));
  emitter_.compute("copy gradient to bucket");
  emitter_.release(gradient, Reason::GradientHeld);
  entries_.push_back({parameter, filled_, kNoBuffer});
  filled_ += elements;
  points_into_[active_] |= kept_offset_[parameter] < 0;
}

// setup_buckets: at the first gradient of a backward, all of them, whatever the model's size; ZeRO-1 keeps them from
// the first micro-batch's to the boundary. The second one of overlap_comm is made even where gradients are not copied
// together.
void Stage12Runtime::open_buckets() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const bool wanted = i == 0 ? zero().contiguous_gradients : zero().overlap_comm;
    if (!wanted || buckets_[i] != kNoBuffer) continue;
    buckets_[i] = emitter_.allocate(staged(zero().reduce_bucket_size.value()), staged_, Role::RuntimeBuffers,
                                    "gradient bucket", kNone, true);
  }
}

// A gradient larger than the bucket is reduced from its own storage, when the next one finds the bucket full
// (extra_large_param_to_reduce).
void Stage12Runtime::reduce_large() {
  const auto [parameter, gradient] = std::exchange(large_, {0, kNoBuffer});
  std::vector<Slice> slices;
  append_slices(parameter, 0, slices);
  reduce(gradient, trained_[parameter].elements, slices);
  const OnStream stream(emitter_, reduce_stream());
  keep(parameter, gradient, 0);
  let_go(parameter, gradient);
}

// ZeRO-1 clears the gradients of other ranks' parameters only when all are reduced.
void Stage12Runtime::let_go(std::size_t parameter, BufferId gradient) {
  if (zero().stage == 1 && kept_offset_[parameter] < 0) {
    late_.push_back(gradient);
  } else {
    emitter_.release(gradient, Reason::GradientHeld);
  }
}

void Stage12Runtime::backward_ends(bool boundary) {
  if (zero().stage == 1) {
    if (!boundary) return;
    // Without overlap the gradients are walked in parameter order after backward (reduce_gradients).
    std::vector<std::size_t> order(trained_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return trained_[a].id < trained_[b].id; });
    for (std::size_t i : order) {
      BufferId& gradient = held_[at(trained_[i].id)];
      if (gradient != kNoBuffer) put_in_bucket(i, std::exchange(gradient, kNoBuffer));
    }
  }
  flush();
  wait_for_reductions();
  if (boundary) pad_partition();
  close_buckets();
  add_to_accumulated();
  if (!widens_) drop_late();
  print("End ipg_epilogue");
}

// What is summed in fp32 is `grad_accum`, an attribute that lives until the step; where it points into a bucket, so
// does the bucket.
void Stage12Runtime::close_buckets() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const BufferId bucket = std::exchange(buckets_[i], kNoBuffer);
    if (bucket == kNoBuffer) continue;
    if (widens_ && points_into_[i]) {
      late_.push_back(bucket);
    } else {
      emitter_.release(bucket, Reason::RuntimeBucket);
    }
  }
  points_into_ = {};
}

void Stage12Runtime::drop_late() {
  for (BufferId buffer : late_) emitter_.release(buffer, Reason::GradientHeld);
  late_.clear();
}

void Stage12Runtime::pad_partition() {
  if (sums_partition_) {
    if (partition_ > 0) open_sums();
  } else if (padding() > 0) {
    const DType type = training().grad_accum_dtype;
    padding_ = emitter_.allocate(storage(Elements(padding()), type), type, Role::Gradients, "padding of the partition");
    emitter_.begin();
    emitter_.write(padding_);
    emitter_.compute("zero padding");
  }
}

void Stage12Runtime::flush() {
  if (large_.second != kNoBuffer) {
    reduce_large();
    filled_ = 0;
    return;
  }
  if (entries_.empty()) return;
  if (!zero().contiguous_gradients) {
    reduce_apart();
  } else {
    const BufferId tensor = buckets_[active_];
    std::vector<Slice> slices;
    for (const Entry& entry : entries_) append_slices(entry.parameter, entry.offset, slices);
    reduce(tensor, filled_, slices);
    const OnStream stream(emitter_, reduce_stream());
    for (const Entry& entry : entries_) keep(entry.parameter, tensor, entry.offset);
  }
  entries_.clear();
  filled_ = 0;
}

// Cuts [0, count) of a tensor whose element 0 is element `first` of parameter `parameter` by owner.
void Stage12Runtime::append_slices(std::size_t parameter, std::int64_t begin, std::vector<Slice>& slices) const {
  std::int64_t from = offset_[parameter];
  const std::int64_t end = from + trained_[parameter].elements;
  while (from < end) {
    const std::int64_t owner = from / partition_;
    const std::int64_t to = std::min(end, (owner + 1) * partition_);
    // Adjacent slices of one owner merge, unless each of them is added to its place in the partition.
    const bool apart = sums_partition_ && owner == rank();
    if (!slices.empty() && slices.back().owner == owner && !apart) {
      slices.back().count += to - from;
    } else {
      slices.push_back({owner, begin, to - from, from - owner * partition_});
    }
    begin += to - from;
    from = to;
  }
}

// A parameter that touches this rank's partition leaves its whole gradient in grads_in_partition.
void Stage12Runtime::keep(std::size_t parameter, BufferId from, std::int64_t offset) {
  if (kept_offset_[parameter] < 0 || sums_partition_) return;
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

void Stage12Runtime::add_to_own(BufferId& own, BufferId gradient) {
  if (own == kNoBuffer) {
    own = gradient;
    return;
  }
  emitter_.begin();
  emitter_.read(own);
  emitter_.read(gradient);
  emitter_.write(own);
  emitter_.compute("add gradients in partition");
  emitter_.release(gradient, Reason::LastUse);
}

// ZeRO-2, later micro-batches: the second tensor is added into the first and freed.
void Stage12Runtime::add_to_accumulated() {
  for (const auto& [parameter, gradient] : arrived_) add_to_own(own_[parameter], gradient);
  arrived_.clear();
  if (kept_in_this_backward_ == kNoBuffer || kept_in_this_backward_ == accumulated_) return;
  emitter_.begin();
  emitter_.read(kept_in_this_backward_);
  emitter_.read(accumulated_);
  emitter_.write(accumulated_);
  emitter_.compute("add gradients in partition");
  emitter_.release(std::exchange(kept_in_this_backward_, kNoBuffer), Reason::LastUse);
}

}  // namespace dsplan
