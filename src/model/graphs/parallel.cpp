// Layers of a model under Megatron's tensor parallelism (megatron/core/tensor_parallel/layers.py), as they replace
// those of transformers: what is cut along its outputs reads a copy of its input, what is cut along its inputs sums its
// outputs over the ranks.
#include "model/graphs/linear.h"

namespace dsplan {
namespace {

// (ids < first) | (ids >= last), then ids.clone() - first with 0 where the mask is set.
struct LocalIds {
  TensorId elsewhere = kNone;
  TensorId ids = kNone;
};

LocalIds local_ids(GraphBuilder& g, TensorId ids) {
  const Shape shape = g.shape(ids);
  const double first = first_word(g);
  const double end = first + static_cast<double>(g.model().dims.vocab);
  const TensorId below = g.make(Op::Less, shape, DType::Bool, {ids}, false, first);
  const TensorId above = g.make(Op::GreaterEqual, shape, DType::Bool, {ids}, false, end);
  const TensorId elsewhere = g.make(Op::BitwiseOr, shape, DType::Bool, {below, above});
  g.drop({below, above});
  const TensorId cloned = g.copy(ids);
  const TensorId shifted = g.unary(Op::SubScalar, cloned, first);
  g.drop({cloned});
  const TensorId local = g.in_place(Op::MaskedFillInPlace, shifted, elsewhere);
  g.drop({shifted});
  return {elsewhere, local};
}

}  // namespace

// The bias is added to the sum: addmm would add it on every rank.
TensorId row_linear_module(GraphBuilder& g, ModuleId module, TensorId x, std::int64_t features) {
  if (!g.parallel()) return linear_module(g, module, x, features);
  g.enter(module);
  const TensorId weight = g.parameter("weight");
  const bool direct = g.model().module_at(module).type == "Conv1D";
  const TensorId part = direct ? g.conv1d(x, weight, kNone, features) : g.linear(x, weight, kNone, features);
  TensorId out = reduce_from_parallel(g, part);
  g.drop({part});
  if (const TensorId bias = g.parameter("bias"); bias != kNone) {
    const TensorId biased = g.binary(Op::Add, out, bias);
    g.drop({out});
    out = biased;
  }
  g.exit(module);
  return out;
}

// What other ranks have is looked up as word 0 and then zeroed.
TensorId vocabulary_embedding(GraphBuilder& g, TensorId weight, TensorId ids) {
  if (!g.parallel()) return embedding(g, weight, ids, false, g.model().dims.padding);
  const LocalIds local = local_ids(g, ids);
  const TensorId found = embedding(g, weight, local.ids);
  const TensorId part = g.in_place(Op::MaskedFillInPlace, found, local.elsewhere);
  const TensorId out = reduce_from_parallel(g, part);
  g.drop({local.elsewhere, local.ids, found, part});
  return out;
}

TensorId vocabulary_head(GraphBuilder& g, ModuleId module, TensorId hidden) {
  const TensorId whole = copy_to_parallel(g, hidden);
  const TensorId logits = linear_module(g, module, whole, g.model().dims.vocab);
  g.drop({whole});
  return logits;
}

}  // namespace dsplan
