#include "planner/lower/tape.h"

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
      wanted_(graph.tensors.size(), false),
      uses_(model.parameters.size(), 0),
      arrived_(model.parameters.size(), 0),
      nested_uses_(graph.tensors.size(), 0),
      read_(graph.storages.size(), false),
      region_of_(graph.nodes.size(), -1),
      module_has_gradient_(model.modules.size(), false),
      module_called_(model.modules.size(), false),
      module_ends_(model.modules.size(), false) {
  for (std::size_t at = 0; at < graph.storages.size(); ++at) {
    if (graph.storages[at].buffer != kNone) {
      buffers_[at] = module_buffers_[static_cast<std::size_t>(graph.storages[at].buffer)];
    }
  }
  for (std::size_t at = graph.loss == kNone ? 0 : graph.nodes.size(); at > 0 && head_ == kNone; --at) {
    const ModuleId outermost = graph.node(graph.tensor(graph.loss).producer).module;  // Adapters wrap the model.
    if (graph.nodes[at - 1].module != outermost) head_ = static_cast<NodeId>(at - 1);
  }
  if (records()) {
    values_.assign(graph.tensors.size(), kNoValue);
    saved_values_.assign(recipes.saved_count(), kNoValue);
  }
  find_wanted();
  find_regions(checkpointing);
  count_uses();
  find_read();
  find_gradients_of_modules();
}

bool Tape::lies_in(ModuleId module, ModuleId outer) const {
  while (module != kNone && module != outer) module = model_.modules[static_cast<std::size_t>(module)].parent;
  return module == outer;
}

// Which modules' backward has a beginning (a gradient of something made inside) and an end (a gradient of something
// that is handed in). A module without operators, as a dropout of probability 0, hands on what the next one reads.
void Tape::find_gradients_of_modules() {
  std::vector<ModuleId> passing;
  bool empty = false;
  for (const Instruction& instruction : graph_.program) {
    if (instruction.kind == Instruction::Kind::Enter) {
      empty = true;
    } else if (instruction.kind == Instruction::Kind::Exit && empty) {
      passing.push_back(instruction.id);
      empty = false;
    } else if (instruction.kind == Instruction::Kind::Run) {
      empty = false;
      const Node& node = graph_.node(instruction.id);
      const bool wanted =
          is_wanted(node) && std::any_of(graph_.in(node).begin(), graph_.in(node).end(), [&](TensorId id) {
            return graph_.tensor(id).requires_grad && graph_.tensor(id).producer != kNone;
          });
      for (ModuleId module : passing) {
        module_has_gradient_[static_cast<std::size_t>(module)] = wanted;
        module_ends_[static_cast<std::size_t>(module)] = wanted;
      }
      passing.clear();
    }
  }
  for (const Node& node : graph_.nodes) {
    if (!is_wanted(node)) continue;
    for (TensorId input : graph_.in(node)) {
      const Tensor& tensor = graph_.tensor(input);
      if (!tensor.requires_grad || tensor.producer == kNone) continue;
      const ModuleId made_in = graph_.node(tensor.producer).module;
      for (ModuleId module = node.module; module != kNone && !lies_in(made_in, module);
           module = model_.modules[static_cast<std::size_t>(module)].parent) {
        module_ends_[static_cast<std::size_t>(module)] = true;
      }
    }
  }
}

void Tape::find_regions(const Checkpointing& checkpointing) {
  std::vector<std::uint32_t> begins;
  std::vector<std::uint32_t> ends;
  for (std::uint32_t at = 0; at < graph_.program.size(); ++at) {
    if (graph_.program[at].kind == Instruction::Kind::RegionBegins) begins.push_back(at);
    if (graph_.program[at].kind == Instruction::Kind::RegionEnds) ends.push_back(at);
    if (graph_.program[at].kind == Instruction::Kind::Enter) {
      module_called_[static_cast<std::size_t>(graph_.program[at].id)] = true;
    }
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
      // Nobody asks the others for a gradient; early stop waits for all.
      if (region.first_saver == kNone && is_wanted(graph_.node(node))) region.first_saver = node;
      region.last_saver = node;
    }
    const auto& asked = graph_.regions[static_cast<std::size_t>(group.first)];
    region.arguments = asked.arguments;
    region.keywords = asked.keywords;
    region.deepspeed = group.kind == CheckpointKind::DeepSpeed;
    region.reentrant = region.deepspeed || group.kind == CheckpointKind::Reentrant;
    region.stashes_rng = region.deepspeed || group.preserve_rng_state;  // DeepSpeed has no switch for it.
    if (!group.kept.empty()) region.keeps.assign(kOps, false);
    for (Op op : group.kept) region.keeps[static_cast<std::size_t>(op)] = true;
    if (region.reentrant) find_boundary(region);
    regions_.push_back(std::move(region));
  }
}

// From the loss, or the outputs, against the program's order: what no path connects with them gets no gradient.
void Tape::find_wanted() {
  if (graph_.loss != kNone) wanted_[static_cast<std::size_t>(graph_.loss)] = true;
  for (TensorId output : graph_.outputs) {
    if (graph_.tensor(output).requires_grad) wanted_[static_cast<std::size_t>(output)] = true;
  }
  for (auto at = graph_.nodes.rbegin(); at != graph_.nodes.rend(); ++at) {
    if (!is_wanted(*at)) continue;
    for (TensorId input : graph_.in(*at)) {
      if (graph_.tensor(input).requires_grad) wanted_[static_cast<std::size_t>(input)] = true;
    }
  }
}

bool Tape::is_wanted(const Node& node) const {
  const std::span<const TensorId> out = graph_.out(node);
  return node.requires_grad &&
         std::any_of(out.begin(), out.end(), [&](TensorId id) { return wanted_[static_cast<std::size_t>(id)]; });
}

ModuleId Tape::caller(ModuleId module) const {
  while (module != kNone && !module_called_[static_cast<std::size_t>(module)]) {
    module = model_.modules[static_cast<std::size_t>(module)].parent;
  }
  return module;
}

void Tape::make_batch() {
  std::vector<BufferId> made;
  for (TensorId input : graph_.batch) {
    made.push_back(emitter_.allocate(graph_.bytes(input), graph_.tensor(input).dtype, Role::Inputs, "batch"));
    emitter_.begin();
    emitter_.write(made.back());
    if (records()) record_batch(made.size() - 1, input, made.back());
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
    enter_region(region);
    run_program(region.begin, region.end + 1, false);
    if (region.deepspeed) empty_arguments(region);
    at = region.end + 1;
  }
  if (graph_.loss != kNone) emitter_.set_role(buffer_of(graph_.loss), Role::Inputs, "loss");
  if (records()) record_loss();
}

void Tape::drop_outputs() {
  for (TensorId output : graph_.outputs) {
    if (graph_.storage_of(output).parameter == kNone) emitter_.release(buffer_of(output), Reason::Loop);
  }
}

void Tape::read_outputs() {
  for (TensorId output : graph_.outputs) read_tensor(output);
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
        if (instruction.id == 0 && emitter_.pass() == Pass::Forward) runtime_.forward_returns();
        emitter_.at(emitter_.pass(), caller(model_.modules[static_cast<std::size_t>(instruction.id)].parent));
        runtime_.exit(instruction.id, emitter_.pass());
        break;
      case Instruction::Kind::Forget: release_saved(instruction.id); break;
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

void Tape::write_tensor(TensorId tensor) {
  const ParameterId parameter = graph_.storage_of(tensor).parameter;
  emitter_.write(parameter == kNone ? buffer_of(tensor) : runtime_.place(parameter).buffer);
}

void Tape::run_forward(NodeId id, bool keep_saved) {
  const Node& node = graph_.node(id);
  const RecipeBook::Entry& entry = recipes_.entry(id);
  std::vector<BufferId>& made = scratch_slots_;
  made.assign(recipes_.slots(id).size(), kNoBuffer);
  if (records()) slot_values_.assign(made.size(), kNoValue);
  const std::int16_t in = region_of_[static_cast<std::size_t>(id)];
  Region* region = in >= 0 ? &regions_[static_cast<std::size_t>(in)] : nullptr;
  const bool kept = region != nullptr && !region->keeps.empty() && region->keeps[static_cast<std::size_t>(node.op)];
  if (!entry.alias && !(kept && recomputing_ && take_kept(*region, id, made))) make_forward(id, made);
  if (records() && entry.alias) record_view(id);
  if (kept && !recomputing_) keep_results(*region, id, made);
  // What lies in a storage that was there before is one more variable that holds it.
  for (std::size_t i = 0; i < node.output_count; ++i) {
    const TensorId out = graph_.output(node, i);
    if (graph_.storage_of(out).parameter != kNone) continue;  // Held by the runtime.
    if (entry.alias || (entry.in_place && i == 0)) emitter_.retain(buffer_of(out));
    if (recomputing_) alive_.push_back(out);
  }
  if (!graph_.leaves.empty() && !recomputing_) hold_leaves(id);
  // The holder of what no gradient is asked for is gone when a checkpoint is computed again.
  const bool unasked = recomputing_ && region != nullptr && !region->reentrant && !is_wanted(node);
  if (keep_saved && !unasked) save(id, made);
  // By-products belong to the autograd node alone: without one to keep them they die with the operator.
  const std::span<const Slot> slots = recipes_.slots(id);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind == SlotKind::Output || made[at] == kNoBuffer) continue;
    if (emitter_.references(made[at]) == 1) emitter_.mark_scratch(made[at]);
    emitter_.release(made[at], Reason::LastUse);
  }
}

void Tape::make_forward(NodeId id, std::vector<BufferId>& made) {
  const Node& node = graph_.node(id);
  const std::span<const Slot> slots = recipes_.slots(id);
  std::size_t first_new = 0;  // Slots are numbered in the order in which they are made.
  std::size_t end_new = 0;
  std::uint8_t part = 0;
  bool largest = node.op == Op::ParallelCrossEntropy;  // It asks for the largest logit, then for sums.
  for (const RecipeStep& step : recipes_.forward(id)) {
    if (step.kind == RecipeStep::Kind::Make) {
      const Slot& slot = slots[step.slot];
      const Role role = slot.kind == SlotKind::Temporary ? Role::Temporaries : Role::Activations;
      made[step.slot] = emitter_.allocate(slot.bytes, slot.dtype, role, name(node.op));
      if (slot.kind == SlotKind::Temporary) emitter_.mark_scratch(made[step.slot]);
      if (is_loss(id, false)) emitter_.mark_of_loss(made[step.slot]);
      if (slot.kind == SlotKind::Output) {
        const TensorId out = graph_.output(node, slot.index);
        buffer_of(out) = made[step.slot];
        if (!read_[static_cast<std::size_t>(graph_.tensor(out).storage)]) emitter_.mark_scratch(made[step.slot]);
      }
      if (records()) record_slot(step.slot, made[step.slot]);
      end_new = step.slot + 1U;
    } else if (step.kind == RecipeStep::Kind::Kernel) {
      emit_forward_kernel(id, made, first_new, end_new, part++);
      first_new = end_new;
    } else if (step.kind == RecipeStep::Kind::AllReduce) {
      all_reduce(step.slot == kGivenSlot ? buffer_of(graph_.input(node, 0)) : made[step.slot],
                 std::exchange(largest, false));
      if (records() && step.slot == kGivenSlot) record_view(id);
    } else {
      emitter_.release(made[step.slot], Reason::PythonFrame);
      made[step.slot] = kNoBuffer;
    }
  }
}

void Tape::emit_forward_kernel(NodeId id, const std::vector<BufferId>& made, std::size_t first_new, std::size_t end_new,
                               std::uint8_t part) {
  const Node& node = graph_.node(id);
  if (workspaces_ != nullptr) workspaces_->before_kernel(node);
  emitter_.begin();
  for (TensorId input : graph_.in(node)) read_tensor(input);
  for (std::size_t at = 0; at < first_new; ++at) {
    if (made[at] != kNoBuffer) emitter_.read(made[at]);
  }
  for (std::size_t at = first_new; at < end_new; ++at) {
    if (made[at] != kNoBuffer) emitter_.write(made[at]);
  }
  if (node.in_place) write_tensor(graph_.output(node));
  if (records()) record_forward(id, end_new, part);
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
      const TensorId tensor =
          item.kind == Saved::Kind::Input ? graph_.input(node, item.index) : graph_.output(node, item.index);
      const Storage& storage = graph_.storage_of(tensor);
      if (storage.parameter == kNone && storage.buffer == kNone) buffer = buffer_of(tensor);
      // A recomputation saves a detached tensor, which has the memory of now (torch/utils/checkpoint.py, pack_hook).
      if (detaching_ && storage.parameter != kNone && graph_.tensor(tensor).requires_grad &&
          runtime_.moves_parameters()) {
        buffer = runtime_.place(storage.parameter).buffer;
      }
    }
    if (buffer != kNoBuffer) emitter_.retain(buffer);
    if (records()) record_saved(item, id, index, buffer);
    saved_[index++] = buffer;
  }
}

}  // namespace dsplan
