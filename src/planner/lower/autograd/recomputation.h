// Computes again what a checkpoint did not keep, in the two forms of torch.utils.checkpoint.
//
// Non-reentrant: the first saved tensor that backward asks for runs the function again, up to the last tensor that its
// nodes had saved (early stop), unless it is told to run to its end. Reentrant, DeepSpeed's among them: the function is
// one node; its backward runs all of it again on detached inputs, holds what comes out, and calls the engine within the
// engine, in which those inputs are leaves.
#pragma once

#include "planner/lower/autograd/forward.h"
#include "planner/lower/autograd/gradients.h"

namespace dsplan {

class Recomputation {
 public:
  Recomputation(TapeContext& on, Checkpoints& checkpoints, Forward& forward, Gradients& gradients)
      : on_(on), checkpoints_(checkpoints), forward_(forward), gradients_(gradients) {}

  // set_checkpoint_early_stop(False).
  void run_to_the_end() { stops_early_ = false; }
  // Non-reentrant: what `node` has saved is there from here on. Behind its backward the part that it was in may be done
  // with.
  void ask(Checkpoint& checkpoint, NodeId node);
  void has_run(Checkpoint& checkpoint, NodeId node);
  // Reentrant: its node runs, from before its first operator's backward until behind its last one's.
  void begin_nested(Checkpoint& checkpoint);
  void end_nested(Checkpoint& checkpoint);

 private:
  // The function runs, and its nodes keep what they save. Returns what its variables still hold.
  [[nodiscard]] std::vector<TensorId> run_function(const Checkpoint& checkpoint);
  // The same of instructions `begin` to `end`; early stop: to `last_saver`, where it is one.
  [[nodiscard]] std::vector<TensorId> run(std::uint32_t begin, std::uint32_t end, NodeId last_saver, bool detaches);

  void unpack(Checkpoint& checkpoint, NodeId asking);
  // Of a part: its own function runs again, behind the layer's where that is to make what it is given.
  void unpack(Checkpoint& checkpoint, CheckpointPart& part);
  // Nested: the layer's function, up to what its last part is given, which is the last that it had saved.
  void run_layer(Checkpoint& checkpoint);
  // The frames of a function that was left are unwound.
  void unwind(const std::vector<TensorId>& alive, const std::vector<NodeId>& forgotten);

  void materialise(TensorId output);

  TapeContext& on_;
  Checkpoints& checkpoints_;
  Forward& forward_;
  Gradients& gradients_;
  bool stops_early_ = true;
  std::vector<ModuleId> entered_;  // By the latest run_function, and not yet left.
};

}  // namespace dsplan
