// What one call of fully_shard gathers, lets go of and reduces together: FSDPParamGroup with its hooks
// (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py). Parameters are gathered on streams of their own, one
// group ahead: in forward because the host runs ahead, in backward because the group before is asked for by then.
#pragma once

#include <utility>
#include <vector>

#include "planner/lower/runtimes/fsdp/gradient_reducer.h"
#include "planner/lower/runtimes/fsdp/group_gather.h"
#include "planner/lower/runtimes/separate_gradients.h"

namespace dsplan {

// What the groups of a model work with.
struct GroupParts {
  const Job& job;
  ShardedParameters& parameters;
  SeparateGradients& gradients;  // `.grad` of whole parameters.
  SeparateGradients& sums;       // unsharded_accumulated_grad: the same in reduce_dtype, without a reduction.
  ShardGradients& reducer;
  CommContext& context;
};

class ParamGroup {
 public:
  ParamGroup(const FsdpGroup& group, GroupParts parts, Emitter& emitter);

  [[nodiscard]] const FsdpGroup& facts() const { return group_; }

  // set_modules_to_forward_prefetch and _backward_prefetch.
  void gather_ahead(std::vector<ParamGroup*> in_forward, std::vector<ParamGroup*> in_backward) {
    in_forward_ = std::move(in_forward);
    in_backward_ = std::move(in_backward);
  }

  void pre_forward();
  void post_forward();
  // A reentrant checkpoint's function ran without a graph, so that no hook of its output has gathered the group: its
  // forward hooks run again. So do those of a group within any checkpoint. Nothing where backward has begun.
  void recompute();
  void recomputed();
  // FSDPModule.unshard, as axolotl's functions call it for factors whose modules they do not call. They stay so until
  // backward is over.
  void unshard_by_hand();
  void pre_backward();
  // `reduces`: set_requires_gradient_sync.
  void post_backward(bool reduces);
  [[nodiscard]] bool had_post_backward() const { return state_ == State::PostBackward; }
  void finalize_backward();

 private:
  enum class State : std::uint8_t { Idle, Forward, PreBackward, PostBackward };

  void wait_for_post_backward();
  void prefetch_backward();
  void sum_unreduced();

  const FsdpGroup& group_;
  GroupParts on_;
  const Training& training_;
  Eager eager_;
  State state_ = State::Idle;
  std::vector<std::size_t> indices_;  // In the post-forward order.
  ShardGradients::Pending pending_;
  std::optional<ContentId> offloaded_;  // grad_offload_event.
  GroupGather gather_;
  std::vector<ParamGroup*> in_forward_;   // Gathered as this one's forward begins,
  std::vector<ParamGroup*> in_backward_;  // and its backward: instead of the one before it.
};

}  // namespace dsplan
