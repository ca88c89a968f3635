// What of a graph is read by whom: found once, before anything runs.
#include <algorithm>

#include "planner/lower/tape.h"

namespace dsplan {

// Storages that a kernel reads in forward or backward, or that are handed out. A view reads nothing.
void Tape::find_read() {
  const auto mark = [&](TensorId id) { read_[static_cast<std::size_t>(graph_.tensor(id).storage)] = true; };
  if (graph_.loss != kNone) mark(graph_.loss);
  for (TensorId output : graph_.outputs) mark(output);
  for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
    const Node& node = graph_.node(id);
    if (!recipes_.entry(id).alias) {
      for (TensorId input : graph_.in(node)) mark(input);
    }
    if (!is_wanted(node)) continue;
    for (const Saved& saved : recipes_.saved(id)) {
      if (saved.kind == Saved::Kind::Input) mark(graph_.input(node, saved.index));
      if (saved.kind == Saved::Kind::Output) mark(graph_.output(node, saved.index));
    }
  }
}

void Tape::count_uses() {
  const auto count = [&](TensorId id) {
    if (!is_parameter(id) || !graph_.tensor(id).requires_grad) return;
    ++uses_[static_cast<std::size_t>(graph_.storage_of(id).parameter)];
  };
  for (TensorId output : graph_.outputs) count(output);
  // What a reentrant checkpoint is given gets its gradient from the checkpoint's own node.
  for (const Region& region : regions_) {
    if (!region.reentrant) continue;
    for (TensorId argument : region.arguments) {
      if (std::find(region.externals.begin(), region.externals.end(), argument) != region.externals.end()) {
        count(argument);
      }
    }
  }
  for (const Instruction& instruction : graph_.program) {
    if (instruction.kind != Instruction::Kind::Run) continue;
    const Node& node = graph_.node(instruction.id);
    if (!is_wanted(node)) continue;
    for (ModuleId module = node.module; module != kNone && !module_has_gradient_[static_cast<std::size_t>(module)];
         module = model_.modules[static_cast<std::size_t>(module)].parent) {
      module_has_gradient_[static_cast<std::size_t>(module)] = true;
    }
    const std::int16_t region = region_of_[static_cast<std::size_t>(instruction.id)];
    if (region >= 0 && regions_[static_cast<std::size_t>(region)].reentrant) continue;
    for (TensorId input : graph_.in(node)) count(input);
  }
}

}  // namespace dsplan
