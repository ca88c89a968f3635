#include "planner/lower/autograd/tape_recording.h"

#include "core/error.h"
#include "planner/lower/autograd/tape_context.h"

namespace dsplan {

TapeRecording::TapeRecording(const GraphFacts& facts, Storages& storages, const TrainingRuntime& runtime,
                             Emitter& emitter, Recording& recording)
    : facts_(facts),
      graph_(facts.graph()),
      storages_(storages),
      runtime_(runtime),
      emitter_(emitter),
      recording_(recording),
      values_(graph_.tensors.size(), kNoValue),
      saved_(facts.recipes().saved_count(), kNoValue) {}

ValueId TapeRecording::value_of(TensorId tensor) {
  const Storage& storage = graph_.storage_of(tensor);
  const bool own = graph_.tensor(tensor).producer == kNone;
  if (own && storage.parameter != kNone) {
    const ParameterPlace place = runtime_.place(storage.parameter);
    return recording_.placed(place.buffer, place.offset, tensor);
  }
  if (own && storage.buffer != kNone) return recording_.placed(storages_.of(tensor), Bytes(0), tensor);
  const ValueId value = values_[tensor];
  DSPLAN_CHECK(value != kNoValue, "a tensor is read that nothing has made");
  return value;
}

void TapeRecording::place(TensorId tensor, BufferId buffer) {
  values_[tensor] = recording_.placed(buffer, Bytes(0), tensor);
}

void TapeRecording::batch(std::size_t at, TensorId input, BufferId buffer) {
  place(input, buffer);
  const MadeValue made{values_[input], SlotKind::Output, 0};
  recording_.on_values(kNone, static_cast<std::uint8_t>(at), {}, {&made, 1});
}

void TapeRecording::bring_back(NodeId node, const std::vector<ValueId>& slots) {
  slots_ = slots;
  outputs(node);
}

// The outputs of an operator that has run are its slots.
void TapeRecording::outputs(NodeId id) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = facts_.recipes().slots(id);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind != SlotKind::Output || slots_[at] == kNoValue) continue;
    values_[graph_.output(node, slots[at].index)] = slots_[at];
  }
}

void TapeRecording::inputs(const Node& node) {
  scratch_.clear();
  for (TensorId input : graph_.in(node)) scratch_.push_back(value_of(input));
}

void TapeRecording::view(NodeId id) {
  const Node& node = graph_.node(id);
  inputs(node);
  std::vector<MadeValue> made;
  for (std::size_t i = 0; i < node.output_count; ++i) {
    made.push_back({recording_.viewed(), SlotKind::Output, static_cast<std::uint8_t>(i)});
    values_[graph_.output(node, i)] = made.back().value;
  }
  recording_.silent(Body::ForwardView, id, 0, scratch_, made, kNone, emitter_.next_event());
}

// The slots of forward come first; temporaries are numbered by call.
std::vector<MadeValue> TapeRecording::made(NodeId id, std::size_t end, bool backward) const {
  const std::span<const Slot> slots = facts_.recipes().slots(id);
  std::size_t begin = 0;
  for (const RecipeStep& step : facts_.recipes().forward(id)) {
    if (backward && step.kind == RecipeStep::Kind::Make) begin = step.slot + 1U;
  }
  std::vector<MadeValue> made;
  std::uint8_t temporaries = 0;
  for (std::size_t at = begin; at < end; ++at) {
    const bool temporary = slots[at].kind == SlotKind::Temporary;
    const std::uint8_t index = temporary ? temporaries++ : slots[at].index;
    if (slots_[at] != kNoValue) made.push_back({slots_[at], slots[at].kind, index});
  }
  return made;
}

void TapeRecording::forward(NodeId id, std::size_t end, std::uint8_t part) {
  const Node& node = graph_.node(id);
  inputs(node);
  std::vector<MadeValue> results = made(id, end, false);
  if (node.in_place) {
    const TensorId out = graph_.output(node);
    results.push_back({recording_.made_in(storages_.of(out)), SlotKind::Output, 0});
    values_[out] = results.back().value;
  }
  recording_.on_values(id, part, scratch_, results);
  outputs(id);
}

// A parameter that is not held is read where it lies when backward asks for it.
void TapeRecording::save(const Saved& item, NodeId id, std::size_t index, BufferId buffer) {
  saved_[index] = kNoValue;
  if (buffer == kNoBuffer) return;
  const Node& node = graph_.node(id);
  if (item.kind == Saved::Kind::Input) saved_[index] = value_of(graph_.input(node, item.index));
  if (item.kind == Saved::Kind::Output) saved_[index] = value_of(graph_.output(node, item.index));
  if (item.kind != Saved::Kind::Extra) return;
  const std::span<const Slot> slots = facts_.recipes().slots(id);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind == SlotKind::Extra && slots[at].index == item.index) saved_[index] = slots_[at];
  }
}

void TapeRecording::backward(NodeId id, std::span<const Gradient> incoming, std::size_t end, std::uint8_t part,
                             bool inside) {
  const Node& node = graph_.node(id);
  scratch_.clear();
  for (const Gradient& gradient : incoming) scratch_.push_back(gradient.value);
  std::size_t index = facts_.recipes().saved_index(id);
  for (const Saved& item : facts_.recipes().saved(id)) {
    ValueId value = inside ? saved_[index] : kNoValue;
    if (inside && value == kNoValue && item.kind == Saved::Kind::Input)
      value = value_of(graph_.input(node, item.index));
    scratch_.push_back(value);
    ++index;
  }
  recording_.on_values(id, part, scratch_, made(id, end, true));
}

ValueId TapeRecording::passed(NodeId id, std::size_t input, ValueId gradient) {
  const MadeValue made{recording_.viewed(), SlotKind::Gradient, static_cast<std::uint8_t>(input)};
  recording_.silent(Body::BackwardView, id, static_cast<std::uint8_t>(input), {&gradient, 1}, {&made, 1}, kNone,
                    emitter_.next_event());
  return made.value;
}

ValueId TapeRecording::gradient(std::initializer_list<ValueId> from, BufferId buffer) {
  const MadeValue made{recording_.made_in(buffer), SlotKind::Gradient, 0};
  recording_.on_values(kNone, 0, {from.begin(), from.size()}, {&made, 1});
  return made.value;
}

void TapeRecording::ready(ParameterId parameter, ValueId gradient) {
  recording_.silent(Body::GradientReady, kNone, 0, {&gradient, 1}, {}, parameter, emitter_.next_event());
}

void TapeRecording::loss() {
  if (graph_.loss != kNone) recording_.loss(value_of(graph_.loss), emitter_.next_event());
}

}  // namespace dsplan
