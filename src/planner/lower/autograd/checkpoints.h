// The checkpointed runs of layers, and what each holds from its forward to its backward: the closure of its function
// (torch/utils/checkpoint.py), the states of the random generators, results that a selective checkpoint keeps, and what
// stands for arguments that DeepSpeed's checkpoint empties.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "core/training.h"
#include "planner/lower/autograd/checkpoint_parts.h"
#include "planner/lower/autograd/deepspeed_checkpoint.h"
#include "planner/lower/autograd/shared_container.h"
#include "planner/lower/autograd/tape_context.h"

namespace dsplan {

struct Checkpoint {
  std::uint32_t begin = 0;  // Instruction indices: RegionBegins of the first layer, RegionEnds of the last.
  std::uint32_t end = 0;
  NodeId first_saver = kNone;  // Lowest and highest node with saved tensors: closure's end, early stop.
  NodeId last_saver = kNone;
  std::vector<NodeId> forgotten;  // Nodes that die within (Instruction::Kind::Forget).
  bool reentrant = false;
  bool deepspeed = false;  // Then also reentrant.
  bool stashes_rng = false;
  bool shares = false;  // Its function holds the container.
  std::vector<TensorId> arguments;
  std::vector<TensorId> keywords;
  std::vector<bool> keeps;  // By Op; empty: nothing.
  // Reentrant only: every tensor that it reads and does not make, once, and the outputs that others read.
  std::vector<TensorId> externals;
  std::vector<TensorId> outputs;
  std::vector<TensorId> returned;  // As Region has them.
  std::vector<TensorId> strided;

  std::vector<CheckpointPart> parts;  // In program order; everything that saves lies in one of them.
  std::vector<NodeId> unkept;         // Products that are not kept although others are; ascending.

  [[nodiscard]] bool keeps_results_of(NodeId node, Op op) const {
    if (keeps.empty() || !keeps[static_cast<std::size_t>(op)]) return false;
    return unkept.empty() || !std::binary_search(unkept.begin(), unkept.end(), node);
  }

  // What is bound to the function of a reentrant one, while its node lives.
  [[nodiscard]] std::span<const BufferId> bound(const Graph& graph) const;

  // Results of one operator that a selective checkpoint keeps from forward to recomputation.
  struct Kept {
    NodeId node = kNone;
    std::vector<BufferId> slots;
    std::vector<ValueId> values;
  };
  // From forward to backward.
  bool open = false;  // Its function is held.
  bool recomputed = false;
  std::vector<BufferId> closure;      // Of the arguments, then of the keywords.
  std::vector<std::uint64_t> packed;  // Arguments that hooks have, in place of the closure (autograd/packed_tensors.h).
  std::vector<BufferId> bases;        // What emptied arguments were views of, which they keep.
  std::vector<BufferId> rng_states;   // On the host.
  std::vector<Kept> kept;
  std::vector<DeepSpeedCheckpoints::Stored> stored;  // Of the arguments that DeepSpeed empties, in order.

  // While the backward of a reentrant one is under way (recomputation.h).
  bool nested = false;
  std::vector<Gradient> outer;     // What the externals had received from outside.
  std::vector<BufferId> incoming;  // The gradients of the outputs: arguments of the node's backward.
  std::vector<TensorId> recomputed_outputs;
};

class Checkpoints {
 public:
  Checkpoints(TapeContext& on, const Checkpointing& checkpointing);
  // What DeepSpeed's share; needed where there is one of that kind.
  void attach(DeepSpeedCheckpoints& deepspeed) { deepspeed_ = &deepspeed; }

  [[nodiscard]] std::vector<Checkpoint>& all() { return all_; }
  // That `node` runs in; nullptr: none.
  [[nodiscard]] Checkpoint* of(NodeId node) {
    const std::int16_t index = of_node_[node];
    return index < 0 ? nullptr : &all_[static_cast<std::size_t>(index)];
  }

  // The function is called, and has returned.
  void enter(Checkpoint& checkpoint);
  void leave(Checkpoint& checkpoint) {
    if (checkpoint.deepspeed) return empty_arguments(checkpoint);
    // Its frame belongs to what is saved within; a reentrant one's to its own node.
    if (!checkpoint.reentrant && checkpoint.last_saver == kNone) forget(checkpoint);
  }
  // Its backward begins: arguments that were emptied are whole again. Behind it the function's frame lets go of them.
  void restore_arguments(Checkpoint& checkpoint);
  void release_arguments(Checkpoint& checkpoint);
  // The checkpoint is done with, or will never be asked.
  void forget(Checkpoint& checkpoint);

  void keep_results(Checkpoint& checkpoint, NodeId node, const std::vector<BufferId>& made);
  // False: nothing was kept of it.
  [[nodiscard]] bool take_results(Checkpoint& checkpoint, NodeId node, std::vector<BufferId>& made);

  // Which the functions of one list of layers hold: a text's, not its tower's.
  SharedContainer container;

 private:
  [[nodiscard]] Checkpoint found(const CheckpointGroup& group, std::uint32_t begin, std::uint32_t end);
  void find_boundary(Checkpoint& checkpoint);
  void stash_rng(Checkpoint& checkpoint);

  // checkpoints_deepspeed.cpp
  [[nodiscard]] bool is_view(TensorId tensor) const;
  [[nodiscard]] bool is_stored(const Checkpoint& checkpoint, TensorId tensor) const;
  void store_arguments(Checkpoint& checkpoint);
  void empty_arguments(Checkpoint& checkpoint);
  void swap_storage(Checkpoint& checkpoint, std::size_t slot, TensorId tensor, BufferId with);
  [[nodiscard]] std::int64_t drops_after(std::uint32_t at, TensorId tensor) const;

  TapeContext& on_;
  const Graph& graph_;
  Emitter& emitter_;
  DeepSpeedCheckpoints* deepspeed_ = nullptr;
  std::vector<Checkpoint> all_;            // In program order.
  Indexed<NodeId, std::int16_t> of_node_;  // -1 outside.
};

}  // namespace dsplan
