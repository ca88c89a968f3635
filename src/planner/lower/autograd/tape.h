// Runs one micro-batch of a graph through the emitter, as PyTorch's eager autograd would. Its parts, each a file:
//
//   storages       where tensors lie now, and which nodes hold them
//   forward        the program: operators, variables, module boundaries, saved tensors
//   checkpoints    what a checkpoint holds between forward and backward
//   recomputation  both forms of torch.utils.checkpoint, and DeepSpeed's
//   backward       the engine's order, and one node's function
//   gradients      accumulation, leaves, AccumulateGrad
//   packed_tensors hooks between what is saved and its nodes, and what activation offloading does there
//   tape_recording the program for an executor
#pragma once

#include <utility>
#include <vector>

#include "planner/lower/autograd/backward.h"

namespace dsplan {

class Tape {
 public:
  // Stand between what is saved and the nodes that save it, but for what runs in `head`; across tapes.
  struct Hooks {
    OffloadActivations* hooks = nullptr;
    ModuleId head = kNone;
  };
  // `module_buffers`: the device buffers of ModelSpec::buffers. All other references must outlive the tape.
  Tape(const GraphFacts& facts, const Checkpointing& checkpointing, Emitter& emitter, TrainingRuntime& runtime,
       const std::vector<BufferId>& module_buffers, const Hooks& hooked);

  // Matrix products place the libraries' workspaces; without this none is placed.
  void attach(Workspaces& workspaces) { on_.workspaces = &workspaces; }
  // What DeepSpeed's checkpoints share, across tapes; needed where there is one of that kind.
  void attach(DeepSpeedCheckpoints& deepspeed) { checkpoints_.attach(deepspeed); }

  void use_buffers(const std::vector<BufferId>& module_buffers) { on_.storages.use(module_buffers); }
  // Non-reentrant checkpoints make all again, whatever backward asks for.
  void recompute_to_the_end() { recomputation_.run_to_the_end(); }

  // The batch is made and the one before it let go.
  void make_batch();
  void drop_batch();
  // Somebody else holds it now, in the order of Graph::batch.
  [[nodiscard]] std::vector<BufferId> take_batch() { return std::exchange(batch_, {}); }
  // Keeps the loss (or an op-graph's outputs) until it is let go of.
  void forward();
  // What a loop's variable holds once forward has returned: the loss once more, Graph::held, and with the graph what is
  // bound to the functions of reentrant checkpoints.
  [[nodiscard]] Variables outputs();
  [[nodiscard]] BufferId loss() { return on_.storages.of(on_.graph.loss); }
  void backward() { backward_.from_loss(); }
  // With the loss goes the graph, and what its checkpoints still hold; where a loop's variable holds outputs, the graph
  // and its leaves stay with them.
  void drop_loss(Variables& outputs);

  // Of an op-graph: the outputs are read by the work under way; Python lets go of them; backward from them
  // (Backward::from_outputs).
  void read_outputs();
  void drop_outputs();
  void backward_from(BufferId seed) { backward_.from_outputs(seed); }

 private:
  TapeContext on_;
  Checkpoints checkpoints_;
  Forward forward_;
  Gradients gradients_;
  Recomputation recomputation_;
  Backward backward_;
  std::vector<BufferId> batch_;
};

}  // namespace dsplan
