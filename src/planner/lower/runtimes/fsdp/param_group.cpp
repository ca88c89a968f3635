#include "planner/lower/runtimes/fsdp/param_group.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

constexpr What kUnreduced{Role::Gradients, "unreduced gradient",
                          "_fully_shard/_fsdp_param.py, to_accumulated_grad_if_needed"};

// From here on post_forward does nothing within backward (_fsdp_param_group.py, is_bw).
constexpr Version kKnowsRecomputation{2, 10, 0};

}  // namespace

ParamGroup::ParamGroup(const FsdpGroup& group, GroupParts parts, Emitter& emitter)
    : group_(group),
      on_(parts),
      training_(parts.job.training),
      eager_(emitter),
      gather_(group, parts.job, parts.parameters, parts.context, emitter) {}

void ParamGroup::pre_forward() {
  state_ = State::Forward;
  gather_.unshard();
  gather_.wait_for_unshard(true);
  for (ParamGroup* group : in_forward_) group->gather_.unshard();
}

void ParamGroup::post_forward() {
  if (group_.reshards == 1) gather_.reshard();
  if (group_.reshards > 1) gather_.reshard_to_fewer();
  indices_.push_back(on_.context.post_forward_order.size());
  on_.context.post_forward_order.push_back(this);
  state_ = State::Idle;
}

// Within backward the outermost group that runs again is the root of its own forward (_root_pre_forward).
void ParamGroup::recompute() {
  if (state_ != State::Idle) return;
  if (on_.context.forward_root == nullptr) {
    on_.context.forward_root = this;
    eager_.emitter().wait_stream(kCopyInStream, kComputeStream);
    eager_.emitter().wait_stream(kGatherStream, kComputeStream);
  }
  pre_forward();
}

void ParamGroup::recomputed() {
  if (state_ != State::Forward) return;
  if (training_.torch < kKnowsRecomputation) {
    post_forward();
  } else {
    state_ = State::Idle;
  }
  if (on_.context.forward_root != this) return;
  on_.context.forward_root = nullptr;
  HeldByEvent& gathered = on_.context.gathered;
  if (!gathered.tensor) return;
  eager_.emitter().wait_event(kCopyInStream, gathered.event);
  eager_.emitter().wait_event(kGatherStream, gathered.event);
  gathered.tensor.reset(Reason::RuntimeBucket);
}

void ParamGroup::unshard_by_hand() {
  gather_.unshard(true);
  gather_.wait_for_unshard(false);
}

void ParamGroup::pre_backward() {
  if (state_ == State::PreBackward) return;
  state_ = State::PreBackward;
  gather_.unshard();  // Nothing where it was asked for ahead.
  gather_.wait_for_unshard(false);
  if (in_backward_.empty()) return prefetch_backward();
  for (ParamGroup* group : in_backward_) group->gather_.unshard();
}

void ParamGroup::prefetch_backward() {
  if (indices_.empty()) return;
  const std::size_t index = indices_.back();
  indices_.pop_back();
  if (index > 0) on_.context.post_forward_order[index - 1]->gather_.unshard();
}

// Without a reduction gradients stay whole: as they are, or summed in reduce_dtype where that is another one.
void ParamGroup::sum_unreduced() {
  const DType type = training_.communication_dtype;
  if (type == training_.dtype) return;  // None is given.
  for (const ParameterId id : group_.parameters) {
    if (!on_.gradients.holds(id) || on_.sums.holds(id)) continue;
    const Variable gradient = on_.gradients.take(id);
    // It may lie in a larger tensor, of which AccumulateGrad took a part.
    const Bytes own = storage(on_.parameters.parameter(id).shape.elements(), eager_.emitter().dtype(gradient.id()));
    Variable sum = eager_.cast(Part(gradient.id(), Bytes(0), own), type, kUnreduced, "unreduced gradient", id);
    on_.sums.accumulate(id, sum.hand_over());
  }
}

void ParamGroup::post_backward(bool reduces) {
  state_ = State::PostBackward;
  for (const ParameterId id : group_.parameters) {
    if (on_.sums.holds(id) && on_.gradients.holds(id)) on_.sums.accumulate(id, on_.gradients.take(id).hand_over());
  }
  if (!reduces) {
    gather_.reshard();
    return sum_unreduced();
  }
  ShardGradients::Unsharded gradients;
  for (const ParameterId id : group_.parameters) {
    SeparateGradients& from = on_.sums.holds(id) ? on_.sums : on_.gradients;
    if (from.holds(id)) gradients.emplace_back(id, from.take(id));
  }
  gather_.reshard();
  if (gradients.empty()) return;
  wait_for_post_backward();
  pending_ = on_.reducer.reduce(std::move(gradients));
  if (training_.fsdp.cpu_offload) offloaded_ = pending_.event;
}

void ParamGroup::wait_for_post_backward() {
  eager_.emitter().wait_event(kComputeStream, std::exchange(pending_.event, std::nullopt));
  pending_.tensor.reset(Reason::RuntimeBucket);
}

void ParamGroup::finalize_backward() {
  state_ = State::Idle;
  wait_for_post_backward();
  eager_.emitter().wait_event(kHostSync, std::exchange(offloaded_, std::nullopt));
  gather_.forget();
  indices_.clear();
}

}  // namespace dsplan
