// Runs the graph's program forward: operators by their recipes, Python's variables with their ends, module boundaries,
// and what autograd's nodes save. A recomputation runs a part of the same program once more.
#pragma once

#include <vector>

#include "planner/lower/autograd/checkpoints.h"

namespace dsplan {

class Forward {
 public:
  Forward(TapeContext& on, Checkpoints& checkpoints)
      : on_(on), graph_(on.graph), emitter_(on.emitter), checkpoints_(checkpoints) {}

  // Instructions [begin, end). `saves`: nodes hold what backward needs; in a checkpoint's first forward none does.
  void run(std::uint32_t begin, std::uint32_t end, bool saves);

  // From here on a checkpoint is recomputed. `detaches`: what is saved is detached, as the hooks of the non-reentrant
  // form do it. Drops concern only what is made there: what came in from outside is the checkpoint's.
  void begin_recompute(bool detaches);
  // What its variables hold when it has returned or was left, in the order in which it was made.
  [[nodiscard]] std::vector<TensorId> end_recompute();
  // Early stop: the operator's inputs have been saved, and its kernel never starts.
  void stop_before(NodeId node);

 private:
  void run_operator(NodeId node, bool saves);
  [[nodiscard]] bool is_unasked(const Checkpoint* checkpoint, NodeId node) const;
  // Not `graded`: under no_grad, as a reentrant checkpoint runs its function first.
  void make(NodeId node, std::vector<BufferId>& made, bool graded);
  void make_slot(NodeId node, std::size_t slot, std::vector<BufferId>& made);
  void launch(NodeId node, const std::vector<BufferId>& made, std::size_t first_new, std::size_t end_new,
              std::uint8_t part);
  [[nodiscard]] bool saves_memory_of_now(const Node& node, TensorId tensor) const;
  // What the operator's node has from here on, where there is one.
  void keep(const Checkpoint* checkpoint, NodeId node, bool saves, const std::vector<BufferId>& made);
  void save(NodeId node, const std::vector<BufferId>& made);
  void drop(TensorId tensor);
  void forget(NodeId node, std::uint32_t at);
  void enter_module(ModuleId module);
  void leave_module(ModuleId module);

  TapeContext& on_;
  const Graph& graph_;
  Emitter& emitter_;
  Checkpoints& checkpoints_;
  bool recomputing_ = false;
  bool detaches_ = false;
  std::vector<TensorId> alive_;  // Of a recomputation: what Python holds.
  std::vector<BufferId> slots_;  // Of the operator under way.
};

}  // namespace dsplan
