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
  // Non-reentrant: what the nodes of `checkpoint` have saved is there from here on.
  void unpack(Checkpoint& checkpoint);
  // Reentrant: its node runs, from before its first operator's backward until behind its last one's.
  void begin_nested(Checkpoint& checkpoint);
  void end_nested(Checkpoint& checkpoint);

 private:
  // The function runs, and its nodes keep what they save. Returns what its variables still hold.
  [[nodiscard]] std::vector<TensorId> run_function(const Checkpoint& checkpoint);

  void materialise(TensorId output);

  TapeContext& on_;
  Checkpoints& checkpoints_;
  Forward& forward_;
  Gradients& gradients_;
  bool stops_early_ = true;
  std::vector<ModuleId> entered_;  // By the latest run_function, and not yet left.
};

}  // namespace dsplan
