// The engine: takes ready nodes by descending sequence number, which for one forward pass is the reverse of program
// order (torch/csrc/autograd/engine.cpp), and tells the runtime when a module's backward begins and ends.
//
// Within one node (call_function, evaluate_function): outputs and temporaries are made, temporaries and incoming
// gradients die when the function returns, then saved tensors are released, then the outputs are added to the next
// nodes' buffers.
#pragma once

#include <array>
#include <vector>

#include "planner/lower/autograd/recomputation.h"

namespace dsplan {

class Backward {
 public:
  Backward(TapeContext& on, Checkpoints& checkpoints, Gradients& gradients, Recomputation& recomputation)
      : on_(on),
        graph_(on.graph),
        emitter_(on.emitter),
        checkpoints_(checkpoints),
        gradients_(gradients),
        recomputation_(recomputation) {}

  // loss.backward().
  void from_loss();
  // torch.autograd.backward(outputs, ...): each receives an expanded view of `seed`, of which it takes one reference.
  void from_outputs(BufferId seed);

 private:
  void walk();
  void enter_module(ModuleId module);
  void leave_module(ModuleId module);
  void run(NodeId node);
  void run_recipe(NodeId node);
  void make_slot(NodeId node, std::size_t slot);
  void launch(NodeId node, std::size_t first_new, std::size_t end_new, std::uint8_t part, bool inside);
  void take_leaf_gradients(NodeId node, bool has_run);
  void take_saved_gradients(NodeId node);
  void write_over(NodeId id);
  void deliver(NodeId node);
  [[nodiscard]] Gradient gradient_of_input(NodeId node, std::size_t input);
  void hand_on(TensorId input, ModuleId through, const Gradient& gradient);

  TapeContext& on_;
  const Graph& graph_;
  Emitter& emitter_;
  Checkpoints& checkpoints_;
  Gradients& gradients_;
  Recomputation& recomputation_;
  // By Graph::leaves: the node that reads it first, whose backward is the last to give it a gradient. Filled when
  // asked.
  std::vector<NodeId> first_readers_;

  // Of the node under way.
  std::vector<Gradient> incoming_;
  std::vector<BufferId> slots_;
  std::array<Gradient, Node::kMostInputs> handed_out_{};  // By input: gradients that the forward made.
};

}  // namespace dsplan
