// The checkpointed regions of the tape (torch/utils/checkpoint.py).
#include <algorithm>

#include "core/error.h"
#include "planner/lower/tape.h"

namespace dsplan {
namespace {

// torch.get_rng_state() and torch.cuda.get_rng_state(), bytes: the Mersenne twister's state with its caches; a seed and
// an offset. Both lie on the host.
constexpr Bytes kCpuRandomState{5056};
constexpr Bytes kDeviceRandomState{16};

}  // namespace

// What a reentrant region reads and does not make: in its own backward these are leaves.
void Tape::find_boundary(Region& region) {
  std::vector<bool> made(graph_.tensors.size(), false);
  std::vector<bool> seen(graph_.tensors.size(), false);
  for (std::uint32_t at = region.begin; at < region.end; ++at) {
    if (graph_.program[at].kind != Instruction::Kind::Run) continue;
    const Node& node = graph_.node(graph_.program[at].id);
    for (TensorId input : graph_.in(node)) {
      const auto index = static_cast<std::size_t>(input);
      if (made[index] || seen[index] || !graph_.tensor(input).requires_grad || !is_wanted(node)) continue;
      region.externals.push_back(input);
      seen[index] = true;
    }
    for (TensorId out : graph_.out(node)) made[static_cast<std::size_t>(out)] = true;
  }
  const auto leaves = [&](TensorId id) {
    if (!made[static_cast<std::size_t>(id)]) return;
    made[static_cast<std::size_t>(id)] = false;
    region.outputs.push_back(id);
  };
  for (std::uint32_t at = region.end; at < graph_.program.size(); ++at) {
    if (graph_.program[at].kind != Instruction::Kind::Run) continue;
    for (TensorId input : graph_.in(graph_.node(graph_.program[at].id))) leaves(input);
  }
  for (TensorId output : graph_.outputs) leaves(output);
}

void Tape::enter_region(Region& region) {
  store_arguments(region);
  const auto hold = [&](TensorId tensor) {
    if (graph_.storage_of(tensor).parameter != kNone) return;  // Held by its module anyway.
    region.closure.push_back(buffer_of(tensor));
    emitter_.retain(region.closure.back());
  };
  for (TensorId tensor : region.arguments) hold(tensor);
  for (TensorId tensor : region.keywords) hold(tensor);
  if (region.stashes_rng) stash_rng(region);
}

// Stored in the module that calls the region's first one; containers are never entered. Recomputation gives them to the
// generators, which are not modelled: nobody else reads them.
void Tape::stash_rng(Region& region) {
  const ModuleId module = emitter_.module();
  ModuleId caller = module;
  while (caller != kNone && !module_called_[static_cast<std::size_t>(caller)]) {
    caller = model_.modules[static_cast<std::size_t>(caller)].parent;
  }
  emitter_.at(emitter_.pass(), caller);
  const auto stash = [&](Bytes bytes, Label label) {
    region.rng_states.push_back(
        emitter_.allocate(bytes, DType::UInt8, Role::Activations, label, kNone, false, Space::Pageable));
    emitter_.mark_scratch(region.rng_states.back());
    emitter_.begin();
    emitter_.write(region.rng_states.back());
    emitter_.compute("get_rng_state");
  };
  stash(kCpuRandomState, "random state of the host");
  stash(kDeviceRandomState, "random state of the device");
  emitter_.at(emitter_.pass(), module);
}

void Tape::leave_closure(Region& region) {
  for (DeepSpeedCheckpoints::Stored& one : region.stored) deepspeed_->forget(one);
  region.stored.clear();
  for (BufferId buffer : region.closure) emitter_.release(buffer, Reason::CheckpointFrame);
  for (BufferId buffer : region.bases) emitter_.release(buffer, Reason::CheckpointFrame);
  for (BufferId buffer : region.rng_states) emitter_.release(buffer, Reason::CheckpointFrame);
  for (const Kept& kept : region.kept) {
    for (BufferId buffer : kept.slots) {
      if (buffer != kNoBuffer) emitter_.release(buffer, Reason::CheckpointFrame);
    }
  }
  region.closure.clear();
  region.bases.clear();
  region.rng_states.clear();
  region.kept.clear();
}

void Tape::keep_results(Region& region, NodeId node, const std::vector<BufferId>& made) {
  for (BufferId buffer : made) {
    if (buffer != kNoBuffer) emitter_.retain(buffer);
  }
  region.kept.push_back({node, made, slot_values_});
}

bool Tape::take_kept(Region& region, NodeId node, std::vector<BufferId>& made) {
  const auto found =
      std::find_if(region.kept.begin(), region.kept.end(), [&](const Kept& k) { return k.node == node; });
  if (found == region.kept.end()) return false;
  made = found->slots;
  if (records()) slot_values_ = found->values;
  region.kept.erase(found);
  const std::span<const Slot> slots = recipes_.slots(node);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind != SlotKind::Output || made[at] == kNoBuffer) continue;
    buffer_of(graph_.output(graph_.node(node), slots[at].index)) = made[at];
  }
  if (records()) record_outputs(node);
  return true;
}

// Runs the region's program once more, now keeping what its nodes save. What entered the region is the closure's; the
// region's own Drops concern only what it makes itself.
void Tape::run_region_again(Region& region) {
  recomputing_ = true;
  detaching_ = !region.reentrant;
  alive_.clear();
  entered_.clear();
  for (std::uint32_t at = region.begin; at <= region.end; ++at) {
    const Instruction& instruction = graph_.program[at];
    const bool last =
        !region.reentrant && instruction.kind == Instruction::Kind::Run && instruction.id == region.last_saver;
    if (instruction.kind == Instruction::Kind::Enter) entered_.push_back(instruction.id);
    if (instruction.kind == Instruction::Kind::Exit) entered_.pop_back();
    if (last && !recipes_.entry(instruction.id).saves_after_kernel) {
      scratch_slots_.clear();
      if (is_wanted(graph_.node(instruction.id)))
        save(instruction.id, scratch_slots_);  // Only inputs: the kernel never starts.
      break;
    }
    run_program(at, at + 1, true);
    if (last) break;
  }
  recomputing_ = false;
  detaching_ = false;
}

void Tape::recompute(Region& region) {
  region.recomputed = true;
  const Pass before = emitter_.pass();
  const ModuleId module = emitter_.module();
  emitter_.at(Pass::Recompute, module);
  run_region_again(region);
  while (!alive_.empty()) {  // The frames are unwound.
    const TensorId tensor = alive_.back();
    alive_.pop_back();
    emitter_.release(buffer_of(tensor), Reason::PythonFrame);
  }
  for (auto at = entered_.rbegin(); at != entered_.rend(); ++at) emitter_.exit(*at, true);
  emitter_.at(before, module);
}

// The node of a reentrant checkpoint runs: its arguments are the gradients of its outputs, and its frame holds them and
// the outputs made again until the engine within has come back (CheckpointFunction.backward).
void Tape::begin_nested(Region& region) {
  for (TensorId output : region.outputs) {
    const BufferId gradient = gradients_[static_cast<std::size_t>(output)].buffer;
    if (gradient == kNoBuffer) continue;
    emitter_.retain(gradient);
    region.incoming.push_back(gradient);
  }
  if (region.incoming.empty()) return;
  region.nested = true;
  nested_ = &region;
  restore_arguments(region);
  emitter_.at(Pass::Recompute, emitter_.module());
  run_region_again(region);
  emitter_.at(Pass::Backward, emitter_.module());
  // The function returns: what it hands out lives on in the frame, its own variables do not.
  for (TensorId tensor : alive_) {
    const bool returned = std::find(region.outputs.begin(), region.outputs.end(), tensor) != region.outputs.end();
    if (returned) {
      region.recomputed_outputs.push_back(tensor);
      emitter_.mark_scratch(buffer_of(tensor));  // The engine starts from it and need not look at what it holds.
    } else {
      emitter_.release(buffer_of(tensor), Reason::PythonFrame);
    }
  }
  alive_.clear();
  for (TensorId external : region.externals) {
    region.outer.push_back(std::exchange(gradients_[static_cast<std::size_t>(external)], {}));
  }
  count_nested_uses(region);
}

void Tape::count_nested_uses(const Region& region) {
  for (TensorId external : region.externals) nested_uses_[static_cast<std::size_t>(external)] = 0;
  for (std::uint32_t at = region.begin; at < region.end; ++at) {
    if (graph_.program[at].kind != Instruction::Kind::Run) continue;
    const Node& node = graph_.node(graph_.program[at].id);
    if (!is_wanted(node)) continue;
    for (TensorId input : graph_.in(node)) ++nested_uses_[static_cast<std::size_t>(input)];
  }
}

void Tape::end_nested(Region& region) {
  if (!region.nested) return;
  region.nested = false;
  nested_ = nullptr;
  // The frame goes, then the engine releases what the node had saved; what is bound to the function stays with the
  // node, and the node with the loss.
  for (TensorId tensor : region.recomputed_outputs) {
    emitter_.mark_scratch(buffer_of(tensor));  // Nobody need read what is made a second time.
    emitter_.release(buffer_of(tensor), Reason::PythonFrame);
  }
  for (BufferId buffer : region.incoming) emitter_.release(buffer, Reason::AutogradGraph);
  for (std::uint32_t at = region.begin; at < region.end; ++at) {  // With the frame goes the graph within.
    if (graph_.program[at].kind == Instruction::Kind::Run) release_saved(graph_.program[at].id);
  }
  region.recomputed_outputs.clear();
  region.incoming.clear();
  std::size_t kept = 0;
  for (TensorId tensor : region.arguments) {
    if (graph_.storage_of(tensor).parameter != kNone) continue;
    emitter_.release(region.closure[kept++], Reason::CheckpointFrame);
  }
  for (BufferId base : std::exchange(region.bases, {})) emitter_.release(base, Reason::CheckpointFrame);
  region.closure.erase(region.closure.begin(), region.closure.begin() + static_cast<std::ptrdiff_t>(kept));
  for (std::size_t at = 0; at < region.externals.size(); ++at) {
    const TensorId external = region.externals[at];
    Gradient& slot = gradients_[static_cast<std::size_t>(external)];
    const Gradient made = std::exchange(slot, region.outer[at]);
    if (made.buffer != kNoBuffer) accumulate(external, made);
    if (made.buffer != kNoBuffer && is_parameter(external)) leaf_arrived(external);
  }
  region.outer.clear();
}

}  // namespace dsplan
