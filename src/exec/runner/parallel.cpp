#include "exec/runner/parallel.h"

#include <algorithm>

#include "core/error.h"

namespace dsplan::exec {
namespace {

// Along the dimension that is cut: which rows this rank has.
std::vector<Cut> rows_of(const ModelSpec& model, const Parameter& parameter, std::int64_t own, std::int64_t ranks,
                         std::int64_t rank) {
  const Dimensions& dims = model.dims;
  const bool shared = dims.kv_heads % ranks != 0;
  switch (parameter.split) {
    case Split::Replicated: return {{0, own}};
    case Split::Even:
    case Split::Vocabulary: return {{rank * own, own}};
    case Split::KeyValue: DSPLAN_CHECK(!shared, "ranks that share a head"); return {{rank * own, own}};
    case Split::QueryKeyValue: {
      DSPLAN_CHECK(!shared, "ranks that share a head");
      const std::int64_t queries = dims.heads * dims.head_dim;
      const std::int64_t keys = dims.kv_heads * dims.head_dim;
      const std::int64_t of_keys = queries + rank * (keys / ranks);
      return {{rank * (queries / ranks), queries / ranks}, {of_keys, keys / ranks}, {of_keys + keys, keys / ranks}};
    }
    case Split::Unknown: break;
  }
  DSPLAN_CHECK(false, "a parameter that nobody knows how to cut");
  return {};
}

}  // namespace

std::vector<Cut> part_of(const ModelSpec& model, const Parameter& parameter, std::int64_t ranks, std::int64_t rank) {
  const Shape& whole = parameter.shape;
  if (ranks == 1) return {{0, whole.elements().value()}};
  const Shape own = local_shape(model, parameter, ranks);
  const std::size_t dim = parameter.split_dim;
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  for (std::size_t i = 0; i < whole.rank; ++i) (i < dim ? outer : inner) *= i == dim ? 1 : whole.dims[i];
  const std::vector<Cut> rows = rows_of(model, parameter, own.dims[dim], ranks, rank);
  std::vector<Cut> result;
  for (std::int64_t at = 0; at < outer; ++at) {
    for (const Cut& row : rows) {
      const Cut next{(at * whole.dims[dim] + row.first) * inner, row.count * inner};
      if (!result.empty() && result.back().first + result.back().count == next.first) {
        result.back().count += next.count;
      } else {
        result.push_back(next);
      }
    }
  }
  return result;
}

Indexed<NodeId, std::uint32_t> drawing_order(const Graph& graph) {
  Indexed<NodeId, std::uint32_t> order(graph.nodes.size(), 0);
  std::uint32_t next = 0;
  for (const NodeId id : graph.nodes.ids()) {
    const Op op = graph.nodes[id].op;
    if (op == Op::Dropout || op == Op::Attention) order[id] = next++;
  }
  return order;
}

Indexed<NodeId, bool> works_on_parts(const ModelSpec& model, const Graph& graph) {
  Indexed<TensorId, bool> cut(graph.tensors.size(), false);
  for (const TensorId id : graph.tensors.ids()) {
    const ParameterId parameter = graph.storage_of(id).parameter;
    if (parameter == kNone || graph.tensors[id].producer != kNone) continue;
    cut[id] = model.parameter_at(parameter).split != Split::Replicated;
  }
  Indexed<NodeId, bool> nodes(graph.nodes.size(), false);
  for (const Instruction& instruction : graph.program) {
    if (instruction.kind != Instruction::Kind::Run) continue;
    const Node& node = graph.node(instruction.node());
    const std::span<const TensorId> in = graph.in(node);
    const bool parts = std::any_of(in.begin(), in.end(), [&](TensorId id) { return cut[id]; });
    nodes[instruction.node()] = parts;
    for (const TensorId out : graph.out(node)) cut[out] = parts && node.op != Op::AllReduce;
  }
  return nodes;
}

}  // namespace dsplan::exec
