#include "planner/lowering/tape.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan {

Tape::Tape(const ModelSpec& model, const Graph& graph, const RecipeBook& recipes, const Checkpointing& checkpointing,
           Emitter& emitter, TrainingRuntime& runtime, std::vector<BufferId> module_buffers)
    : model_(model),
      graph_(graph),
      recipes_(recipes),
      emitter_(emitter),
      runtime_(runtime),
      module_buffers_(std::move(module_buffers)),
      buffers_(graph.storages.size(), kNoBuffer),
      saved_(recipes.saved_count(), kNoBuffer),
      gradients_(graph.tensors.size()),
      uses_(model.parameters.size(), 0),
      arrived_(model.parameters.size(), 0),
      region_of_(graph.nodes.size(), -1),
      module_has_gradient_(model.modules.size(), false) {
  for (std::size_t at = 0; at < graph.storages.size(); ++at) {
    if (graph.storages[at].buffer != kNone) {
      buffers_[at] = module_buffers_[static_cast<std::size_t>(graph.storages[at].buffer)];
    }
  }
  find_regions(checkpointing);
  count_parameter_uses();
}

void Tape::find_regions(const Checkpointing& checkpointing) {
  std::vector<std::uint32_t> begins;
  std::vector<std::uint32_t> ends;
  for (std::uint32_t at = 0; at < graph_.program.size(); ++at) {
    if (graph_.program[at].kind == Instruction::Kind::RegionBegins) begins.push_back(at);
    if (graph_.program[at].kind == Instruction::Kind::RegionEnds) ends.push_back(at);
  }
  for (const CheckpointGroup& group : checkpointing.groups) {
    Region region;
    region.begin = begins.at(static_cast<std::size_t>(group.first));
    region.end = ends.at(static_cast<std::size_t>(group.last));
    const auto id = static_cast<std::int16_t>(regions_.size());
    for (std::uint32_t at = region.begin; at < region.end; ++at) {
      if (graph_.program[at].kind != Instruction::Kind::Run) continue;
      const NodeId node = graph_.program[at].id;
      region_of_[static_cast<std::size_t>(node)] = id;
      if (recipes_.saved(node).empty()) continue;
      if (region.first_saver == kNone) region.first_saver = node;
      region.last_saver = node;
    }
    region.closure = graph_.region_closures[static_cast<std::size_t>(group.first)];
    regions_.push_back(std::move(region));
  }
}

void Tape::count_parameter_uses() {
  for (const Instruction& instruction : graph_.program) {
    if (instruction.kind != Instruction::Kind::Run) continue;
    const Node& node = graph_.node(instruction.id);
    if (!node.requires_grad) continue;
    for (ModuleId module = node.module; module != kNone && !module_has_gradient_[static_cast<std::size_t>(module)];
         module = model_.modules[static_cast<std::size_t>(module)].parent) {
      module_has_gradient_[static_cast<std::size_t>(module)] = true;
    }
    for (TensorId input : node.in()) {
      const ParameterId parameter = graph_.storage_of(input).parameter;
      if (parameter != kNone && graph_.tensor(input).requires_grad) ++uses_[static_cast<std::size_t>(parameter)];
    }
  }
}

void Tape::make_batch() {
  std::vector<BufferId> made;
  for (TensorId input : graph_.batch) {
    made.push_back(emitter_.allocate(graph_.bytes(input), graph_.tensor(input).dtype, Role::Inputs, "batch"));
    emitter_.begin();
    emitter_.write(made.back());
    emitter_.compute("copy batch to device");
    buffer_of(input) = made.back();
  }
  drop_batch();
  batch_ = std::move(made);
}

void Tape::drop_batch() {
  for (BufferId buffer : batch_) emitter_.release(buffer, Reason::Loop);
  batch_.clear();
}

void Tape::forward() {
  emitter_.at(Pass::Forward);
  for (Region& region : regions_) region.recomputed = false;
  std::size_t next = 0;
  std::uint32_t at = 0;
  const auto size = static_cast<std::uint32_t>(graph_.program.size());
  while (at < size) {
    if (next == regions_.size()) {
      run_program(at, size, true);
      break;
    }
    Region& region = regions_[next++];
    run_program(at, region.begin, true);
    for (TensorId tensor : region.closure) emitter_.retain(buffer_of(tensor));
    run_program(region.begin, region.end + 1, false);
    at = region.end + 1;
  }
  emitter_.set_role(buffer_of(graph_.loss), Role::Inputs, "loss");
}

void Tape::run_program(std::uint32_t begin, std::uint32_t end, bool keep_saved) {
  for (std::uint32_t at = begin; at < end; ++at) {
    const Instruction& instruction = graph_.program[at];
    switch (instruction.kind) {
      case Instruction::Kind::Run: run_forward(instruction.id, keep_saved); break;
      case Instruction::Kind::Drop: drop_tensor(instruction.id); break;
      case Instruction::Kind::Enter:
        emitter_.at(emitter_.pass(), instruction.id);
        emitter_.enter(instruction.id);
        runtime_.enter(instruction.id, emitter_.pass());
        break;
      case Instruction::Kind::Exit:
        emitter_.exit(instruction.id);
        runtime_.exit(instruction.id, emitter_.pass());
        emitter_.at(emitter_.pass(), model_.modules[static_cast<std::size_t>(instruction.id)].parent);
        break;
      case Instruction::Kind::RegionBegins:
      case Instruction::Kind::RegionEnds: break;
    }
  }
}

void Tape::drop_tensor(TensorId tensor) {
  if (recomputing_) {
    const auto held = std::find(alive_.begin(), alive_.end(), tensor);
    if (held == alive_.end()) return;  // It came in from outside: the closure's.
    alive_.erase(held);
  }
  emitter_.release(buffer_of(tensor), Reason::PythonFrame);
}

void Tape::read_tensor(TensorId tensor) {
  const ParameterId parameter = graph_.storage_of(tensor).parameter;
  if (parameter == kNone) {
    emitter_.read(buffer_of(tensor));
    return;
  }
  const ParameterPlace place = runtime_.place(parameter);
  emitter_.read(place.buffer, place.offset, place.bytes);
}

void Tape::run_forward(NodeId id, bool keep_saved) {
  const Node& node = graph_.node(id);
  if (node.op == Op::View || node.op == Op::Slice || node.op == Op::Split) {
    for (TensorId out : node.out()) {
      emitter_.retain(buffer_of(out));
      if (recomputing_) alive_.push_back(out);
    }
    return;
  }
  const std::span<const Slot> slots = recipes_.slots(id);
  std::vector<BufferId>& made = scratch_slots_;
  made.assign(slots.size(), kNoBuffer);
  for (const RecipeStep& step : recipes_.forward(id)) {
    if (step.kind == RecipeStep::Kind::Make) {
      const Slot& slot = slots[step.slot];
      const Role role = slot.kind == SlotKind::Temporary ? Role::Temporaries : Role::Activations;
      made[step.slot] = emitter_.allocate(slot.bytes, slot.dtype, role, name(node.op));
      if (node.op == Op::All) emitter_.mark_scratch(made[step.slot]);  // Python reads it, no operator does.
      if (slot.kind == SlotKind::Output) {
        const TensorId out = node.outputs[slot.index];
        buffer_of(out) = made[step.slot];
        if (recomputing_) alive_.push_back(out);
      }
    } else {
      emit_forward_kernel(node, made);
    }
  }
  if (recipes_.entry(id).in_place) {
    emitter_.retain(buffer_of(node.outputs[0]));
    if (recomputing_) alive_.push_back(node.outputs[0]);
  }
  if (keep_saved) save(id, made);
  // By-products belong to the autograd node alone: without one to keep them they die with the operator.
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind != SlotKind::Extra || made[at] == kNoBuffer) continue;
    if (emitter_.references(made[at]) == 1) emitter_.mark_scratch(made[at]);
    emitter_.release(made[at], Reason::LastUse);
  }
}

void Tape::emit_forward_kernel(const Node& node, const std::vector<BufferId>& made) {
  emitter_.begin();
  for (TensorId input : node.in()) read_tensor(input);
  for (BufferId buffer : made) {
    if (buffer != kNoBuffer) emitter_.write(buffer);
  }
  if (node.op == Op::MaskedFillInPlace) emitter_.write(buffer_of(node.outputs[0]));
  emitter_.compute(name(node.op));
}

void Tape::save(NodeId id, const std::vector<BufferId>& made) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  std::size_t index = recipes_.saved_index(id);
  for (const Saved& item : recipes_.saved(id)) {
    BufferId buffer = kNoBuffer;
    if (item.kind == Saved::Kind::Extra) {
      for (std::size_t at = 0; at < slots.size(); ++at) {
        if (slots[at].kind == SlotKind::Extra && slots[at].index == item.index) buffer = made[at];
      }
    } else {
      const TensorId tensor = item.kind == Saved::Kind::Input ? node.inputs[item.index] : node.outputs[item.index];
      const Storage& storage = graph_.storage_of(tensor);
      if (storage.parameter == kNone && storage.buffer == kNone) buffer = buffer_of(tensor);
    }
    if (buffer != kNoBuffer) emitter_.retain(buffer);
    saved_[index++] = buffer;
  }
}

void Tape::recompute(Region& region) {
  region.recomputed = true;
  const Pass before = emitter_.pass();
  const ModuleId module = emitter_.module();
  emitter_.at(Pass::Recompute, module);
  recomputing_ = true;
  alive_.clear();
  entered_.clear();
  // What enters the region is the closure's; the region's own Drops concern only what it makes itself.
  for (std::uint32_t at = region.begin; at <= region.end; ++at) {
    const Instruction& instruction = graph_.program[at];
    const bool last = instruction.kind == Instruction::Kind::Run && instruction.id == region.last_saver;
    if (instruction.kind == Instruction::Kind::Enter) entered_.push_back(instruction.id);
    if (instruction.kind == Instruction::Kind::Exit) entered_.pop_back();
    if (last && !recipes_.entry(instruction.id).saves_after_kernel) {
      scratch_slots_.clear();
      save(instruction.id, scratch_slots_);  // Only inputs: the kernel never starts.
      break;
    }
    run_program(at, at + 1, true);
    if (last) break;
  }
  while (!alive_.empty()) {  // The frames are unwound.
    const TensorId tensor = alive_.back();
    alive_.pop_back();
    emitter_.release(buffer_of(tensor), Reason::PythonFrame);
  }
  for (auto at = entered_.rbegin(); at != entered_.rend(); ++at) emitter_.exit(*at, true);
  recomputing_ = false;
  emitter_.at(before, module);
}

}  // namespace dsplan
