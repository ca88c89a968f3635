// The backward half of the tape.
#include <algorithm>

#include "core/error.h"
#include "planner/lowering/tape.h"

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
  emitter_.compute("ones_like");
  gradients_[static_cast<std::size_t>(graph_.loss)] = {seed, true};
  for (auto at = graph_.program.rbegin(); at != graph_.program.rend(); ++at) {
    if (at->kind == Instruction::Kind::Run) {
      run_backward(at->id);
    } else if (at->kind == Instruction::Kind::Exit && module_has_gradient_[static_cast<std::size_t>(at->id)]) {
      emitter_.at(Pass::Backward, at->id);
      emitter_.enter(at->id);
      runtime_.enter(at->id, Pass::Backward);
    } else if (at->kind == Instruction::Kind::Enter && module_has_gradient_[static_cast<std::size_t>(at->id)]) {
      emitter_.exit(at->id);
      runtime_.exit(at->id, Pass::Backward);
      emitter_.at(Pass::Backward, model_.modules[static_cast<std::size_t>(at->id)].parent);
      deliver_pending();
    }
  }
}

void Tape::drop_loss() { emitter_.release(buffer_of(graph_.loss), Reason::Loop); }

bool Tape::has_gradient(const Node& node) const {
  return std::any_of(node.out().begin(), node.out().end(),
                     [&](TensorId out) { return gradients_[static_cast<std::size_t>(out)].buffer != kNoBuffer; });
}

void Tape::run_backward(NodeId id) {
  const Node& node = graph_.node(id);
  if (!node.requires_grad || !has_gradient(node)) return;
  const std::int16_t region = region_of_[static_cast<std::size_t>(id)];
  if (region >= 0 && !recipes_.saved(id).empty() && !regions_[static_cast<std::size_t>(region)].recomputed) {
    recompute(regions_[static_cast<std::size_t>(region)]);
  }
  std::vector<Gradient>& incoming = scratch_incoming_;
  incoming.clear();
  for (TensorId out : node.out()) incoming.push_back(gradients_[static_cast<std::size_t>(out)]);
  std::vector<BufferId>& slots = scratch_slots_;
  run_backward_recipe(id, slots);
  // What is passed on keeps a reference of its own; then the function's arguments die.
  for (TensorId out : node.out()) gradients_[static_cast<std::size_t>(out)] = {};
  const std::uint8_t passes = recipes_.entry(id).passes;
  for (std::size_t i = 0; i < node.input_count; ++i) {
    if ((passes >> i & 1U) != 0) emitter_.retain(incoming[0].buffer);
  }
  for (const Gradient& gradient : incoming) {
    if (gradient.buffer != kNoBuffer) emitter_.release(gradient.buffer, Reason::AutogradGraph);
  }
  release_saved(id);
  if (region >= 0 && regions_[static_cast<std::size_t>(region)].first_saver == id) {
    for (TensorId tensor : regions_[static_cast<std::size_t>(region)].closure) {
      emitter_.release(buffer_of(tensor), Reason::CheckpointFrame);
    }
  }
  deliver(id, slots, incoming);
}

void Tape::run_backward_recipe(NodeId id, std::vector<BufferId>& made) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  made.assign(slots.size(), kNoBuffer);
  std::size_t first_new = 0;  // Slots are numbered in the order in which they are made.
  std::size_t end_new = 0;
  bool returned = false;
  for (const RecipeStep& step : recipes_.backward(id)) {
    if (step.kind == RecipeStep::Kind::Make) {
      const Slot& slot = slots[step.slot];
      ParameterId parameter = kNone;
      if (slot.kind == SlotKind::Gradient) parameter = graph_.storage_of(node.inputs[slot.index]).parameter;
      const Role role = parameter == kNone ? Role::Temporaries : Role::Gradients;
      made[step.slot] =
          emitter_.allocate(slot.bytes, slot.dtype, role, parameter == kNone ? name(node.op) : "gradient", parameter);
      if (slot.kind == SlotKind::Temporary) emitter_.mark_scratch(made[step.slot]);
      end_new = step.slot + 1U;
    } else if (step.kind == RecipeStep::Kind::Kernel) {
      emit_backward_kernel(id, made, first_new, end_new, !returned);
      first_new = end_new;
    } else if (step.kind == RecipeStep::Kind::Return) {
      // What a recomputation brought back was handed to the function alone; other saved tensors are released later.
      returned = true;
      if (region_of_[static_cast<std::size_t>(id)] >= 0) release_saved(id);
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
                                std::size_t end_new, bool inside) {
  const Node& node = graph_.node(id);
  emitter_.begin();
  for (TensorId out : node.out()) {
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
      read_tensor(node.inputs[item.index]);
    }
  }
  for (std::size_t at = 0; at < first_new && at < made.size(); ++at) {
    if (made[at] != kNoBuffer) emitter_.read(made[at]);
  }
  for (std::size_t at = first_new; at < end_new; ++at) {
    if (made[at] != kNoBuffer) emitter_.write(made[at]);
  }
  emitter_.compute(name(node.op));
}

void Tape::release_saved(NodeId id) {
  std::size_t index = recipes_.saved_index(id);
  for (std::size_t count = recipes_.saved(id).size(); count > 0; --count, ++index) {
    if (saved_[index] == kNoBuffer) continue;
    emitter_.release(saved_[index], Reason::AutogradGraph);
    saved_[index] = kNoBuffer;
  }
}

namespace {

// A Linear works on views with two dimensions, and nn.functional.linear on weight.t(): gradients come back through
// them.
bool is_seen_through_view(const Node& node, std::size_t input) {
  if (node.op != Op::Linear || node.product == Product::Function) return false;
  return input == 0 || (input == 1 && node.product == Product::Transposed);
}

}  // namespace

void Tape::deliver(NodeId id, const std::vector<BufferId>& made, const std::vector<Gradient>& incoming) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  const std::uint8_t passes = recipes_.entry(id).passes;
  // A concatenation's gradients are slices of the incoming one, a sum's an expanded view: neither may be added to in
  // place.
  const bool whole = node.op != Op::Cat && node.op != Op::SumDim;
  std::array<TensorId, Node::kMostInputs> parameters{};
  std::size_t parameter_count = 0;
  for (std::size_t i = 0; i < node.input_count; ++i) {
    Gradient gradient;
    if ((passes >> i & 1U) != 0) {
      gradient = {incoming[0].buffer, whole && incoming[0].whole, node.op == Op::View || incoming[0].view};
    }
    for (std::size_t at = 0; at < slots.size(); ++at) {
      if (slots[at].kind == SlotKind::Gradient && slots[at].index == i && made[at] != kNoBuffer) {
        gradient = {made[at], true, is_seen_through_view(node, i)};
      }
    }
    if (gradient.buffer == kNoBuffer) continue;
    const TensorId input = node.inputs[i];
    if (graph_.storage_of(input).parameter != kNone) parameters[parameter_count++] = input;
    if (enters_module(node, input)) {
      accumulate_into(pending_of(input), input, gradient);
    } else {
      accumulate(input, gradient);
    }
  }
  // Leaves are ready as soon as all their gradients have come. A product's bias comes before its weight, whose
  // transposition is a node of its own; a norm's weight comes before its bias, and so does that of a Python function.
  const bool reverse = node.op == Op::Linear && node.product != Product::Function;
  for (std::size_t k = 0; k < parameter_count; ++k) ready(parameters[reverse ? parameter_count - 1 - k : k]);
}

bool Tape::enters_module(const Node& node, TensorId input) const {
  const Tensor& tensor = graph_.tensor(input);
  if (!runtime_.wraps_input(node.module) || tensor.producer == kNone) return false;
  // What the module's own children make has not come in from outside.
  for (ModuleId module = graph_.node(tensor.producer).module; module != kNone;
       module = model_.modules[static_cast<std::size_t>(module)].parent) {
    if (module == node.module) return false;
  }
  return true;
}

Tape::Gradient& Tape::pending_of(TensorId tensor) {
  for (Pending& pending : pending_) {
    if (pending.tensor == tensor) return pending.gradient;
  }
  pending_.push_back({tensor, {}});
  return pending_.back().gradient;
}

void Tape::deliver_pending() {
  for (const Pending& pending : pending_) accumulate(pending.tensor, pending.gradient);
  pending_.clear();
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
  const BufferId target = in_place
                              ? held.buffer
                              : emitter_.allocate(graph_.bytes(tensor), graph_.tensor(tensor).dtype, Role::Temporaries,
                                                  "sum of gradients", graph_.storage_of(tensor).parameter);
  emitter_.begin();
  emitter_.read(held.buffer);
  if (gradient.buffer != held.buffer) emitter_.read(gradient.buffer);
  emitter_.write(target);
  emitter_.compute("add");
  if (!in_place) emitter_.release(held.buffer, Reason::AutogradGraph);
  emitter_.release(gradient.buffer, Reason::AutogradGraph);
  held = {target, true};
}

void Tape::ready(TensorId tensor) {
  const ParameterId parameter = graph_.storage_of(tensor).parameter;
  const auto at = static_cast<std::size_t>(parameter);
  if (++arrived_[at] < uses_[at]) return;  // A tied weight waits for its last use.
  Gradient gradient = gradients_[static_cast<std::size_t>(tensor)];
  gradients_[static_cast<std::size_t>(tensor)] = {};
  if (!gradient.whole || emitter_.references(gradient.buffer) > 1) {
    // AccumulateGrad steals only what nobody else owns; otherwise it clones (accumulate_grad.h).
    const BufferId clone =
        emitter_.allocate(graph_.bytes(tensor), graph_.tensor(tensor).dtype, Role::Gradients, "gradient", parameter);
    emitter_.begin();
    emitter_.read(gradient.buffer);
    emitter_.write(clone);
    emitter_.compute("clone");
    emitter_.release(gradient.buffer, Reason::AutogradGraph);
    gradient.buffer = clone;
  }
  runtime_.gradient_ready(parameter, gradient.buffer);
}

}  // namespace dsplan
