// Runs one micro-batch of a graph through the emitter, as PyTorch's eager autograd would: forward with saved tensors,
// both forms of checkpointing, backward in the engine's order.
//
// Lifetimes follow reference counts. A storage is held by each Python variable (until its Drop), by each autograd node
// that saved it (until that node has run), and by the closure of each checkpoint that it enters (until the last of the
// region's nodes has run).
//
// The two forms of torch.utils.checkpoint. Non-reentrant: the first saved tensor that backward asks for runs the region
// again, up to the last tensor that its nodes had saved (early stop). Reentrant: the region is one node; its backward
// runs all of the region again on detached inputs, holds what comes out, and calls the engine within the engine, in
// which those inputs are leaves.
//
// Order of backward: the engine takes ready nodes by descending sequence number, which for one forward pass is the
// reverse of program order; AccumulateGrad runs before all other ready nodes (torch/csrc/autograd/engine.cpp).
// Within one node: outputs and temporaries are made, temporaries and incoming gradients die when the function returns,
// then saved tensors are released, then the outputs are added to the next nodes' buffers (call_function,
// evaluate_function).
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "core/graph.h"
#include "core/training.h"
#include "planner/lower/deepspeed_checkpoint.h"
#include "planner/lower/emitter.h"
#include "planner/lower/recipes.h"
#include "planner/lower/runtime.h"
#include "planner/lower/workspaces.h"

namespace dsplan {

class Tape {
 public:
  // `module_buffers`: the device buffers of ModelSpec::buffers. All references must outlive the tape.
  Tape(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes, const Checkpointing& checkpointing,
       Emitter& emitter, TrainingRuntime& runtime, std::vector<BufferId> module_buffers);

  // Matrix products place the libraries' workspaces; without this none is placed.
  void attach(Workspaces& workspaces) { workspaces_ = &workspaces; }

  // What DeepSpeed's checkpoints share, across tapes; needed where there is one of that kind.
  void attach(DeepSpeedCheckpoints& checkpoints) { deepspeed_ = &checkpoints; }

  // The batch is made and the one before it let go.
  void make_batch();
  void drop_batch();
  // Forward, keeping the loss (or the graph's outputs), until it is let go of.
  void forward();
  // Python lets go of an op-graph's outputs.
  void drop_outputs();
  // States the outputs as read by the work under way.
  void read_outputs();
  // From the loss.
  void backward();
  // From an op-graph's outputs: each receives an expanded view of `seed`, of which it takes one reference.
  void backward_from(BufferId seed);
  void drop_loss();
  [[nodiscard]] BufferId loss();

 private:
  struct Gradient {
    BufferId buffer = kNoBuffer;
    bool whole = false;  // Dense and non-overlapping over its storage: not a slice or an expansion.
    // Seen through a tensor that keeps the one it was taken from: AccumulateGrad may steal it, but nobody adds to it in
    // place, because its storage is held twice (torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace).
    bool view = false;
    ValueId value = kNoValue;  // For an executor.
  };
  // A gradient that has left the operators of a module, but not yet the function that the runtime put around its input.
  struct Pending {
    TensorId tensor = kNone;
    ModuleId module = kNone;
    Gradient gradient;
    std::int32_t count = 0;  // Of uses that it is the sum of.
  };
  // Results of one operator that a selective checkpoint keeps from forward to recomputation.
  struct Kept {
    NodeId node = kNone;
    std::vector<BufferId> slots;
    std::vector<ValueId> values;
  };
  // A checkpointed run of layers.
  struct Region {
    std::uint32_t begin = 0;  // Instruction indices: RegionBegins of the first layer, RegionEnds of the last.
    std::uint32_t end = 0;
    NodeId first_saver = kNone;  // Lowest and highest node with saved tensors: closure's end, early stop.
    NodeId last_saver = kNone;
    bool recomputed = false;
    bool reentrant = false;
    bool deepspeed = false;  // Then also reentrant.
    bool stashes_rng = false;
    std::vector<TensorId> arguments;
    std::vector<TensorId> keywords;
    std::vector<bool> keeps;  // By Op; empty: nothing.

    // While it is pending.
    std::vector<BufferId> closure;     // Of the arguments, then of the keywords.
    std::vector<BufferId> bases;       // What emptied arguments were views of, which they keep.
    std::vector<BufferId> rng_states;  // On the host.
    std::vector<Kept> kept;
    std::vector<DeepSpeedCheckpoints::Stored> stored;  // Of the arguments that DeepSpeed empties, in order.

    // Reentrant only: every tensor that it reads and does not make, once, and the outputs that others read.
    std::vector<TensorId> externals;
    std::vector<TensorId> outputs;
    bool nested = false;  // Its backward is under way.
    // While it is under way.
    std::vector<Gradient> outer;     // What the externals had received from outside.
    std::vector<BufferId> incoming;  // The gradients of the outputs: arguments of the node's backward.
    std::vector<TensorId> recomputed_outputs;
  };

  // tape_recording.cpp: what an executor is told. Nothing happens without a recording.
  [[nodiscard]] bool records() const { return emitter_.recording() != nullptr; }
  [[nodiscard]] ValueId value_of(TensorId tensor);
  void record_batch(std::size_t at, TensorId input, BufferId buffer);
  void record_slot(std::size_t slot, BufferId buffer);
  void record_outputs(NodeId node);
  void record_view(NodeId node);
  void record_in_place(NodeId node);
  void record_forward(NodeId node, std::size_t end, std::uint8_t part);
  void record_saved(const Saved& item, NodeId node, std::size_t index, BufferId buffer);
  void record_backward(NodeId node, std::size_t end, std::uint8_t part, bool inside);
  [[nodiscard]] ValueId record_passed(NodeId node, std::size_t input, ValueId gradient);
  void record_sum(Gradient& into, ValueId first, ValueId second);
  [[nodiscard]] ValueId record_made(Body body, ValueId from, BufferId buffer);
  void record_ready(ParameterId parameter, ValueId gradient);
  void record_loss();
  [[nodiscard]] std::vector<MadeValue> made_values(NodeId node, std::size_t end, bool backward) const;

  void find_regions(const Checkpointing& checkpointing);
  void find_boundary(Region& region);
  void find_wanted();
  void find_read();
  void find_gradients_of_modules();
  void count_uses();

  void run_program(std::uint32_t begin, std::uint32_t end, bool keep_saved);
  void run_forward(NodeId node, bool keep_saved);
  void make_forward(NodeId node, std::vector<BufferId>& made);
  void emit_forward_kernel(NodeId id, const std::vector<BufferId>& made, std::size_t first_new, std::size_t end_new,
                           std::uint8_t part);
  void save(NodeId node, const std::vector<BufferId>& slots);
  void drop_tensor(TensorId tensor);
  // Graph::leaves: their AccumulateGrad holds them, and they their `.grad`, until the loss goes.
  void hold_leaves(NodeId producer);
  void take_leaf_gradients(NodeId producer);

  // tape_checkpoint.cpp
  void enter_region(Region& region);
  void leave_closure(Region& region);
  void stash_rng(Region& region);
  void recompute(Region& region);
  void run_region_again(Region& region);
  void begin_nested(Region& region);
  void end_nested(Region& region);
  void count_nested_uses(const Region& region);
  void keep_results(Region& region, NodeId node, const std::vector<BufferId>& made);
  [[nodiscard]] bool take_kept(Region& region, NodeId node, std::vector<BufferId>& made);
  void leaf_arrived(TensorId tensor);

  // tape_deepspeed.cpp
  [[nodiscard]] bool is_view(TensorId tensor) const;
  [[nodiscard]] bool is_stored(const Region& region, TensorId tensor) const;
  void store_arguments(Region& region);
  void empty_arguments(Region& region);
  void restore_arguments(Region& region);
  void swap_storage(Region& region, std::size_t slot, TensorId tensor, BufferId with);
  [[nodiscard]] std::int64_t drops_after(std::uint32_t at, TensorId tensor) const;

  void walk_backward();
  void run_backward(NodeId node);
  [[nodiscard]] bool has_gradient(const Node& node) const;
  void run_backward_recipe(NodeId node, std::vector<BufferId>& slots);
  void emit_backward_kernel(NodeId node, const std::vector<BufferId>& slots, std::size_t first_new, std::size_t end_new,
                            std::uint8_t part, bool inside);
  void take_saved_gradients(NodeId node);
  // Over the tensor-parallel ranks, in place.
  void all_reduce(BufferId buffer, bool largest = false);
  void deliver(NodeId node, const std::vector<BufferId>& slots, const std::vector<Gradient>& incoming);
  void accumulate(TensorId tensor, Gradient gradient);
  void accumulate_into(Gradient& held, TensorId tensor, Gradient gradient);
  [[nodiscard]] ModuleId entered_by(const Node& node, TensorId input) const;
  [[nodiscard]] bool lies_in(ModuleId module, ModuleId outer) const;
  [[nodiscard]] Pending& pending_of(TensorId tensor, ModuleId module);
  void deliver_pending(ModuleId module);
  // The module that calls what lies in `module`: containers are never entered.
  [[nodiscard]] ModuleId caller(ModuleId module) const;
  [[nodiscard]] bool is_leaf(TensorId tensor) const;
  [[nodiscard]] Gradient take_or_clone(TensorId tensor, Gradient gradient);
  void ready(TensorId tensor);
  void release_saved(NodeId node);

  // Whether a gradient of one of its outputs is part of the way from the loss to a leaf.
  [[nodiscard]] bool is_wanted(const Node& node) const;
  [[nodiscard]] bool is_parameter(TensorId tensor) const {
    return graph_.storage_of(tensor).parameter != kNone && graph_.tensor(tensor).producer == kNone;
  }

  void read_tensor(TensorId tensor);
  // The logits and all that the root module makes of them; gradients of the head's own operands are not among them.
  [[nodiscard]] bool is_loss(NodeId node, bool backward) const {
    return head_ != kNone && (backward ? node > head_ : node >= head_);
  }
  void write_tensor(TensorId tensor);
  [[nodiscard]] BufferId& buffer_of(TensorId tensor) {
    return buffers_[static_cast<std::size_t>(graph_.tensor(tensor).storage)];
  }

  const ModelSpec& model_;
  const Graph& graph_;
  const RecipeBook& recipes_;
  Emitter& emitter_;
  Workspaces* workspaces_ = nullptr;
  DeepSpeedCheckpoints* deepspeed_ = nullptr;
  TrainingRuntime& runtime_;
  std::vector<BufferId> module_buffers_;

  std::vector<BufferId> buffers_;    // By storage: the current instance.
  std::vector<BufferId> saved_;      // By saved index; kNoBuffer for parameters and buffers.
  std::vector<Gradient> gradients_;  // By tensor.
  // By tensor: whether a gradient of it is part of the way from the loss to a leaf.
  std::vector<bool> wanted_;
  std::vector<std::int32_t> uses_;  // By parameter: gradients that a backward pass brings, reentrant regions excepted.
  std::vector<std::int32_t> arrived_;
  // By tensor, for what a reentrant region under way reads and does not make: gradients still to come.
  std::vector<std::int32_t> nested_uses_;
  std::vector<bool> read_;  // By storage: someone reads what lies there.
  Region* nested_ = nullptr;
  std::vector<Region> regions_;
  std::vector<std::int16_t> region_of_;  // By node; -1 outside.
  std::vector<bool> module_has_gradient_;
  std::vector<bool> module_called_;
  std::vector<bool> module_ends_;  // By module: some tensor that wants a gradient is handed to it.
  std::vector<TensorId> alive_;    // During recomputation: what Python holds, for early stop.
  std::vector<ModuleId> entered_;  // During recomputation: modules entered and not yet left.
  std::vector<BufferId> leaves_;   // What they and their gradients lie in.
  bool recomputing_ = false;
  bool detaching_ = false;  // In the form whose hooks detach what is saved.
  NodeId head_ = kNone;     // The last operator outside the root module, where there is a loss.
  std::vector<Pending> pending_;

  // Of a recording: the tensors as they are now, what was saved, and the slots of the operator under way.
  std::vector<ValueId> values_;
  std::vector<ValueId> saved_values_;
  std::vector<ValueId> slot_values_;
  std::vector<ValueId> scratch_values_;

  std::vector<BufferId> scratch_slots_;
  std::vector<Gradient> scratch_incoming_;
  std::array<BufferId, Node::kMostInputs> handed_out_{};  // By input, while its node is under way.
  std::array<ValueId, Node::kMostInputs> handed_out_values_{};
  std::vector<BufferId> batch_;
};

}  // namespace dsplan
