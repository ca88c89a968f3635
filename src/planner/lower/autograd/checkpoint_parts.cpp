#include "planner/lower/autograd/checkpoint_parts.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan {
namespace {

bool among(const std::vector<TensorId>& all, TensorId one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// transformers' decoders hand a module several tensors by keyword (attention), and one by position.
void fill(const TapeContext& on, CheckpointPart& part) {
  std::vector<TensorId> made;
  for (std::uint32_t at = part.begin; at < part.end; ++at) {
    if (on.graph.program[at].kind != Instruction::Kind::Run) continue;
    const NodeId id = on.graph.program[at].node();
    const Node& node = on.graph.node(id);
    for (const TensorId input : on.graph.in(node)) {
      const Storage& storage = on.graph.storage_of(input);
      const bool own = storage.parameter != kNone || storage.buffer != kNone;
      if (!own && !among(made, input) && !among(part.given, input)) part.given.push_back(input);
    }
    for (const TensorId out : on.graph.out(node)) made.push_back(out);
    if (on.recipes.saved(id).empty()) continue;
    if (part.first_saver == kNone && on.facts.is_wanted(id)) part.first_saver = id;
    part.last_saver = id;
  }
  part.by_keyword = part.given.size() > 1;
}

}  // namespace

std::vector<CheckpointPart> parts_of_layer(const TapeContext& on, std::uint32_t begin, std::uint32_t end) {
  std::vector<CheckpointPart> parts;
  std::size_t depth = 0;
  for (std::uint32_t at = begin; at < end; ++at) {
    const Instruction& instruction = on.graph.program[at];
    if (instruction.kind == Instruction::Kind::Enter && ++depth == 2) {
      parts.emplace_back().begin = at;
    } else if (instruction.kind == Instruction::Kind::Exit && depth-- == 2) {
      parts.back().end = at;
      fill(on, parts.back());
    } else if (instruction.kind == Instruction::Kind::Run && depth < 2) {
      DSPLAN_CHECK(on.recipes.saved(instruction.node()).empty(), "what saves lies outside of nested checkpoints");
    }
  }
  return parts;
}

CheckpointPart* part_of(const Graph& graph, std::vector<CheckpointPart>& parts, NodeId node) {
  for (CheckpointPart& part : parts) {
    for (std::uint32_t at = part.begin; at < part.end; ++at) {
      const Instruction& instruction = graph.program[at];
      if (instruction.kind == Instruction::Kind::Run && instruction.node() == node) return &part;
    }
  }
  return nullptr;
}

void hold(TapeContext& on, CheckpointPart& part) {
  for (const TensorId tensor : part.given) {
    part.held.push_back({tensor, on.storages.of(tensor)});
    on.emitter.retain(part.held.back().buffer);
  }
}

void bring_back(TapeContext& on, const CheckpointPart& part) {
  for (const CheckpointPart::Held& one : part.held) {
    on.storages.of(one.tensor) = one.buffer;
    if (on.recording) on.recording->place(one.tensor, one.buffer);
  }
}

void forget(TapeContext& on, CheckpointPart& part) {
  for (const CheckpointPart::Held& one : part.held) on.emitter.release(one.buffer, Reason::CheckpointFrame);
  part.held.clear();
}

}  // namespace dsplan
