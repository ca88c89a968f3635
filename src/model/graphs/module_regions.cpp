// Checkpoints around modules instead of layers: the regions of a graph are cut anew.
#include <algorithm>

#include "model/graphs/by_family.h"

namespace dsplan {
namespace {

using Kind = Instruction::Kind;

struct Range {
  std::size_t begin = 0;  // Indices into the program, both inside.
  std::size_t end = 0;
};

bool is_called(const ModelSpec& model, ModuleId module, const std::vector<std::string>& names) {
  const Module& called = model.module_at(module);
  if (called.layer == kNone) return false;
  const std::string_view last = std::string_view(called.path).substr(called.path.rfind('.') + 1);
  return std::find(names.begin(), names.end(), last) != names.end();
}

// The outermost calls of the named modules, and attention operators outside of them if those are named.
std::vector<Range> ranges_of(const Graph& graph, const ModelSpec& model, const std::vector<std::string>& names) {
  const bool attention = std::find(names.begin(), names.end(), "core_attn") != names.end();
  std::vector<Range> ranges;
  std::int32_t inside = kNone;
  for (std::size_t at = 0; at < graph.program.size(); ++at) {
    const Instruction& instruction = graph.program[at];
    if (inside == kNone && instruction.kind == Kind::Enter && is_called(model, instruction.module(), names)) {
      inside = instruction.module();
      ranges.push_back({at, at});
    } else if (instruction.kind == Kind::Exit && instruction.module() == inside) {
      inside = kNone;
      ranges.back().end = at;
    } else if (inside == kNone && attention && instruction.kind == Kind::Run &&
               graph.node(instruction.node()).op == Op::Attention) {
      ranges.push_back({at, at});
    }
  }
  return ranges;
}

// What the range reads and does not make, parameters and buffers excepted: the arguments of the call.
Region region_of(const Graph& graph, const Range& range) {
  Region region;
  std::vector<TensorId> made;
  const auto add = [&](TensorId id) {
    const Storage& storage = graph.storage_of(id);
    if (storage.parameter != kNone || storage.buffer != kNone) return;
    if (std::find(made.begin(), made.end(), id) != made.end()) return;
    made.push_back(id);
    region.arguments.push_back(id);
  };
  for (std::size_t at = range.begin; at <= range.end; ++at) {
    if (graph.program[at].kind != Kind::Run) continue;
    const Node& node = graph.node(graph.program[at].node());
    for (TensorId input : graph.in(node)) add(input);
    for (TensorId out : graph.out(node)) made.push_back(out);
  }
  return region;
}

}  // namespace

void cut_module_regions(Graph& graph, const ModelSpec& model, const std::vector<std::string>& names) {
  const std::vector<Range> ranges = ranges_of(graph, model, names);
  std::vector<Instruction> program;
  program.reserve(graph.program.size() + ranges.size() * 2);
  graph.regions.clear();
  auto next = ranges.begin();
  for (std::size_t at = 0; at < graph.program.size(); ++at) {
    const auto id = static_cast<std::int32_t>(next - ranges.begin());
    const bool in_reach = next != ranges.end();
    if (in_reach && at == next->begin) {
      graph.regions.push_back(region_of(graph, *next));
      program.push_back({Kind::RegionBegins, id});
    }
    const Kind kind = graph.program[at].kind;
    if (kind != Kind::RegionBegins && kind != Kind::RegionEnds) program.push_back(graph.program[at]);
    if (in_reach && at == next->end) {
      program.push_back({Kind::RegionEnds, id});
      ++next;
    }
  }
  graph.program = std::move(program);
}

}  // namespace dsplan
