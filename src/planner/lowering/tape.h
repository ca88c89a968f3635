// Runs one micro-batch of a graph through the emitter, as PyTorch's eager autograd would: forward with saved tensors,
// non-reentrant checkpointing with early stop, backward in the engine's order.
//
// Lifetimes follow reference counts. A storage is held by each Python variable (until its Drop), by each autograd node
// that saved it (until that node has run), and by the closure of each checkpoint that it enters (until the last of the
// region's nodes has run).
//
// Order of backward: the engine takes ready nodes by descending sequence number, which for one forward pass is the
// reverse of program order; AccumulateGrad runs before all other ready nodes (torch/csrc/autograd/engine.cpp).
// Within one node: outputs and temporaries are made, temporaries and incoming gradients die when the function returns,
// then saved tensors are released, then the outputs are added to the next nodes' buffers (call_function,
// evaluate_function).
#pragma once

#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/training.h"
#include "planner/lowering/emitter.h"
#include "planner/lowering/recipes.h"
#include "planner/lowering/runtime.h"

namespace dsplan {

class Tape {
 public:
  // `module_buffers`: the device buffers of ModelSpec::buffers. All references must outlive the tape.
  Tape(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes, const Checkpointing& checkpointing,
       Emitter& emitter, TrainingRuntime& runtime, std::vector<BufferId> module_buffers);

  // The batch is made and the one before it let go.
  void make_batch();
  void drop_batch();
  // Forward, keeping the loss, until it is let go of.
  void forward();
  void backward();
  void drop_loss();

 private:
  struct Gradient {
    BufferId buffer = kNoBuffer;
    bool whole = false;  // Dense and non-overlapping over its storage: not a slice or an expansion.
    // Seen through a tensor that keeps the one it was taken from: AccumulateGrad may steal it, but nobody adds to it in
    // place, because its storage is held twice (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace).
    bool view = false;
  };
  // A gradient that has left the operators of a module, but not yet the function that the runtime put around its input.
  struct Pending {
    TensorId tensor = kNone;
    Gradient gradient;
  };
  // A checkpointed run of layers.
  struct Region {
    std::uint32_t begin = 0;  // Instruction indices: RegionBegins of the first layer, RegionEnds of the last.
    std::uint32_t end = 0;
    NodeId first_saver = kNone;  // Lowest and highest node with saved tensors: closure's end, early stop.
    NodeId last_saver = kNone;
    bool recomputed = false;
    std::vector<TensorId> closure;
  };

  void find_regions(const Checkpointing& checkpointing);
  void count_parameter_uses();

  void run_program(std::uint32_t begin, std::uint32_t end, bool keep_saved);
  void run_forward(NodeId node, bool keep_saved);
  void emit_forward_kernel(const Node& node, const std::vector<BufferId>& made);
  void save(NodeId node, const std::vector<BufferId>& slots);
  void recompute(Region& region);
  void drop_tensor(TensorId tensor);

  void run_backward(NodeId node);
  [[nodiscard]] bool has_gradient(const Node& node) const;
  void run_backward_recipe(NodeId node, std::vector<BufferId>& slots);
  void emit_backward_kernel(NodeId node, const std::vector<BufferId>& slots, std::size_t first_new, std::size_t end_new,
                            bool inside);
  void deliver(NodeId node, const std::vector<BufferId>& slots, const std::vector<Gradient>& incoming);
  void accumulate(TensorId tensor, Gradient gradient);
  void accumulate_into(Gradient& held, TensorId tensor, Gradient gradient);
  [[nodiscard]] bool enters_module(const Node& node, TensorId input) const;
  [[nodiscard]] Gradient& pending_of(TensorId tensor);
  void deliver_pending();
  void ready(TensorId tensor);
  void release_saved(NodeId node);

  void read_tensor(TensorId tensor);
  [[nodiscard]] BufferId& buffer_of(TensorId tensor) {
    return buffers_[static_cast<std::size_t>(graph_.tensor(tensor).storage)];
  }

  const ModelSpec& model_;
  const Graph& graph_;
  const RecipeBook& recipes_;
  Emitter& emitter_;
  TrainingRuntime& runtime_;
  std::vector<BufferId> module_buffers_;

  std::vector<BufferId> buffers_;    // By storage: the current instance.
  std::vector<BufferId> saved_;      // By saved index; kNoBuffer for parameters and buffers.
  std::vector<Gradient> gradients_;  // By tensor.
  std::vector<std::int32_t> uses_;   // By parameter: gradients that a backward pass brings.
  std::vector<std::int32_t> arrived_;
  std::vector<Region> regions_;
  std::vector<std::int16_t> region_of_;  // By node; -1 outside.
  std::vector<bool> module_has_gradient_;
  std::vector<TensorId> alive_;    // During recomputation: what Python holds, for early stop.
  std::vector<ModuleId> entered_;  // During recomputation: modules entered and not yet left.
  bool recomputing_ = false;
  std::vector<Pending> pending_;

  std::vector<BufferId> scratch_slots_;
  std::vector<Gradient> scratch_incoming_;
  std::vector<BufferId> batch_;
};

}  // namespace dsplan
