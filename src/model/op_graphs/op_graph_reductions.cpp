// Op-graphs: reductions, scans, and what picks elements by index.
#include <algorithm>

#include "model/op_graphs/op_graph_call.h"

#include "core/format.h"

namespace dsplan::op_graph_rules {
namespace {

// The shape without the chosen dimensions, or with them as 1.
Shape without(const Shape& from, const std::vector<bool>& chosen, bool keep) {
  Shape shape;
  for (std::size_t i = 0; i < from.rank; ++i) {
    if (chosen[i] && !keep) continue;
    shape.dims[shape.rank++] = chosen[i] ? 1 : from.dims[i];
  }
  return shape;
}

// Values and int64 indices.
Tensors with_indices(OpCall& call, Op op, const Shape& values, std::size_t dim) {
  if (call.op.outputs.size() != 2) call.refuse(formatted("{} gives values and indices", call.op.op.text));
  const NodeId node = call.w.begin(op, call.in, is_floating(call.dtype(0)));
  const TensorId first = call.w.add_output(node, values, call.dtype(0));
  const TensorId second = call.w.add_output(node, values, DType::Int64, false);
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  call.w.run(node);
  return {first, second};
}

}  // namespace

// sum, mean, amax, amin, norm, std, var, prod, logsumexp: over "dim", one or several, or over all.
Tensors reduce(OpCall& call, Op op) {
  const bool sums = op == Op::SumDim || op == Op::Prod || op == Op::Amax || op == Op::Amin;
  if (!sums) call.floating(0);
  const std::vector<bool> chosen = call.dimensions("dim", call.shape(0).rank);
  const Shape result = without(call.shape(0), chosen, call.flag("keepdim", false));
  const DType from = call.dtype(0);
  const bool counts = (op == Op::SumDim || op == Op::Prod) && !is_floating(from);
  const TensorId out = call.w.make(op, result, counts ? DType::Int64 : from, call.in, is_floating(from));
  if (op == Op::Norm) call.w.latest().number = call.number("p", 2.0);
  if (op == Op::Std || op == Op::Var) call.w.latest().number = call.number("correction", 1.0);
  const auto first = std::find(chosen.begin(), chosen.end(), true);
  call.w.latest().axis = static_cast<std::int8_t>(first == chosen.end() ? 0 : first - chosen.begin());
  return {out};
}

// max and min: of everything, or values and indices over one dimension; of two tensors they are maximum and minimum.
Tensors extremum(OpCall& call, Op op) {
  if (call.in.size() == 2) return binary(call, op == Op::Max ? Op::Maximum : Op::Minimum);
  if (!call.attributes.has("dim"))
    return {call.w.make(op, Shape{}, call.dtype(0), call.in, is_floating(call.dtype(0)))};
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, std::nullopt);
  std::vector<bool> chosen(call.shape(0).rank, false);
  if (!chosen.empty()) chosen[dim] = true;
  return with_indices(call, op, without(call.shape(0), chosen, call.flag("keepdim", false)), dim);
}

Tensors scan(OpCall& call, Op op) {
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, std::nullopt);
  const bool floating = is_floating(call.dtype(0));
  const TensorId out = call.w.make(op, call.shape(0), floating ? call.dtype(0) : DType::Int64, call.in, floating);
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

Tensors top_k(OpCall& call, Op op) {
  Shape shape = call.shape(0);
  if (shape.rank == 0) call.refuse_input(0, "topk needs a tensor with at least 1 dimension");
  const std::size_t dim = call.dimension("dim", shape.rank, -1);
  const std::int64_t k = call.whole("k", 1, INT64_MAX, std::nullopt);
  if (k > shape.dims[dim]) call.refuse_key("k", "selected index k out of range");
  shape.dims[dim] = k;
  return with_indices(call, op, shape, dim);
}

Tensors sort(OpCall& call, Op op) {
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, -1);
  (void)call.flag("descending", false);
  return with_indices(call, op, call.shape(0), dim);
}

// nn.functional.embedding(indices, table); the table may come first, as in ATen.
Tensors embedding(OpCall& call, Op op) {
  const bool table_first = is_floating(call.dtype(0));
  const std::size_t table = table_first ? 0 : 1;
  const std::size_t indices = 1 - table;
  call.floating(table);
  call.integer(indices);
  if (call.shape(table).rank != 2) call.refuse_input(table, "'weight' must be 2-D");
  Shape result = call.shape(indices);
  if (result.rank == Shape::kMostDims) call.not_modelled("a tensor with more than six dimensions");
  result.dims[result.rank++] = call.shape(table).dims[1];
  return {call.w.make(op, result, call.dtype(table), {call.in[table], call.in[indices]})};
}

Tensors index_select(OpCall& call, Op op) {
  call.integer(1);
  Shape shape = call.shape(0);
  if (shape.rank == 0 || call.shape(1).rank != 1) call.refuse_input(1, "Index is supposed to be a vector");
  const std::size_t dim =
      call.dimension("dim", shape.rank, op == Op::Index ? std::optional<std::int64_t>(0) : std::nullopt);
  if (op == Op::Index && dim != 0) call.not_modelled("indexing another dimension than the first");
  shape.dims[dim] = call.shape(1).dims[0];
  const TensorId out = call.w.make(op, shape, call.dtype(0), call.in, is_floating(call.dtype(0)));
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

Tensors gather(OpCall& call, Op op) {
  call.integer(1);
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, std::nullopt);
  if (call.shape(0).rank != call.shape(1).rank) {
    call.refuse_input(1, "Index tensor must have the same number of dimensions as input tensor");
  }
  for (std::size_t i = 0; i < call.shape(0).rank; ++i) {
    if (i != dim && call.shape(1).dims[i] > call.shape(0).dims[i]) {
      call.refuse_input(1, formatted("index {} reaches beyond {} apart from dimension {}", call.shape(1).text(),
                                     call.shape(0).text(), dim));
    }
  }
  const TensorId out = call.w.make(op, call.shape(1), call.dtype(0), call.in, is_floating(call.dtype(0)));
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

// scatter and scatter_add (input, index, source).
Tensors scatter(OpCall& call, Op op) {
  call.integer(1);
  call.same_dtype(0, 2);
  const std::size_t dim = call.dimension("dim", call.shape(0).rank, std::nullopt);
  if (call.shape(1) != call.shape(2)) call.not_modelled("a source that is larger than its index");
  if (call.shape(0).rank != call.shape(1).rank) {
    call.refuse_input(1, "Index tensor must have the same number of dimensions as self tensor");
  }
  const TensorId out = call.w.make(op, call.shape(0), call.dtype(0), call.in, is_floating(call.dtype(0)));
  call.w.latest().axis = static_cast<std::int8_t>(dim);
  return {out};
}

}  // namespace dsplan::op_graph_rules
