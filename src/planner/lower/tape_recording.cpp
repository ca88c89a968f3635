// What the tape tells an executor (core/program.h): tensors as values, made once; operators as tasks on them.
#include "core/error.h"
#include "planner/lower/tape.h"

namespace dsplan {

// Parameters and the model's own buffers are wherever they are now; all else is what was made last.
ValueId Tape::value_of(TensorId tensor) {
  const Storage& storage = graph_.storage_of(tensor);
  const bool own = graph_.tensor(tensor).producer == kNone;
  if (own && storage.parameter != kNone) {
    const ParameterPlace place = runtime_.place(storage.parameter);
    return emitter_.recording()->placed(place.buffer, place.offset, tensor);
  }
  if (own && storage.buffer != kNone) return emitter_.recording()->placed(buffer_of(tensor), Bytes(0), tensor);
  const ValueId value = values_[static_cast<std::size_t>(tensor)];
  DSPLAN_CHECK(value != kNoValue, "a tensor is read that nothing has made");
  return value;
}

void Tape::record_batch(std::size_t at, TensorId input, BufferId buffer) {
  const MadeValue made{emitter_.recording()->placed(buffer, Bytes(0), input), SlotKind::Output, 0};
  values_[static_cast<std::size_t>(input)] = made.value;
  emitter_.recording()->task(Body::MakeBatch, kNone, static_cast<std::uint8_t>(at), {}, {&made, 1});
}

void Tape::record_slot(std::size_t slot, BufferId buffer) {
  slot_values_[slot] = emitter_.recording()->made_in(buffer);
}

// The outputs of an operator that has run are its slots.
void Tape::record_outputs(NodeId id) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind != SlotKind::Output || slot_values_[at] == kNoValue) continue;
    values_[static_cast<std::size_t>(graph_.output(node, slots[at].index))] = slot_values_[at];
  }
}

void Tape::record_view(NodeId id) {
  const Node& node = graph_.node(id);
  std::vector<MadeValue> made;
  scratch_values_.clear();
  for (TensorId input : graph_.in(node)) scratch_values_.push_back(value_of(input));
  for (std::size_t i = 0; i < node.output_count; ++i) {
    made.push_back({emitter_.recording()->viewed(), SlotKind::Output, static_cast<std::uint8_t>(i)});
    values_[static_cast<std::size_t>(graph_.output(node, i))] = made.back().value;
  }
  emitter_.recording()->silent(Body::ForwardView, id, 0, scratch_values_, made, kNone, emitter_.next_event());
}

// The slots of forward come first; temporaries are numbered by call.
std::vector<MadeValue> Tape::made_values(NodeId id, std::size_t end, bool backward) const {
  const std::span<const Slot> slots = recipes_.slots(id);
  std::size_t begin = 0;
  for (const RecipeStep& step : recipes_.forward(id)) {
    if (backward && step.kind == RecipeStep::Kind::Make) begin = step.slot + 1U;
  }
  std::vector<MadeValue> made;
  std::uint8_t temporaries = 0;
  for (std::size_t at = begin; at < end; ++at) {
    const bool temporary = slots[at].kind == SlotKind::Temporary;
    const std::uint8_t index = temporary ? temporaries++ : slots[at].index;
    if (slot_values_[at] != kNoValue) made.push_back({slot_values_[at], slots[at].kind, index});
  }
  return made;
}

void Tape::record_forward(NodeId id, std::size_t end, std::uint8_t part) {
  const Node& node = graph_.node(id);
  scratch_values_.clear();
  for (TensorId input : graph_.in(node)) scratch_values_.push_back(value_of(input));
  std::vector<MadeValue> made = made_values(id, end, false);
  if (node.in_place) {
    const TensorId out = graph_.output(node);
    made.push_back({emitter_.recording()->made_in(buffer_of(out)), SlotKind::Output, 0});
    values_[static_cast<std::size_t>(out)] = made.back().value;
  }
  emitter_.recording()->task(Body::Forward, id, part, scratch_values_, made);
  record_outputs(id);
}

// A parameter that is not held is read where it lies when backward asks for it.
void Tape::record_saved(const Saved& item, NodeId id, std::size_t index, BufferId buffer) {
  saved_values_[index] = kNoValue;
  if (buffer == kNoBuffer) return;
  const Node& node = graph_.node(id);
  if (item.kind == Saved::Kind::Input) saved_values_[index] = value_of(graph_.input(node, item.index));
  if (item.kind == Saved::Kind::Output) saved_values_[index] = value_of(graph_.output(node, item.index));
  if (item.kind != Saved::Kind::Extra) return;
  const std::span<const Slot> slots = recipes_.slots(id);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind == SlotKind::Extra && slots[at].index == item.index) saved_values_[index] = slot_values_[at];
  }
}

void Tape::record_backward(NodeId id, std::size_t end, std::uint8_t part, bool inside) {
  const Node& node = graph_.node(id);
  scratch_values_.clear();
  for (TensorId out : graph_.out(node)) scratch_values_.push_back(gradients_[static_cast<std::size_t>(out)].value);
  std::size_t index = recipes_.saved_index(id);
  for (const Saved& item : recipes_.saved(id)) {
    ValueId value = inside ? saved_values_[index] : kNoValue;
    if (inside && value == kNoValue && item.kind == Saved::Kind::Input) {
      value = value_of(graph_.input(node, item.index));
    }
    scratch_values_.push_back(value);
    ++index;
  }
  emitter_.recording()->task(Body::Backward, id, part, scratch_values_, made_values(id, end, true));
}

ValueId Tape::record_passed(NodeId id, std::size_t input, ValueId gradient) {
  const MadeValue made{emitter_.recording()->viewed(), SlotKind::Gradient, static_cast<std::uint8_t>(input)};
  emitter_.recording()->silent(Body::BackwardView, id, static_cast<std::uint8_t>(input), {&gradient, 1}, {&made, 1},
                               kNone, emitter_.next_event());
  return made.value;
}

void Tape::record_sum(Gradient& into, ValueId first, ValueId second) {
  const std::array<ValueId, 2> in{first, second};
  const MadeValue made{emitter_.recording()->made_in(into.buffer), SlotKind::Gradient, 0};
  emitter_.recording()->task(Body::AddGradients, kNone, 0, in, {&made, 1});
  into.value = made.value;
}

ValueId Tape::record_made(Body body, ValueId from, BufferId buffer) {
  const MadeValue made{emitter_.recording()->made_in(buffer), SlotKind::Gradient, 0};
  emitter_.recording()->task(body, kNone, 0, {&from, 1}, {&made, 1});
  return made.value;
}

void Tape::record_ready(ParameterId parameter, ValueId gradient) {
  emitter_.recording()->silent(Body::GradientReady, kNone, 0, {&gradient, 1}, {}, parameter, emitter_.next_event());
}

void Tape::record_loss() {
  if (graph_.loss != kNone) emitter_.recording()->loss(value_of(graph_.loss), emitter_.next_event());
}

}  // namespace dsplan
