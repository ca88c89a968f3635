// What hooks stand between and the nodes that save: in the order in which autograd hands it over and asks for it back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/lower/autograd/offload_activations.h"
#include "planner/lower/autograd/saved_layouts.h"
#include "planner/lower/autograd/storages.h"

namespace dsplan {

class PackedTensors {
 public:
  // All references must outlive this. What runs in `head` has hooks of its own, which do nothing (NoOpManager).
  PackedTensors(const GraphFacts& facts, Storages& storages, OffloadActivations& hooks, ModuleId head);

  // Which of them a node packs: inputs before its kernel runs, results behind it; a torch.autograd.Function all of them
  // when its forward has returned.
  enum class When : std::uint8_t { BeforeKernel, BehindKernel };

  [[nodiscard]] bool concerns(NodeId node) const;
  // `made`: by slot of its recipe, as far as they are there.
  void pack(NodeId node, When when, std::span<const BufferId> made);
  // The node's saved tensors are there, in the hands of its function alone.
  void unpack(NodeId node);
  // Its post hooks.
  void returns() { hooks_.node_returns(); }
  void backward_ends() { hooks_.backward_ends(); }
  void loss_goes() { hooks_.hold_graph(storages_.take_leaves()); }

  // The input saver of a checkpoint: an empty tensor of the host, then what the function is given by position.
  [[nodiscard]] std::vector<std::uint64_t> pack_arguments(std::span<const TensorId> arguments);
  // While `node` asks. They lie anew, and are the caller's to release; kNoBuffer for parameters.
  [[nodiscard]] std::vector<BufferId> unpack_arguments(std::span<const TensorId> arguments,
                                                       const std::vector<std::uint64_t>& ids, NodeId node);

 private:
  [[nodiscard]] std::size_t at(NodeId node, const Saved* item) const {
    return static_cast<std::size_t>(item - facts_.recipes().saved(node).data());
  }
  [[nodiscard]] std::vector<const Saved*> in_order(NodeId node) const;
  [[nodiscard]] When packed_when(NodeId node, const Saved& item) const;
  [[nodiscard]] HookedTensor seen(NodeId node, const Saved& item, std::span<const BufferId> made) const;
  [[nodiscard]] HookedTensor seen(TensorId tensor) const;

  const GraphFacts& facts_;
  Storages& storages_;
  OffloadActivations& hooks_;
  ModuleId head_;
  Indexed<TensorId, SavedLayout> layouts_;
  std::vector<std::uint64_t> ids_;  // By saved index; 0: not packed.
};

}  // namespace dsplan
