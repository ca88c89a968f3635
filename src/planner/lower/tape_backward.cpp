// The backward half of the tape.
#include <algorithm>

#include "core/error.h"
#include "planner/lower/tape.h"

namespace dsplan {

void Tape::backward() {
  emitter_.at(Pass::Backward);
  std::fill(arrived_.begin(), arrived_.end(), 0);
  // loss.backward() starts from ones_like(loss).
  const BufferId seed = emitter_.allocate(graph_.bytes(graph_.loss), graph_.tensor(graph_.loss).dtype,
                                          Role::Temporaries, "gradient of the loss");
  emitter_.begin();
  emitter_.read(buffer_of(graph_.loss));
  emitter_.write(seed);
  Gradient gradient{seed, true};
  if (records()) gradient.value = record_made(Body::LossSeed, value_of(graph_.loss), seed);
  emitter_.compute("ones_like");
  gradients_[static_cast<std::size_t>(graph_.loss)] = gradient;
  emitter_.retain(seed);  // A variable of torch.autograd.backward, until it returns.
  walk_backward();
  emitter_.release(seed, Reason::PythonFrame);
}

void Tape::backward_from(BufferId seed) {
  emitter_.at(Pass::Backward);
  std::fill(arrived_.begin(), arrived_.end(), 0);
  for (TensorId output : graph_.outputs) {
    if (!graph_.tensor(output).requires_grad) continue;
    emitter_.retain(seed);
    accumulate(output, {seed, false, true});
    if (is_leaf(output)) leaf_arrived(output);
  }
  emitter_.release(seed, Reason::AutogradGraph);
  walk_backward();
  for (Region& region : regions_) leave_closure(region);
}

void Tape::walk_backward() {
  std::size_t region = regions_.size();
  for (auto at = graph_.program.rbegin(); at != graph_.program.rend(); ++at) {
    const auto index = static_cast<std::uint32_t>(graph_.program.rend() - at) - 1;
    if (region > 0 && index == regions_[region - 1].end && regions_[region - 1].reentrant) {
      begin_nested(regions_[region - 1]);
    } else if (region > 0 && index == regions_[region - 1].begin) {
      --region;
      end_nested(regions_[region]);
    }
    if (at->kind == Instruction::Kind::Run) {
      run_backward(at->id);
    } else if (at->kind == Instruction::Kind::Exit && module_has_gradient_[static_cast<std::size_t>(at->id)]) {
      emitter_.at(Pass::Backward, at->id);
      emitter_.enter(at->id);
      runtime_.enter(at->id, Pass::Backward);
    } else if (at->kind == Instruction::Kind::Enter && module_has_gradient_[static_cast<std::size_t>(at->id)]) {
      emitter_.exit(at->id);
      emitter_.at(Pass::Backward, caller(model_.modules[static_cast<std::size_t>(at->id)].parent));
      if (module_ends_[static_cast<std::size_t>(at->id)]) runtime_.exit(at->id, Pass::Backward);
      deliver_pending(at->id);
    }
  }
}

BufferId Tape::loss() { return buffer_of(graph_.loss); }

// With the loss goes the graph, and what its checkpoints still hold.
void Tape::drop_loss() {
  emitter_.release(buffer_of(graph_.loss), Reason::Loop);
  for (BufferId buffer : leaves_) emitter_.release(buffer, Reason::AutogradGraph);
  leaves_.clear();
  for (Region& region : regions_) leave_closure(region);
}

bool Tape::has_gradient(const Node& node) const {
  const std::span<const TensorId> out = graph_.out(node);
  return std::any_of(out.begin(), out.end(),
                     [&](TensorId id) { return gradients_[static_cast<std::size_t>(id)].buffer != kNoBuffer; });
}

void Tape::hold_leaves(NodeId producer) {
  for (TensorId leaf : graph_.leaves) {
    if (graph_.tensor(leaf).producer != producer) continue;
    leaves_.push_back(buffer_of(leaf));
    emitter_.retain(leaves_.back());
  }
}

// Every use has run: the producer comes before them in program order.
void Tape::take_leaf_gradients(NodeId producer) {
  for (TensorId leaf : graph_.leaves) {
    Gradient& slot = gradients_[static_cast<std::size_t>(leaf)];
    if (graph_.tensor(leaf).producer != producer || slot.buffer == kNoBuffer) continue;
    leaves_.push_back(take_or_clone(leaf, std::exchange(slot, {})).buffer);
    emitter_.mark_scratch(leaves_.back());  // Nobody reads it.
  }
}

void Tape::run_backward(NodeId id) {
  const Node& node = graph_.node(id);
  if (!graph_.leaves.empty()) take_leaf_gradients(id);
  if (!node.requires_grad || !has_gradient(node)) return;
  const std::int16_t region = region_of_[static_cast<std::size_t>(id)];
  Region* checkpoint = region >= 0 ? &regions_[static_cast<std::size_t>(region)] : nullptr;
  if (checkpoint != nullptr && !checkpoint->reentrant && !checkpoint->recomputed && !recipes_.saved(id).empty()) {
    recompute(*checkpoint);
  }
  std::vector<Gradient>& incoming = scratch_incoming_;
  incoming.clear();
  for (TensorId out : graph_.out(node)) incoming.push_back(gradients_[static_cast<std::size_t>(out)]);
  std::vector<BufferId>& slots = scratch_slots_;
  run_backward_recipe(id, slots);
  // What is passed on keeps a reference of its own; then the function's arguments die.
  for (TensorId out : graph_.out(node)) gradients_[static_cast<std::size_t>(out)] = {};
  const std::uint64_t passes = recipes_.entry(id).passes;
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if ((passes >> i & 1U) != 0) emitter_.retain(incoming[0].buffer);
  }
  for (const Gradient& gradient : incoming) {
    if (gradient.buffer != kNoBuffer) emitter_.release(gradient.buffer, Reason::AutogradGraph);
  }
  if (recipes_.entry(id).hands_out != 0) take_saved_gradients(id);
  release_saved(id);
  if (checkpoint != nullptr && !checkpoint->reentrant && checkpoint->first_saver == id) leave_closure(*checkpoint);
  deliver(id, slots, incoming);
}

void Tape::run_backward_recipe(NodeId id, std::vector<BufferId>& made) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  made.assign(slots.size(), kNoBuffer);
  if (records()) slot_values_.assign(made.size(), kNoValue);
  std::uint8_t part = 0;
  std::size_t first_new = 0;  // Slots are numbered in the order in which they are made.
  std::size_t end_new = 0;
  bool returned = false;
  for (const RecipeStep& step : recipes_.backward(id)) {
    if (step.kind == RecipeStep::Kind::Make) {
      const Slot& slot = slots[step.slot];
      ParameterId parameter = kNone;
      if (slot.kind == SlotKind::Gradient) parameter = graph_.storage_of(graph_.input(node, slot.index)).parameter;
      const Role role = parameter == kNone ? Role::Temporaries : Role::Gradients;
      made[step.slot] =
          emitter_.allocate(slot.bytes, slot.dtype, role, parameter == kNone ? name(node.op) : "gradient", parameter);
      if (slot.kind == SlotKind::Temporary) emitter_.mark_scratch(made[step.slot]);
      if (is_loss(id, true)) emitter_.mark_of_loss(made[step.slot]);
      if (records()) record_slot(step.slot, made[step.slot]);
      end_new = step.slot + 1U;
    } else if (step.kind == RecipeStep::Kind::Kernel) {
      emit_backward_kernel(id, made, first_new, end_new, part++, !returned);
      first_new = end_new;
    } else if (step.kind == RecipeStep::Kind::Return) {
      // What a recomputation brought back was handed to the function alone; other saved tensors are released later.
      returned = true;
      const std::int16_t region = region_of_[static_cast<std::size_t>(id)];
      if (region >= 0 && !regions_[static_cast<std::size_t>(region)].reentrant) release_saved(id);
    } else if (step.kind == RecipeStep::Kind::AllReduce) {
      all_reduce(step.slot == kGivenSlot ? gradients_[static_cast<std::size_t>(graph_.output(node))].buffer
                                         : made[step.slot]);
    } else {
      emitter_.release(made[step.slot], Reason::AutogradGraph);
      made[step.slot] = kNoBuffer;
    }
  }
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind == SlotKind::Temporary && made[at] != kNoBuffer) {
      emitter_.release(made[at], Reason::AutogradGraph);
      made[at] = kNoBuffer;
    }
  }
}

void Tape::emit_backward_kernel(NodeId id, const std::vector<BufferId>& made, std::size_t first_new,
                                std::size_t end_new, std::uint8_t part, bool inside) {
  const Node& node = graph_.node(id);
  if (workspaces_ != nullptr) workspaces_->before_kernel(node);
  emitter_.begin();
  for (TensorId out : graph_.out(node)) {
    const BufferId gradient = gradients_[static_cast<std::size_t>(out)].buffer;
    if (gradient != kNoBuffer) emitter_.read(gradient);
  }
  std::size_t index = recipes_.saved_index(id);
  for (const Saved& item : recipes_.saved(id)) {
    if (!inside) break;  // A sum reads gradients only.
    const BufferId buffer = saved_[index++];
    if (buffer != kNoBuffer) {
      emitter_.read(buffer);
    } else if (item.kind == Saved::Kind::Input) {
      read_tensor(graph_.input(node, item.index));
    }
  }
  for (std::size_t at = 0; at < first_new && at < made.size(); ++at) {
    if (made[at] != kNoBuffer) emitter_.read(made[at]);
  }
  for (std::size_t at = first_new; at < end_new; ++at) {
    if (made[at] != kNoBuffer) emitter_.write(made[at]);
  }
  if (records()) record_backward(id, end_new, part, inside);
  emitter_.compute(name(node.op));
}

void Tape::all_reduce(BufferId buffer, bool largest) {
  emitter_.begin();
  emitter_.read(buffer);
  emitter_.write(buffer);
  if (records() && largest) emitter_.recording()->largest();
  emitter_.communicate(Collective::AllReduce, emitter_.dtype(buffer), emitter_.size(buffer), TrafficKind::Data,
                       Group::TensorParallel);
}

// Gradients that the forward made and saved: handed on as they are.
void Tape::take_saved_gradients(NodeId id) {
  std::size_t index = recipes_.saved_index(id);
  for (const Saved& item : recipes_.saved(id)) {
    const BufferId buffer = saved_[index++];
    if (item.kind == Saved::Kind::Input || (recipes_.entry(id).hands_out >> item.index & 1U) == 0) continue;
    emitter_.retain(buffer);
    handed_out_[item.index] = buffer;
    if (records()) handed_out_values_[item.index] = saved_values_[index - 1];
  }
}

void Tape::release_saved(NodeId id) {
  std::size_t index = recipes_.saved_index(id);
  for (std::size_t count = recipes_.saved(id).size(); count > 0; --count, ++index) {
    if (saved_[index] == kNoBuffer) continue;
    emitter_.release(saved_[index], Reason::AutogradGraph);
    saved_[index] = kNoBuffer;
  }
}

void Tape::deliver(NodeId id, const std::vector<BufferId>& made, const std::vector<Gradient>& incoming) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  const RecipeBook::Entry& entry = recipes_.entry(id);
  std::array<TensorId, Node::kMostInputs> leaves{};
  std::size_t leaf_count = 0;
  const auto hand_on = [&](TensorId input, const Gradient& gradient) {
    if (const ModuleId module = entered_by(node, input); module != kNone) {
      Pending& pending = pending_of(input, module);
      ++pending.count;
      accumulate_into(pending.gradient, input, gradient);
    } else {
      accumulate(input, gradient);
    }
  };
  Gradient first;  // Of input 0, where the leaves come before it.
  for (std::size_t i = 0; i < node.input_count; ++i) {
    Gradient gradient;
    const bool through_view = (entry.seen_through_view >> i & 1U) != 0;
    if ((entry.passes >> i & 1U) != 0) {
      gradient = {incoming[0].buffer, !entry.passes_part && incoming[0].whole, through_view || incoming[0].view};
      if (records()) gradient.value = record_passed(id, i, incoming[0].value);
    }
    if ((entry.hands_out >> i & 1U) != 0) gradient = {handed_out_[i], true, through_view, handed_out_values_[i]};
    for (std::size_t at = 0; at < slots.size(); ++at) {
      if (slots[at].kind == SlotKind::Gradient && slots[at].index == i && made[at] != kNoBuffer) {
        gradient = {made[at], true, through_view, records() ? slot_values_[at] : kNoValue};
      }
    }
    if (gradient.buffer == kNoBuffer) continue;
    const TensorId input = graph_.input(node, i);
    const bool waits = entered_by(node, input) != kNone;  // It arrives when it leaves the module.
    if (is_leaf(input) && !waits) leaves[leaf_count++] = input;
    if (i == 0 && entry.leaves_first && !is_leaf(input)) {
      first = gradient;
    } else {
      hand_on(input, gradient);
    }
  }
  // Leaves are ready as soon as all their gradients have come.
  for (std::size_t k = 0; k < leaf_count; ++k) {
    leaf_arrived(leaves[entry.leaves_reversed ? leaf_count - 1 - k : k]);
  }
  if (first.buffer != kNoBuffer) hand_on(graph_.input(node, 0), first);
}

bool Tape::is_leaf(TensorId tensor) const {
  if (is_parameter(tensor)) return true;
  return nested_ != nullptr &&
         std::find(nested_->externals.begin(), nested_->externals.end(), tensor) != nested_->externals.end();
}

// One of the gradients that a leaf waits for has come.
void Tape::leaf_arrived(TensorId tensor) {
  if (nested_ == nullptr) {
    const auto parameter = static_cast<std::size_t>(graph_.storage_of(tensor).parameter);
    if (++arrived_[parameter] == uses_[parameter]) ready(tensor);  // A tied weight waits for its last use.
    return;
  }
  if (--nested_uses_[static_cast<std::size_t>(tensor)] == 0) ready(tensor);
}

// The module through whose wrapped input a gradient of `node`'s input leaves; kNone if it lies inside.
ModuleId Tape::entered_by(const Node& node, TensorId input) const {
  const Tensor& tensor = graph_.tensor(input);
  const ModuleId module = node.module == kNone ? kNone : runtime_.wraps_input(node.module);
  if (module == kNone || tensor.producer == kNone) return kNone;
  // What the module's own children make has not come in from outside.
  return lies_in(graph_.node(tensor.producer).module, module) ? kNone : module;
}

Tape::Pending& Tape::pending_of(TensorId tensor, ModuleId module) {
  for (Pending& pending : pending_) {
    if (pending.tensor == tensor && pending.module == module) return pending;
  }
  pending_.push_back({tensor, module, {}, 0});
  return pending_.back();
}

void Tape::deliver_pending(ModuleId module) {
  for (const Pending& pending : pending_) {
    if (pending.module != module) continue;
    accumulate(pending.tensor, pending.gradient);
    if (!is_leaf(pending.tensor)) continue;
    for (std::int32_t k = 0; k < pending.count; ++k) leaf_arrived(pending.tensor);
  }
  std::erase_if(pending_, [module](const Pending& pending) { return pending.module == module; });
}

void Tape::accumulate(TensorId tensor, Gradient gradient) {
  accumulate_into(gradients_[static_cast<std::size_t>(tensor)], tensor, gradient);
}

void Tape::accumulate_into(Gradient& held, TensorId tensor, Gradient gradient) {
  if (held.buffer == kNoBuffer) {
    held = gradient;
    return;
  }
  const bool in_place = held.whole && !held.view && emitter_.references(held.buffer) == 1;
  const ParameterId parameter = graph_.storage_of(tensor).parameter;
  const Role role = parameter == kNone ? Role::Temporaries : Role::Gradients;  // A tied weight's becomes its `.grad`.
  const BufferId target = in_place ? held.buffer
                                   : emitter_.allocate(graph_.bytes(tensor), graph_.tensor(tensor).dtype, role,
                                                       "sum of gradients", parameter);
  if (is_loss(graph_.tensor(tensor).producer, false)) emitter_.mark_of_loss(target);
  emitter_.begin();
  emitter_.read(held.buffer);
  if (gradient.buffer != held.buffer) emitter_.read(gradient.buffer);
  emitter_.write(target);
  Gradient sum{target, true};
  if (records()) record_sum(sum, held.value, gradient.value);
  emitter_.compute("add");
  if (!in_place) emitter_.release(held.buffer, Reason::AutogradGraph);
  emitter_.release(gradient.buffer, Reason::AutogradGraph);
  held = sum;
}

// AccumulateGrad steals only what nobody else owns and what fills its storage; otherwise it clones (accumulate_grad.h).
Tape::Gradient Tape::take_or_clone(TensorId tensor, Gradient gradient) {
  if (gradient.whole && emitter_.references(gradient.buffer) == 1)
    return {gradient.buffer, true, false, gradient.value};
  const ParameterId parameter = graph_.storage_of(tensor).parameter;
  const BufferId clone =
      emitter_.allocate(graph_.bytes(tensor), graph_.tensor(tensor).dtype,
                        parameter == kNone ? Role::Temporaries : Role::Gradients, "gradient", parameter);
  emitter_.begin();
  emitter_.read(gradient.buffer);
  emitter_.write(clone);
  const ValueId value = records() ? record_made(Body::CloneGradient, gradient.value, clone) : kNoValue;
  emitter_.compute("clone");
  emitter_.release(gradient.buffer, Reason::AutogradGraph);
  return {clone, true, false, value};
}

void Tape::ready(TensorId tensor) {
  Gradient& slot = gradients_[static_cast<std::size_t>(tensor)];
  const bool given = nested_ != nullptr && std::find(nested_->arguments.begin(), nested_->arguments.end(), tensor) !=
                                               nested_->arguments.end();
  const Gradient arrived = std::exchange(slot, {});
  if (is_parameter(tensor) && !given) {
    const ParameterId parameter = graph_.storage_of(tensor).parameter;
    const Gradient taken = runtime_.holds_gradient(parameter) ? arrived : take_or_clone(tensor, arrived);
    if (records()) record_ready(parameter, taken.value);
    runtime_.gradient_ready(parameter, taken.buffer);
  } else {
    slot = take_or_clone(tensor, arrived);  // `.grad` of a checkpoint's detached input, until its node returns it.
  }
}

}  // namespace dsplan
