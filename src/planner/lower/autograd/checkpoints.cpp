#include "planner/lower/autograd/checkpoints.h"

#include <algorithm>
#include <utility>

#include "planner/lower/eager.h"

namespace dsplan {
namespace {

// torch.get_rng_state() and torch.cuda.get_rng_state(), bytes: the Mersenne twister's state with its caches; a seed and
// an offset. Both lie on the host.
constexpr Bytes kCpuRandomState{5056};
constexpr Bytes kDeviceRandomState{16};
constexpr Source kDeviceStates = "torch/utils/checkpoint.py, get_device_states";

// Of what outlives the function, though nobody reads it: autocast holds its copies of weights itself.
bool is_returned(const GraphFacts& facts, TensorId tensor) {
  const Graph& graph = facts.graph();
  const NodeId producer = graph.tensor(tensor).producer;
  if (producer == kNone || !graph.tensor(tensor).requires_grad) return false;
  const Node& node = graph.node(producer);
  return node.op != Op::Cast || !facts.is_parameter(graph.input(node, 0));
}

// What calls the layer that runs from there on.
ModuleId caller_of(const GraphFacts& facts, std::uint32_t begin) {
  const std::vector<Instruction>& program = facts.graph().program;
  while (program[begin].kind != Instruction::Kind::Enter) ++begin;
  return facts.caller(program[begin].module());
}

void find_sharers(const GraphFacts& facts, std::vector<Checkpoint>& all) {
  const std::vector<Instruction>& program = facts.graph().program;
  ModuleId body = kNone;
  std::uint32_t begin = 0;
  for (std::uint32_t at = 0; at < program.size() && body == kNone; ++at) {
    if (program[at].kind == Instruction::Kind::RegionBegins) begin = at;
    if (program[at].kind == Instruction::Kind::Share) body = caller_of(facts, begin);
  }
  if (body == kNone) return;
  for (Checkpoint& one : all) one.shares = caller_of(facts, one.begin) == body;
}

}  // namespace

Checkpoints::Checkpoints(TapeContext& on, const Checkpointing& checkpointing)
    : container(on, of_node_), on_(on), graph_(on.graph), emitter_(on.emitter), of_node_(on.graph.nodes.size(), -1) {
  std::vector<std::uint32_t> begins(graph_.regions.size());
  std::vector<std::uint32_t> ends(graph_.regions.size());
  for (std::uint32_t at = 0; at < graph_.program.size(); ++at) {
    const Instruction& one = graph_.program[at];
    if (one.kind == Instruction::Kind::RegionBegins) begins.at(static_cast<std::size_t>(one.region())) = at;
    if (one.kind == Instruction::Kind::RegionEnds) ends.at(static_cast<std::size_t>(one.region())) = at;
  }
  for (const CheckpointGroup& group : checkpointing.groups) {
    if (is_skipped(graph_.regions.at(static_cast<std::size_t>(group.first)))) continue;
    all_.push_back(
        found(group, begins.at(static_cast<std::size_t>(group.first)), ends.at(static_cast<std::size_t>(group.last))));
    if (!checkpointing.modules.empty()) all_.back().parts = parts_of_layer(on_, all_.back().begin, all_.back().end);
  }
  find_sharers(on_.facts, all_);
}

namespace {

// The function around several layers holds what any of them is given, but for what it makes itself: where a layer's
// input goes by keyword, that of the next one (llama4's tower).
std::vector<TensorId> given_to(const Graph& graph, const CheckpointGroup& group, std::uint32_t begin,
                               std::uint32_t end) {
  std::vector<TensorId> made;
  for (std::uint32_t at = begin; at < end && group.last > group.first; ++at) {
    if (graph.program[at].kind != Instruction::Kind::Run) continue;
    for (const TensorId out : graph.out(graph.node(graph.program[at].node()))) made.push_back(out);
  }
  std::sort(made.begin(), made.end());
  std::vector<TensorId> all;
  for (std::int32_t at = group.first; at <= group.last; ++at) {
    for (const TensorId given : graph.regions[static_cast<std::size_t>(at)].keywords) {
      const bool known = std::find(all.begin(), all.end(), given) != all.end();
      if (!known && !std::binary_search(made.begin(), made.end(), given)) all.push_back(given);
    }
  }
  return all;
}

}  // namespace

Checkpoint Checkpoints::found(const CheckpointGroup& group, std::uint32_t begin, std::uint32_t end) {
  Checkpoint checkpoint;
  checkpoint.begin = begin;
  checkpoint.end = end;
  std::int64_t products = 0;  // torchtitan's mm_count.
  for (std::uint32_t at = begin; at < end; ++at) {
    if (graph_.program[at].kind == Instruction::Kind::Forget) checkpoint.forgotten.push_back(graph_.program[at].node());
    if (graph_.program[at].kind != Instruction::Kind::Run) continue;
    const NodeId node = graph_.program[at].node();
    of_node_[node] = static_cast<std::int16_t>(all_.size());
    const Node& ran = graph_.node(node);
    const bool plain = is_plain_product(ran);
    if (group.alternate && ran.op == Op::Linear && (!plain || ++products % 2 == 0)) checkpoint.unkept.push_back(node);
    if (on_.recipes.saved(node).empty()) continue;
    // Nobody asks the others for a gradient; early stop waits for all.
    if (checkpoint.first_saver == kNone && on_.facts.is_wanted(node)) checkpoint.first_saver = node;
    checkpoint.last_saver = node;
  }
  const Region& asked = graph_.regions[static_cast<std::size_t>(group.first)];
  checkpoint.arguments = asked.arguments;
  checkpoint.keywords = given_to(graph_, group, begin, end);
  checkpoint.strided = asked.strided;
  checkpoint.deepspeed = group.kind == CheckpointKind::DeepSpeed;
  checkpoint.reentrant = checkpoint.deepspeed || group.kind == CheckpointKind::Reentrant;
  checkpoint.stashes_rng = checkpoint.deepspeed || group.preserve_rng_state;  // DeepSpeed has no switch for it.
  if (!group.kept.empty()) checkpoint.keeps.assign(kOps, false);
  for (Op op : group.kept) checkpoint.keeps[static_cast<std::size_t>(op)] = true;
  if (!checkpoint.reentrant) return checkpoint;
  find_boundary(checkpoint);
  for (TensorId tensor : asked.returned) {
    const auto& externals = checkpoint.externals;
    if (std::find(externals.begin(), externals.end(), tensor) != externals.end()) checkpoint.returned.push_back(tensor);
  }
  return checkpoint;
}

// What a reentrant checkpoint reads and does not make: in its own backward these are leaves.
void Checkpoints::find_boundary(Checkpoint& checkpoint) {
  Indexed<TensorId, bool> made(graph_.tensors.size(), false);
  Indexed<TensorId, bool> seen(graph_.tensors.size(), false);
  Indexed<TensorId, bool> shared(graph_.tensors.size(), false);  // By a container, and no output of the function.
  for (std::uint32_t at = checkpoint.begin; at < checkpoint.end; ++at) {
    if (graph_.program[at].kind == Instruction::Kind::Share) shared[graph_.program[at].tensor()] = true;
    if (graph_.program[at].kind != Instruction::Kind::Run) continue;
    const NodeId id = graph_.program[at].node();
    const Node& node = graph_.node(id);
    for (TensorId input : graph_.in(node)) {
      if (made[input] || seen[input] || !graph_.tensor(input).requires_grad || !on_.facts.is_wanted(id)) continue;
      checkpoint.externals.push_back(input);
      seen[input] = true;
    }
    for (TensorId out : graph_.out(node)) made[out] = true;
  }
  const auto leaves = [&](TensorId id) {
    if (!made[id] || shared[id]) return;
    made[id] = false;
    checkpoint.outputs.push_back(id);
  };
  bool ran = false;
  for (std::uint32_t at = checkpoint.end; at < graph_.program.size(); ++at) {
    const Instruction& instruction = graph_.program[at];
    // What dies before anything else runs is a variable within.
    if (instruction.kind == Instruction::Kind::Drop && ran && is_returned(on_.facts, instruction.tensor())) {
      leaves(instruction.tensor());
    }
    if (instruction.kind != Instruction::Kind::Run) continue;
    ran = true;
    for (TensorId input : graph_.in(graph_.node(graph_.program[at].node()))) leaves(input);
  }
  for (TensorId output : graph_.outputs) leaves(output);
}

void Checkpoints::enter(Checkpoint& checkpoint) {
  checkpoint.open = true;
  if (checkpoint.shares) container.take();
  store_arguments(checkpoint);
  const auto hold = [&](TensorId tensor) {
    if (graph_.storage_of(tensor).parameter != kNone) return;  // Held by its module anyway.
    checkpoint.closure.push_back(on_.storages.of(tensor));
    emitter_.retain(checkpoint.closure.back());
  };
  if (on_.packed && !checkpoint.reentrant) {
    checkpoint.packed = on_.packed->pack_arguments(checkpoint.arguments);
  } else {
    for (TensorId tensor : checkpoint.arguments) hold(tensor);
  }
  for (TensorId tensor : checkpoint.keywords) hold(tensor);
  if (checkpoint.stashes_rng) stash_rng(checkpoint);
}

// Stored in the module that calls the first one inside. Recomputation gives them to the generators, which are not
// modelled: nobody else reads them.
void Checkpoints::stash_rng(Checkpoint& checkpoint) {
  const ModuleId module = emitter_.module();
  emitter_.at(emitter_.pass(), on_.facts.called(module));
  const auto stash = [&](Bytes bytes, Label label) {
    Variable state =
        Eager(emitter_).empty(bytes, DType::UInt8, {Role::Activations, label, kDeviceStates}, kNone, Space::Pageable);
    emitter_.mark_scratch(state.id());
    Work(emitter_).write(state).run(Body::RandomState, "get_rng_state");
    checkpoint.rng_states.push_back(state.hand_over());
  };
  stash(kCpuRandomState, "random state of the host");
  stash(kDeviceRandomState, "random state of the device");
  emitter_.at(emitter_.pass(), module);
}

void Checkpoints::forget(Checkpoint& checkpoint) {
  for (DeepSpeedCheckpoints::Stored& one : checkpoint.stored) deepspeed_->forget(one);
  checkpoint.stored.clear();
  const auto release = [&](std::vector<BufferId>& held) {
    for (BufferId buffer : held) {
      if (buffer != kNoBuffer) emitter_.release(buffer, Reason::CheckpointFrame);
    }
    held.clear();
  };
  release(checkpoint.closure);
  release(checkpoint.bases);
  release(checkpoint.rng_states);
  for (Checkpoint::Kept& kept : checkpoint.kept) release(kept.slots);
  checkpoint.kept.clear();
  for (CheckpointPart& part : checkpoint.parts) dsplan::forget(on_, part);
  if (std::exchange(checkpoint.open, false) && checkpoint.shares) container.release();
}

// What is bound to the function stays with the node, and the node with the loss.
void Checkpoints::release_arguments(Checkpoint& checkpoint) {
  std::size_t kept = 0;
  for (TensorId tensor : checkpoint.arguments) {
    if (graph_.storage_of(tensor).parameter != kNone) continue;
    emitter_.release(checkpoint.closure[kept++], Reason::CheckpointFrame);
  }
  for (BufferId base : std::exchange(checkpoint.bases, {})) emitter_.release(base, Reason::CheckpointFrame);
  checkpoint.closure.erase(checkpoint.closure.begin(), checkpoint.closure.begin() + static_cast<std::ptrdiff_t>(kept));
}

std::span<const BufferId> Checkpoint::bound(const Graph& graph) const {
  if (!reentrant || !open) return {};
  const auto saved = std::count_if(arguments.begin(), arguments.end(),
                                   [&](TensorId tensor) { return graph.storage_of(tensor).parameter == kNone; });
  return std::span(closure).subspan(static_cast<std::size_t>(saved));
}

void Checkpoints::keep_results(Checkpoint& checkpoint, NodeId node, const std::vector<BufferId>& made) {
  for (BufferId buffer : made) {
    if (buffer != kNoBuffer) emitter_.retain(buffer);
  }
  checkpoint.kept.push_back({node, made, on_.recording ? on_.recording->slots() : std::vector<ValueId>()});
}

bool Checkpoints::take_results(Checkpoint& checkpoint, NodeId node, std::vector<BufferId>& made) {
  const auto kept = std::find_if(checkpoint.kept.begin(), checkpoint.kept.end(),
                                 [&](const Checkpoint::Kept& one) { return one.node == node; });
  if (kept == checkpoint.kept.end()) return false;
  made = kept->slots;
  if (on_.recording) on_.recording->bring_back(node, kept->values);
  checkpoint.kept.erase(kept);
  const std::span<const Slot> slots = on_.recipes.slots(node);
  for (std::size_t at = 0; at < slots.size(); ++at) {
    if (slots[at].kind != SlotKind::Output || made[at] == kNoBuffer) continue;
    on_.storages.of(graph_.output(graph_.node(node), slots[at].index)) = made[at];
  }
  return true;
}

}  // namespace dsplan
