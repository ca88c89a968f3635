// The gathers of one group of fully_shard: what is launched, copied out, let go of again
// (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_all_gather; _fsdp_param_group.py, unshard,
// reshard).
#pragma once

#include <optional>
#include <vector>

#include "planner/lower/runtimes/fsdp/comm_context.h"
#include "planner/lower/runtimes/fsdp/sharded_parameters.h"

namespace dsplan {

class GroupGather {
 public:
  GroupGather(const FsdpGroup& group, const Job& job, ShardedParameters& parameters, CommContext& context,
              Emitter& emitter);

  // `by_hand`: outside of its own forward and backward, where nothing is gathered on streams of its own
  // (get_all_gather_streams).
  void unshard(bool by_hand = false);
  // `forward`: what was gathered stays until the next group's has been copied out.
  void wait_for_unshard(bool forward);
  void reshard();
  void reshard_to_fewer();
  // What was asked for and not needed goes.
  void forget();

 private:
  [[nodiscard]] ShardRanks ranks() const;
  [[nodiscard]] Bytes sent() const;
  [[nodiscard]] DType gathered_type() const;
  [[nodiscard]] std::vector<Part> cast_shards(Variable& into) const;
  [[nodiscard]] std::vector<Part> shards_from_host(std::vector<Variable>& there) const;
  void copy_out();
  void let_gathers_wait(std::optional<ContentId> event);

  const FsdpGroup& group_;
  const Job& job_;
  ShardedParameters& parameters_;
  CommContext& context_;
  Eager eager_;
  bool unsharded_ = false;
  HeldByEvent gathered_;                // all_gather_result: launched, and not copied out yet.
  std::vector<Variable> of_fewer_;      // Shards among fewer ranks, after forward; by parameter of the group.
  std::optional<ContentId> resharded_;  // Behind their copies.
};

}  // namespace dsplan
