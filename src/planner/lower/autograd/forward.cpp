#include "planner/lower/autograd/forward.h"

#include <algorithm>
#include <utility>

namespace dsplan {
namespace {

// Runs under no_grad first.
bool is_untaped(const Checkpoint* checkpoint) { return checkpoint != nullptr && checkpoint->reentrant; }
bool is_graded(const Checkpoint* checkpoint, bool saves) { return saves || !is_untaped(checkpoint); }

// Node::number: of a Linear how its weight is packed, of grouped products 1 for weights that are used as they lie.
bool is_turned(const Graph& graph, const Node& node, TensorId tensor) {
  const bool linear = node.op == Op::Linear && node.product == Product::Transposed;
  return (linear || node.op == Op::GroupedMatmul) && node.number == 0 && tensor == graph.input(node, 1);
}

// One attribute of the model, whatever the length of the rows.
void keep_for_next(TapeContext& on, TensorId tensor) {
  constexpr What kTable{Role::ModuleBuffers, "buffer"};
  constexpr What kOfBatch{Role::Inputs, "batch"};
  BufferId& kept = on.runtime.kept;
  if (kept != kNoBuffer) on.emitter.release(kept, Reason::PythonFrame);
  kept = on.storages.of(tensor);
  on.emitter.rename(kept, is_floating(on.facts.graph().tensor(tensor).dtype) ? kTable : kOfBatch);
}

void let_go_of(TapeContext& on, TensorId replaced) {
  const BufferId buffer = on.storages.of(replaced);
  if (on.runtime.holds_buffers || on.emitter.references(buffer) == 0) return;
  on.emitter.release(buffer, Reason::PythonFrame);
}

// Whether hooks have what the node saves. Within a recomputation the checkpoint's own are in force.
bool has_hooks(const TapeContext& on, NodeId node, bool saves, bool recomputing) {
  return on.packed && saves && !recomputing && on.packed->concerns(node);
}

// Of a by-product: copies of other ones may have run since.
Reason after_packing(const TapeContext& on) { return on.packed ? Reason::PythonFrame : Reason::LastUse; }

void pack_inputs(TapeContext& on, NodeId node, bool saves, bool recomputing) {
  if (has_hooks(on, node, saves, recomputing)) on.packed->pack(node, PackedTensors::When::BeforeKernel, {});
}

}  // namespace

void Forward::run(std::uint32_t begin, std::uint32_t end, bool saves) {
  for (std::uint32_t at = begin; at < end; ++at) {
    const Instruction& instruction = graph_.program[at];
    switch (instruction.kind) {
      case Instruction::Kind::Run: run_operator(instruction.node(), saves); break;
      case Instruction::Kind::Drop: drop(instruction.tensor()); break;
      case Instruction::Kind::Enter: enter_module(instruction.module()); break;
      case Instruction::Kind::Exit: leave_module(instruction.module()); break;
      case Instruction::Kind::Read:
        if (!on_.facts.is_parameter(instruction.tensor()))
          emitter_.wait_stream(kHostSync, kComputeStream);
        else if (on_.runtime.ask && emitter_.pass() == Pass::Forward)
          on_.runtime.ask(graph_.storage_of(instruction.tensor()).parameter);
        break;
      case Instruction::Kind::Keep: keep_for_next(on_, instruction.tensor()); break;
      case Instruction::Kind::Replaced: let_go_of(on_, instruction.tensor()); break;
      case Instruction::Kind::Share:
        if (!checkpoints_.all().empty()) checkpoints_.container.put(instruction.tensor(), recomputing_ && detaches_);
        break;
      case Instruction::Kind::Forget: forget(instruction.node(), at); break;
      case Instruction::Kind::RegionBegins:
      case Instruction::Kind::RegionEnds: break;
    }
  }
}

void Forward::enter_module(ModuleId module) {
  emitter_.at(emitter_.pass(), module);
  emitter_.enter(module);
  on_.runtime.enter(module, emitter_.pass());
}

void Forward::leave_module(ModuleId module) {
  emitter_.exit(module);
  if (module == 0 && emitter_.pass() == Pass::Forward) on_.runtime.forward_returns(false);
  emitter_.at(emitter_.pass(), on_.facts.caller(module));
  on_.runtime.exit(module, emitter_.pass());
}

void Forward::begin_recompute(bool detaches) {
  recomputing_ = true;
  detaches_ = detaches;
  alive_.clear();
}

std::vector<TensorId> Forward::end_recompute() {
  recomputing_ = false;
  detaches_ = false;
  return std::exchange(alive_, {});
}

// A node that dies behind the checkpoint that it ran in takes the checkpoint along.
void Forward::forget(NodeId node, std::uint32_t at) {
  on_.storages.release_saved(node);
  Checkpoint* checkpoint = checkpoints_.of(node);
  if (checkpoint != nullptr && !recomputing_ && at > checkpoint->end) checkpoints_.forget(*checkpoint);
}

void Forward::drop(TensorId tensor) {
  if (graph_.storage_of(tensor).parameter != kNone) return;  // A view of what the runtime holds.
  if (recomputing_) {
    const auto held = std::find(alive_.begin(), alive_.end(), tensor);
    if (held == alive_.end()) return;  // It came in from outside: the checkpoint's.
    alive_.erase(held);
  } else {
    checkpoints_.container.let_go(tensor);
  }
  emitter_.release(on_.storages.of(tensor), Reason::PythonFrame);
}

void Forward::run_operator(NodeId id, bool saves) {
  const Node& node = graph_.node(id);
  const RecipeBook::Entry& entry = on_.recipes.entry(id);
  const std::span<const Slot> slots = on_.recipes.slots(id);
  std::vector<BufferId>& made = slots_;
  made.assign(slots.size(), kNoBuffer);
  if (on_.recording) on_.recording->begin_operator(made.size());
  Checkpoint* checkpoint = checkpoints_.of(id);
  const bool keeps = checkpoint != nullptr && checkpoint->keeps_results_of(id, node.op);
  const bool brought_back = keeps && recomputing_ && !entry.alias && checkpoints_.take_results(*checkpoint, id, made);
  pack_inputs(on_, id, saves, recomputing_);
  if (!entry.alias && !brought_back) make(id, made, is_graded(checkpoint, saves));
  if (on_.recording && entry.alias) on_.recording->view(id);
  if (keeps && !recomputing_) checkpoints_.keep_results(*checkpoint, id, made);
  // What lies in a storage that was there before is one more variable that holds it.
  for (std::size_t i = 0; i < node.output_count; ++i) {
    const TensorId out = graph_.output(node, i);
    if (graph_.storage_of(out).parameter != kNone) continue;  // Held by the runtime.
    const bool shared = (entry.shared_outputs >> i & 1U) != 0;
    if (entry.alias || (entry.in_place && i == 0) || shared) emitter_.retain(on_.storages.of(out));
    if (recomputing_) alive_.push_back(out);
  }
  // Under no_grad, as a reentrant checkpoint runs its function first, nothing holds a leaf.
  if (!graph_.leaves.empty() && !recomputing_ && !is_untaped(checkpoint)) on_.storages.hold_leaves(id);
  keep(checkpoint, id, saves, made);
  // By-products belong to the autograd node alone: without one to keep them they die with the operator.
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind == SlotKind::Output || made[at] == kNoBuffer) continue;
    if (emitter_.references(made[at]) == 1) emitter_.mark_scratch(made[at]);
    emitter_.release(made[at], after_packing(on_));
  }
}

void Forward::keep(const Checkpoint* checkpoint, NodeId id, bool saves, const std::vector<BufferId>& made) {
  if (is_graded(checkpoint, saves)) on_.storages.hold_attributes(id, recomputing_);
  if (has_hooks(on_, id, saves, recomputing_)) return on_.packed->pack(id, PackedTensors::When::BehindKernel, made);
  if (saves && !is_unasked(checkpoint, id)) save(id, made);
}

// The holder of what no gradient is asked for is gone when a checkpoint is recomputed. A node that dies within holds
// what it saves all the same until then.
bool Forward::is_unasked(const Checkpoint* checkpoint, NodeId id) const {
  if (!recomputing_ || checkpoint == nullptr || checkpoint->reentrant || on_.facts.is_wanted(id)) return false;
  return std::find(checkpoint->forgotten.begin(), checkpoint->forgotten.end(), id) == checkpoint->forgotten.end();
}

// What is made for backward alone is left out under no_grad, and so is the kernel that would have filled it.
void Forward::make(NodeId id, std::vector<BufferId>& made, bool graded) {
  const Node& node = graph_.node(id);
  std::size_t first_new = 0;  // Slots are numbered in the order in which they are first made.
  std::size_t end_new = 0;
  std::uint8_t part = 0;
  bool left_out = false;
  bool largest = node.op == Op::ParallelCrossEntropy;  // It asks for the largest logit, then for sums.
  for (const RecipeStep& step : on_.recipes.forward(id)) {
    if (step.kind == RecipeStep::Kind::Make && !graded && on_.recipes.slots(id)[step.slot].for_backward) {
      left_out = true;
    } else if (step.kind == RecipeStep::Kind::Make) {
      make_slot(id, step.slot, made);
      if (first_new == end_new) first_new = step.slot;
      end_new = step.slot + 1U;
    } else if (step.kind == RecipeStep::Kind::Kernel && left_out && first_new == end_new) {
      ++part;  // It would have filled that alone.
      left_out = false;
    } else if (step.kind == RecipeStep::Kind::Kernel) {
      launch(id, made, first_new, end_new, part++);
      left_out = false;
      first_new = end_new;
    } else if (step.kind == RecipeStep::Kind::AllReduce) {
      const bool given = step.slot == kGivenSlot;
      on_.all_reduce(given ? on_.storages.of(graph_.input(node, 0)) : made[step.slot], std::exchange(largest, false));
      if (on_.recording && given) on_.recording->view(id);
    } else {
      emitter_.release(made[step.slot], Reason::PythonFrame);
      made[step.slot] = kNoBuffer;
    }
  }
}

void Forward::make_slot(NodeId id, std::size_t at, std::vector<BufferId>& made) {
  const Node& node = graph_.node(id);
  const Slot& slot = on_.recipes.slots(id)[at];
  const Role role = slot.kind == SlotKind::Temporary ? Role::Temporaries : Role::Activations;
  made[at] = emitter_.allocate(slot.bytes, slot.dtype, What{role, name(node.op)});
  if (slot.kind == SlotKind::Temporary) emitter_.mark_scratch(made[at]);
  if (on_.facts.is_loss(id, false)) emitter_.mark_of_loss(made[at]);
  if (slot.kind == SlotKind::Output) {
    const TensorId out = graph_.output(node, slot.index);
    on_.storages.of(out) = made[at];
    if (!on_.facts.is_read(out)) emitter_.mark_scratch(made[at]);
  }
  if (on_.recording) on_.recording->slot(at, made[at]);
}

void Forward::launch(NodeId id, const std::vector<BufferId>& made, std::size_t first_new, std::size_t end_new,
                     std::uint8_t part) {
  const Node& node = graph_.node(id);
  if (on_.workspaces != nullptr) on_.workspaces->before_kernel(graph_, node);
  emitter_.begin();
  for (TensorId input : graph_.in(node)) on_.storages.read(input);
  for (std::size_t at = 0; at < first_new; ++at) {
    if (made[at] != kNoBuffer) emitter_.read(made[at]);
  }
  for (std::size_t at = first_new; at < end_new; ++at) {
    if (made[at] != kNoBuffer) emitter_.write(made[at]);
  }
  for (std::size_t i = 0; node.in_place && i < node.output_count; ++i) {
    const bool over = i == 0 || (on_.recipes.entry(id).shared_outputs >> i & 1U) != 0;
    if (over) on_.storages.write(graph_.output(node, i));
  }
  if (on_.recording) on_.recording->forward(id, end_new, part);
  emitter_.compute(Body::Forward, name(node.op), cost_of(node.op));
}

void Forward::stop_before(NodeId node) {
  slots_.clear();
  if (on_.facts.is_wanted(node)) save(node, slots_);
}

// Of a parameter. A recomputation saves a detached tensor (torch/utils/checkpoint.py, pack_hook), a product with a
// weight that is turned the view that it is given (x @ weight.T; transformers: integrations/moe.py), and so does
// whatever is given a part of a parameter, such as one expert's weight.
bool Forward::saves_memory_of_now(const Node& node, TensorId tensor) const {
  if (!on_.runtime.moves_parameters()) return false;
  const bool part = graph_.tensor(tensor).producer != kNone;
  return part || is_turned(graph_, node, tensor) || (detaches_ && graph_.tensor(tensor).requires_grad);
}

void Forward::save(NodeId id, const std::vector<BufferId>& made) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = on_.recipes.slots(id);
  std::size_t index = on_.recipes.saved_index(id);
  for (const Saved& item : on_.recipes.saved(id)) {
    BufferId buffer = kNoBuffer;
    if (item.kind == Saved::Kind::Extra) {
      for (std::size_t at = 0; at < slots.size(); ++at) {
        if (slots[at].kind == SlotKind::Extra && slots[at].index == item.index) buffer = made[at];
      }
    } else {
      const TensorId tensor =
          item.kind == Saved::Kind::Input ? graph_.input(node, item.index) : graph_.output(node, item.index);
      const Storage& storage = graph_.storage_of(tensor);
      if (storage.parameter == kNone && storage.buffer == kNone) buffer = on_.storages.of(tensor);
      if (storage.parameter != kNone && saves_memory_of_now(node, tensor)) {
        buffer = on_.runtime.place(storage.parameter).buffer;
      }
    }
    if (on_.recording) on_.recording->save(item, id, index, buffer);
    on_.storages.save(index++, buffer);
  }
}

}  // namespace dsplan
