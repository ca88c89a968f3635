#include "planner/lower/autograd/backward.h"

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "planner/lower/eager.h"

namespace dsplan {

void Backward::from_loss() {
  emitter_.at(Pass::Backward);
  gradients_.begin();
  // A variable of torch.autograd.backward, until it returns.
  const Variable ones =
      Eager(emitter_).empty(graph_.bytes(graph_.loss), graph_.tensor(graph_.loss).dtype,
                            {Role::Temporaries, "gradient of the loss", "torch/autograd/__init__.py, _make_grads"});
  Work ones_like(emitter_);
  ones_like.read(on_.storages.of(graph_.loss)).write(ones);
  Gradient& gradient = gradients_.of(graph_.loss);
  gradient = {ones.share().hand_over(), true};
  if (on_.recording) {
    gradient.value = on_.recording->gradient({on_.recording->value_of(graph_.loss)}, gradient.buffer);
  }
  ones_like.run(Body::LossSeed, "ones_like");
  walk();
  emitter_.at(Pass::Backward);
  on_.runtime.exit(kNone, Pass::Backward);
}

void Backward::from_outputs(BufferId seed) {
  emitter_.at(Pass::Backward);
  gradients_.begin();
  for (TensorId output : graph_.outputs) {
    if (!graph_.tensor(output).requires_grad) continue;
    emitter_.retain(seed);
    gradients_.accumulate(output, {seed, false, true});
    if (gradients_.is_leaf(output)) gradients_.arrived(output);
  }
  emitter_.release(seed, Reason::AutogradGraph);
  walk();
  for (Checkpoint& checkpoint : checkpoints_.all()) checkpoints_.forget(checkpoint);
}

void Backward::walk() {
  std::vector<Checkpoint>& checkpoints = checkpoints_.all();
  std::size_t left = checkpoints.size();
  for (auto index = static_cast<std::uint32_t>(graph_.program.size()); index-- > 0;) {
    if (left > 0 && index == checkpoints[left - 1].end && checkpoints[left - 1].reentrant) {
      recomputation_.begin_nested(checkpoints[left - 1]);
    } else if (left > 0 && index == checkpoints[left - 1].begin) {
      recomputation_.end_nested(checkpoints[--left]);
    }
    const Instruction& instruction = graph_.program[index];
    if (instruction.kind == Instruction::Kind::Run) {
      run(instruction.node());
    } else if (instruction.kind == Instruction::Kind::Exit && on_.facts.has_gradient(instruction.module())) {
      enter_module(instruction.module());
    } else if (instruction.kind == Instruction::Kind::Enter && on_.facts.has_gradient(instruction.module())) {
      leave_module(instruction.module());
    }
  }
  if (on_.packed) on_.packed->backward_ends();
}

void Backward::enter_module(ModuleId module) {
  emitter_.at(Pass::Backward, module);
  emitter_.enter(module);
  on_.runtime.enter(module, Pass::Backward);
}

void Backward::leave_module(ModuleId module) {
  emitter_.exit(module);
  emitter_.at(Pass::Backward, on_.facts.caller(module));
  if (on_.runtime.leave) on_.runtime.leave(module);
  if (on_.facts.backward_ends(module)) on_.runtime.exit(module, Pass::Backward);
  gradients_.leave_module(module);
}

namespace {

std::vector<NodeId> first_readers_of(const Graph& graph, const GraphFacts& facts) {
  std::vector<NodeId> readers;
  for (const TensorId leaf : graph.leaves) {
    const auto reads = [&](const Instruction& one) {
      if (one.kind != Instruction::Kind::Run || !facts.is_wanted(one.node())) return false;
      const std::span<const TensorId> in = graph.in(graph.node(one.node()));
      return std::find(in.begin(), in.end(), leaf) != in.end();
    };
    const auto first = std::find_if(graph.program.begin(), graph.program.end(), reads);
    NodeId reader = kNone;
    if (first != graph.program.end()) reader = first->node();
    readers.push_back(reader);
  }
  return readers;
}

bool is_reentrant(const Checkpoint* checkpoint) { return checkpoint != nullptr && checkpoint->reentrant; }

}  // namespace

// AccumulateGrad comes before all other nodes: what a leaf's last reader (`has_run`) gave to another as well is not the
// leaf's own yet, and is cloned. Through a reentrant checkpoint or a wrapped module it comes later: when `node`, its
// producer, is reached, every use has run.
void Backward::take_leaf_gradients(NodeId node, bool has_run) {
  if (has_run && is_reentrant(checkpoints_.of(node))) return;
  if (first_readers_.empty()) first_readers_ = first_readers_of(graph_, on_.facts);
  for (std::size_t at = 0; at < graph_.leaves.size(); ++at) {
    const TensorId leaf = graph_.leaves[at];
    const NodeId producer = graph_.tensor(leaf).producer;
    const NodeId when = has_run ? first_readers_[at] : producer;
    Gradient& slot = gradients_.of(leaf);
    if (when != node || slot.buffer == kNoBuffer) continue;
    if (has_run && gradients_.left_through(graph_.node(node), leaf) != kNone) continue;
    const BufferId taken = gradients_.take_or_clone(leaf, std::exchange(slot, {})).buffer;
    emitter_.mark_scratch(taken);  // Nobody reads it.
    Checkpoint* checkpoint = producer == kNone ? nullptr : checkpoints_.of(producer);
    if (is_reentrant(checkpoint)) {
      checkpoint->incoming.push_back(taken);  // A leaf of the graph within, which goes with it.
    } else {
      on_.storages.hold_until_loss_goes(taken);
    }
  }
}

void Backward::run(NodeId id) {
  const Node& node = graph_.node(id);
  if (!graph_.leaves.empty()) take_leaf_gradients(id, false);
  if (!node.requires_grad || !gradients_.came_for_outputs_of(node)) return;
  Checkpoint* checkpoint = checkpoints_.of(id);
  if (is_reentrant(checkpoint)) checkpoint = nullptr;  // Its node has run.
  if (checkpoint != nullptr && !on_.recipes.saved(id).empty()) recomputation_.ask(*checkpoint, id);
  if (on_.packed) on_.packed->unpack(id);
  incoming_.clear();
  for (TensorId out : graph_.out(node)) incoming_.push_back(gradients_.of(out));
  run_recipe(id);
  // What is passed on keeps a reference of its own; then the function's arguments die.
  for (TensorId out : graph_.out(node)) gradients_.of(out) = {};
  const RecipeBook::Entry& entry = on_.recipes.entry(id);
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if ((entry.passes >> i & 1U) != 0) emitter_.retain(incoming_[entry.passes_own ? i : 0].buffer);
  }
  for (const Gradient& gradient : incoming_) {
    if (gradient.buffer != kNoBuffer) emitter_.release(gradient.buffer, Reason::AutogradGraph);
  }
  if (entry.hands_out != 0 || entry.overwrites != 0) take_saved_gradients(id);
  on_.storages.release_saved(id);
  if (on_.packed) on_.packed->returns();
  if (checkpoint != nullptr) recomputation_.has_run(*checkpoint, id);
  if (checkpoint != nullptr && checkpoint->first_saver == id) checkpoints_.forget(*checkpoint);
  deliver(id);
  if (!graph_.leaves.empty()) take_leaf_gradients(id, true);
}

namespace {

// What a recomputation or a hook brought back is the function's alone; other saved tensors are released later.
bool is_handed(const TapeContext& on, const Checkpoint* checkpoint, NodeId node) {
  if (checkpoint != nullptr) return !checkpoint->reentrant;
  return on.packed && on.packed->concerns(node);
}

}  // namespace

void Backward::run_recipe(NodeId id) {
  const std::span<const Slot> slots = on_.recipes.slots(id);
  slots_.assign(slots.size(), kNoBuffer);
  if (on_.recording) on_.recording->begin_operator(slots.size());
  std::uint8_t part = 0;
  std::size_t first_new = 0;  // Slots are numbered in the order in which they are made.
  std::size_t end_new = 0;
  bool returned = false;
  for (const RecipeStep& step : on_.recipes.backward(id)) {
    if (step.kind == RecipeStep::Kind::Make) {
      make_slot(id, step.slot);
      end_new = step.slot + 1U;
    } else if (step.kind == RecipeStep::Kind::Kernel) {
      launch(id, first_new, end_new, part++, !returned);
      first_new = end_new;
    } else if (step.kind == RecipeStep::Kind::Return) {
      returned = true;
      if (is_handed(on_, checkpoints_.of(id), id)) on_.storages.release_saved(id);
    } else if (step.kind == RecipeStep::Kind::AllReduce) {
      on_.all_reduce(step.slot == kGivenSlot ? incoming_[0].buffer : slots_[step.slot]);
    } else {
      emitter_.release(slots_[step.slot], Reason::AutogradGraph);
      slots_[step.slot] = kNoBuffer;
    }
  }
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind != SlotKind::Temporary || slots_[at] == kNoBuffer) continue;
    emitter_.release(std::exchange(slots_[at], kNoBuffer), Reason::AutogradGraph);
  }
}

void Backward::make_slot(NodeId id, std::size_t at) {
  const Node& node = graph_.node(id);
  const Slot& slot = on_.recipes.slots(id)[at];
  ParameterId parameter = kNone;
  if (slot.kind == SlotKind::Gradient) parameter = graph_.storage_of(graph_.input(node, slot.index)).parameter;
  const What what = parameter == kNone ? What{Role::Temporaries, name(node.op)} : What{Role::Gradients, "gradient"};
  slots_[at] = emitter_.allocate(slot.bytes, slot.dtype, what, parameter);
  if (slot.kind == SlotKind::Temporary) emitter_.mark_scratch(slots_[at]);
  if (on_.facts.is_loss(id, true)) emitter_.mark_of_loss(slots_[at]);
  if (on_.recording) on_.recording->slot(at, slots_[at]);
}

void Backward::launch(NodeId id, std::size_t first_new, std::size_t end_new, std::uint8_t part, bool inside) {
  const Node& node = graph_.node(id);
  if (on_.workspaces != nullptr) on_.workspaces->before_kernel(graph_, node);
  emitter_.begin();
  for (const Gradient& gradient : incoming_) {
    if (gradient.buffer != kNoBuffer) emitter_.read(gradient.buffer);
  }
  std::size_t index = on_.recipes.saved_index(id);
  for (const Saved& item : on_.recipes.saved(id)) {
    if (!inside) break;  // A sum reads gradients only.
    const BufferId buffer = on_.storages.saved(index++);
    if (buffer != kNoBuffer) {
      emitter_.read(buffer);
    } else if (item.kind == Saved::Kind::Input) {
      on_.storages.read(graph_.input(node, item.index));
    }
  }
  for (std::size_t at = 0; at < first_new && at < slots_.size(); ++at) {
    if (slots_[at] != kNoBuffer) emitter_.read(slots_[at]);
  }
  for (std::size_t at = first_new; at < end_new; ++at) {
    if (slots_[at] != kNoBuffer) emitter_.write(slots_[at]);
  }
  write_over(id);
  if (on_.recording) on_.recording->backward(id, incoming_, end_new, part, inside);
  emitter_.compute(Body::Backward, name(node.op), cost_of(node.op));
}

// What comes in, or was saved, and goes out as a gradient.
void Backward::write_over(NodeId id) {
  const RecipeBook::Entry& entry = on_.recipes.entry(id);
  for (std::size_t i = 0; entry.passes_own && i < incoming_.size(); ++i) {
    if ((entry.passes >> i & 1U) != 0 && incoming_[i].buffer != kNoBuffer) emitter_.write(incoming_[i].buffer);
  }
  if (entry.overwrites == 0) return;
  std::size_t index = on_.recipes.saved_index(id);
  for (const Saved& item : on_.recipes.saved(id)) {
    const BufferId buffer = on_.storages.saved(index++);
    if (item.kind == Saved::Kind::Input && (entry.overwrites >> item.index & 1U) != 0) emitter_.write(buffer);
  }
}

// Gradients that the forward made and saved, handed on as they are, or that backward wrote over what was saved.
void Backward::take_saved_gradients(NodeId id) {
  const RecipeBook::Entry& entry = on_.recipes.entry(id);
  std::size_t index = on_.recipes.saved_index(id);
  for (const Saved& item : on_.recipes.saved(id)) {
    const std::size_t at = index++;
    const std::uint64_t taken = item.kind == Saved::Kind::Input ? entry.overwrites : entry.hands_out;
    if ((taken >> item.index & 1U) == 0) continue;
    const BufferId buffer = on_.storages.saved(at);
    emitter_.retain(buffer);
    handed_out_[item.index] = {buffer, true, false, false, on_.recording ? on_.recording->saved(at) : kNoValue};
  }
}

namespace {

// A part of what was joined along the first dimension that has several elements lies in one piece, and AccumulateGrad
// takes it as it is (accumulate_grad.h, obeys_layout_contract).
bool joins_stretches(const Graph& graph, const Node& node) {
  if (node.op != Op::Cat || node.axis < 0) return false;
  const Shape& made = graph.tensor(graph.output(node)).shape;
  std::int64_t before = 1;
  for (std::int8_t at = 0; at < node.axis; ++at) before *= made.dims[static_cast<std::size_t>(at)];
  return before == 1;
}

}  // namespace

Gradient Backward::gradient_of_input(NodeId id, std::size_t i) {
  const RecipeBook::Entry& entry = on_.recipes.entry(id);
  const std::span<const Slot> slots = on_.recipes.slots(id);
  Gradient gradient;
  if ((entry.passes >> i & 1U) != 0) {
    const Gradient& passed = incoming_[entry.passes_own ? i : 0];
    gradient = {passed.buffer, !entry.passes_part && passed.whole, passed.view, entry.alias && passed.stretch};
    if (passed.whole && joins_stretches(graph_, graph_.node(id))) gradient.stretch = true;
    if (on_.recording) gradient.value = on_.recording->passed(id, i, passed.value);
  }
  if (((entry.hands_out | entry.overwrites) >> i & 1U) != 0) gradient = handed_out_[i];
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind == SlotKind::Gradient && slots[at].index == i && slots_[at] != kNoBuffer) {
      gradient = {slots_[at], true, false, false, on_.recording ? on_.recording->slots()[at] : kNoValue};
    }
  }
  if ((entry.seen_through_view >> i & 1U) != 0) gradient.view = true;
  if ((entry.not_whole >> i & 1U) != 0) gradient.whole = false;
  gradient.empty = (entry.comes_empty >> i & 1U) != 0;
  return gradient;
}

void Backward::hand_on(TensorId input, ModuleId through, const Gradient& gradient) {
  if (through != kNone) {
    gradients_.accumulate_in(through, input, gradient);
  } else {
    gradients_.accumulate(input, gradient);
  }
}

namespace {

// The engine's ready queue is a heap in which AccumulateGrad nodes are equals that come before all others (engine.h,
// CompareNodeTaskTime): of several from one function it returns them as the heap happens to lie. `others`: how many
// nodes became ready before them and wait.
std::vector<std::size_t> as_the_heap_returns(std::size_t leaves, std::size_t others) {
  using Task = std::pair<bool, std::size_t>;
  const auto after = [](const Task& a, const Task& b) { return a.first < b.first; };
  std::priority_queue<Task, std::vector<Task>, decltype(after)> queue(after);
  for (std::size_t k = 0; k < others; ++k) queue.emplace(false, k);
  for (std::size_t k = 0; k < leaves; ++k) queue.emplace(true, k);
  std::vector<std::size_t> order;
  for (; order.size() < leaves; queue.pop()) order.push_back(queue.top().second);
  return order;
}

// Whether another branch has read the function's input before it, as attention has where an MLP stands beside it: in
// backward that branch waits.
bool stands_beside(const Graph& graph, NodeId id) {
  const Tensor& read = graph.tensor(graph.input(graph.node(id), 0));
  if (read.producer == kNone) return false;
  for (const NodeId one : IdRange(read.producer, id)) {
    const Node& node = graph.node(one);
    if (one == read.producer || node.op == Op::Dropout) continue;  // The function's own dropout.
    for (std::size_t k = 0; k < node.input_count; ++k) {
      if (graph.tensor(graph.input(node, k)).storage == read.storage) return true;
    }
  }
  return false;
}

// Of a function's inputs' producers one is ready behind it: the norm, or the dropout, for which the norm waits.
std::size_t ready_with_leaves(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool beside = stands_beside(graph, id);
  const TensorId second = graph.input(node, 1);
  const NodeId maker = graph.tensor(second).producer;
  const bool dropped = maker != kNone && graph.node(maker).op == Op::Dropout;
  const bool taken = graph.tensor(graph.input(node, 0)).requires_grad && (dropped || !beside);
  return (beside ? 1U : 0U) + (taken ? 1U : 0U);
}

bool has_many_leaves(const Node& node) { return node.op == Op::AdaptedLinear || node.op == Op::AdaptedGated; }

}  // namespace

void Backward::deliver(NodeId id) {
  const Node& node = graph_.node(id);
  const RecipeBook::Entry& entry = on_.recipes.entry(id);
  std::array<TensorId, Node::kMostInputs> leaves{};
  std::size_t leaf_count = 0;
  bool first = false;  // Of input 0, where the leaves come before it.
  const auto hand_over = [&](std::size_t i) {
    const Gradient gradient = gradient_of_input(id, i);
    const TensorId input = graph_.input(node, i);
    hand_on(input, gradients_.left_through(node, input), gradient);
  };
  // Otherwise it arrives when it leaves the module.
  const auto arrives = [&](std::size_t i) {
    const TensorId input = graph_.input(node, i);
    return gradients_.is_leaf(input) && gradients_.left_through(node, input) == kNone;
  };
  for (std::size_t k = 0; k < node.input_count; ++k) {
    const std::size_t i = entry.leaves_reversed && k > 0 ? node.input_count - k : k;
    const Gradient gradient = gradient_of_input(id, i);
    if (gradient.buffer == kNoBuffer && !gradient.empty) continue;
    if (i == 0 && entry.leaves_first) {
      first = true;
      continue;
    }
    hand_over(i);
    if (!arrives(i)) continue;
    if (entry.leaves_reversed && i > 0) {
      gradients_.arrived(graph_.input(node, i));  // Behind the transposition of the weight, which is a node of its own.
    } else {
      leaves[leaf_count++] = graph_.input(node, i);
    }
  }
  // Leaves are ready as soon as all their gradients have come.
  if (has_many_leaves(node)) {
    const std::size_t others = ready_with_leaves(graph_, id);
    for (const std::size_t k : as_the_heap_returns(leaf_count, others)) gradients_.arrived(leaves[k]);
    return;
  }
  for (std::size_t k = 0; k < leaf_count; ++k) gradients_.arrived(leaves[k]);
  if (!first) return;
  hand_over(0);
  if (arrives(0)) gradients_.arrived(graph_.input(node, 0));
}

}  // namespace dsplan
