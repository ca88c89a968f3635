// Gradients of a group on their way from autograd to the shards' `.grad`: foreach_reduce
// (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "planner/lower/runtimes/fsdp/comm_context.h"
#include "planner/lower/runtimes/fsdp/sharded_parameters.h"

namespace dsplan {

class ShardGradients {
 public:
  ShardGradients(const Job& job, const ModelSpec& model, const ShardedParameters& parameters, CommContext& context,
                 Emitter& emitter);

  using Unsharded = std::vector<std::pair<ParameterId, Variable>>;  // In the group's order.
  // What a reduction leaves until it is waited for (post_reduce_event, all_reduce_state).
  using Pending = HeldByEvent;
  [[nodiscard]] Pending reduce(Unsharded gradients);

  // `.grad` of a shard; no buffer: None.
  [[nodiscard]] Part of(ParameterId id) const;
  void drop(ParameterId id) { held_[static_cast<std::size_t>(id)].storage.reset(); }
  // The same where somebody else holds it still.
  [[nodiscard]] Variable take(ParameterId id) { return std::move(held_[static_cast<std::size_t>(id)].storage); }

 private:
  struct Held {
    Variable storage;  // Of all of its group's.
    Bytes offset;
  };

  [[nodiscard]] Variable copy_in(Unsharded& gradients);
  [[nodiscard]] std::vector<ByteRange> interleaved(const Unsharded& gradients) const;
  void take(const Unsharded& gradients, Variable sums);
  void take_to_host(ParameterId id, const Part& sums);
  [[nodiscard]] Elements padded(const Unsharded& gradients) const;
  // reduce_dtype where one is given, else the gradients' own.
  [[nodiscard]] DType reduced(const Unsharded& gradients) const;

  const Training& training_;
  const ModelSpec& model_;
  const ShardedParameters& parameters_;
  CommContext& context_;
  Eager eager_;
  std::vector<Held> held_;  // By ParameterId.
};

}  // namespace dsplan
