#include "planner/lower/runtimes/stage12_buckets.h"

#include <utility>

namespace dsplan {

void IpgBuckets::setup_buckets() {
  if (!facts_.zero().contiguous_gradients) return;
  for (std::size_t i = 0; i < (facts_.zero().overlap_comm ? buckets_.size() : 1); ++i) {
    if (buckets_[i]) continue;
    buckets_[i] = eager_.empty(facts_.in_bucket(facts_.zero().reduce_bucket_size.value()), facts_.bucket_dtype,
                               {.role = Role::RuntimeBuffers,
                                .label = "gradient bucket",
                                .source = "zero/stage_1_and_2.py, setup_buckets",
                                .capacity = true});
    reduction_.tell_no_use(buckets_[i].id());
  }
}

void IpgBuckets::reduce_independent_p_g_buckets_and_remove_grads(std::size_t parameter, Variable gradient) {
  const Zero& zero = facts_.zero();
  const std::int64_t elements = facts_.layout.order[parameter].elements;
  const std::int64_t limit = zero.reduce_bucket_size.value();
  if (filled_ + elements > limit) {
    reduce_ipg_grads();
    if (zero.overlap_comm && zero.contiguous_gradients) active_ = 1 - active_;
  }
  if (!zero.contiguous_gradients) {
    entries_.push_back({parameter, filled_, std::move(gradient)});
  } else if (elements > limit) {
    extra_large_param_ = {parameter, partition_.storage_of_large(std::move(gradient))};
  } else {
    eager_.copy({buckets_[active_].id(), facts_.in_bucket(filled_), facts_.in_bucket(elements)}, gradient,
                "copy gradient to bucket");
    gradient.reset(Reason::GradientHeld);
    entries_.push_back({parameter, filled_, {}});
    points_into_[active_] |= !facts_.layout.is_mine(parameter);
  }
  filled_ += elements;
}

void IpgBuckets::reduce_ipg_grads() {
  if (extra_large_param_.second) {
    reduce_extra_large_param();
  } else if (!facts_.zero().contiguous_gradients) {
    if (!entries_.empty()) reduce_apart();
  } else if (!entries_.empty()) {
    const BufferId bucket = buckets_[active_].id();
    std::vector<GradientSlice> slices;
    for (const Entry& entry : entries_) append_slices(facts_, entry.parameter, entry.offset, slices);
    reduction_.average_tensor(bucket, filled_, slices);
    const OnStream stream(eager_.emitter(), facts_.reduce_stream());
    for (const Entry& entry : entries_) partition_.keep(entry.parameter, bucket, entry.offset);
  }
  entries_.clear();
  filled_ = 0;
}

// A gradient larger than the bucket is reduced from its own storage, when the next one finds the bucket full.
void IpgBuckets::reduce_extra_large_param() {
  const std::size_t parameter = extra_large_param_.first;
  Variable gradient = std::move(extra_large_param_.second);
  std::vector<GradientSlice> slices;
  append_slices(facts_, parameter, 0, slices);
  reduction_.tell_no_use(gradient.id());
  reduction_.average_tensor(gradient.id(), facts_.layout.order[parameter].elements, slices);
  const OnStream stream(eager_.emitter(), facts_.reduce_stream());
  partition_.keep(parameter, gradient.id(), 0);
  let_go(parameter, std::move(gradient));
}

// contiguous_gradients off. Gradients of this rank's parameters stay as they are.
void IpgBuckets::reduce_apart() {
  wait_for_reductions();
  std::vector<SeparateGradient> gradients;
  for (const Entry& entry : entries_) {
    gradients.push_back({entry.own.id(), entry.offset, facts_.layout.order[entry.parameter].elements,
                         facts_.layout.is_mine(entry.parameter)});
  }
  reduction_.buffered_reduce_fallback(gradients, filled_);
  for (Entry& entry : entries_) {
    if (facts_.layout.is_mine(entry.parameter)) {
      partition_.keep_apart(entry.parameter, std::move(entry.own));
    } else if (facts_.zero().stage == 2 && facts_.zero().overlap_comm) {
      previous_reduced_grads_.append(std::move(entry.own));
    } else {
      let_go(entry.parameter, std::move(entry.own));
    }
  }
}

// ZeRO-1 clears the gradients of other ranks' parameters only when all are reduced.
void IpgBuckets::let_go(std::size_t parameter, Variable gradient) {
  const bool waits = facts_.zero().stage == 1 && !facts_.layout.is_mine(parameter);
  if (waits || partition_.stays(parameter)) return late_.append(std::move(gradient));
  gradient.reset(Reason::GradientHeld);
}

void IpgBuckets::independent_gradient_partition_epilogue(bool boundary) {
  reduce_ipg_grads();
  wait_for_reductions();
  partition_.fill_missing();
  if (boundary) partition_.pad();
  close_buckets();
  partition_.add_up();
  if (!facts_.widens) drop_late();
  eager_.emitter().print("End ipg_epilogue");
}

// What is summed in fp32 is `grad_accum`, an attribute that lives until the step; where it points into a bucket, so
// does the bucket.
void IpgBuckets::close_buckets() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (!buckets_[i]) continue;
    if (facts_.widens && points_into_[i]) {
      late_.append(std::move(buckets_[i]));
    } else {
      buckets_[i].reset(Reason::RuntimeBucket);
    }
  }
  points_into_ = {};
}

// Only then gradients of other ranks' parameters go that never entered a bucket (_clear_previous_reduced_grads).
void IpgBuckets::wait_for_reductions() {
  reduction_.synchronize();
  previous_reduced_grads_.reset(Reason::GradientHeld);
}

}  // namespace dsplan
