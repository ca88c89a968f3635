// Gradients between autograd's nodes: what has come for each tensor, how several become one, and what AccumulateGrad
// does with those of leaves.
//
// AccumulateGrad runs before all other ready nodes (torch/csrc/autograd/engine.cpp), as soon as the last gradient of
// its leaf has come. It steals the gradient or clones it; a parameter's goes to the runtime.
#pragma once

#include <vector>

#include "planner/lower/autograd/checkpoints.h"

namespace dsplan {

class Gradients {
 public:
  Gradients(TapeContext& on, const std::vector<Checkpoint>& checkpoints);

  // A backward pass begins: no leaf has received anything.
  void begin();
  // What has come for `tensor`; its node takes it from here.
  [[nodiscard]] Gradient& of(TensorId tensor) { return held_[tensor]; }
  [[nodiscard]] bool came_for_outputs_of(const Node& node) const;
  // One more has come for `tensor`.
  void accumulate(TensorId tensor, Gradient gradient) { accumulate_into(of(tensor), tensor, gradient); }

  // The module through whose wrapped input a gradient of `node`'s input leaves; kNone if it lies inside. Such gradients
  // meet others only when the module is left.
  [[nodiscard]] ModuleId left_through(const Node& node, TensorId input) const;
  void accumulate_in(ModuleId module, TensorId input, Gradient gradient);
  void leave_module(ModuleId module);

  // Parameters; in the backward of a reentrant checkpoint also all that it takes from outside.
  [[nodiscard]] bool is_leaf(TensorId tensor) const;
  // One of the gradients that the leaf waits for has come.
  void arrived(TensorId leaf);
  // AccumulateGrad steals only what nobody else owns and what fills its storage; otherwise it clones
  // (torch/csrc/autograd/functions/accumulate_grad.h).
  [[nodiscard]] Gradient take_or_clone(TensorId tensor, Gradient gradient);

  // The engine within the engine, for a reentrant checkpoint: what it reads from outside are leaves meanwhile. Then its
  // node returns their gradients, which join what had come from elsewhere.
  void begin_nested(Checkpoint& checkpoint);
  void end_nested(Checkpoint& checkpoint);

 private:
  // A gradient that has left the operators of a module, but not yet the function that the runtime put around its input.
  struct Pending {
    TensorId tensor = kNone;
    ModuleId module = kNone;
    Gradient gradient;
    std::int32_t count = 0;  // Of uses that it is the sum of.
  };

  void count_uses(const std::vector<Checkpoint>& checkpoints);
  void count_nested_uses(const Checkpoint& checkpoint);
  void accumulate_into(Gradient& held, TensorId tensor, Gradient gradient);
  void ready(TensorId leaf);

  TapeContext& on_;
  const Graph& graph_;
  Emitter& emitter_;
  Indexed<TensorId, Gradient> held_;
  std::vector<std::int32_t> uses_;  // By parameter: gradients that a backward pass brings, reentrant regions excepted.
  std::vector<std::int32_t> arrived_;
  // For what a reentrant checkpoint under way reads and does not make: gradients still to come.
  Indexed<TensorId, std::int32_t> nested_uses_;
  const Checkpoint* nested_ = nullptr;
  std::vector<Pending> pending_;
};

}  // namespace dsplan
