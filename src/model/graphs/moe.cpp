// Sparse blocks as transformers 5.17 runs them on CUDA: the router in fp32, then all experts through one grouped
// product (integrations/moe.py, grouped_mm_experts_forward). Every shape depends on tokens * experts_per_token only, so
// that routing moves no byte here.
#include "core/error.h"
#include "model/graphs/graphs.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

struct Routing {
  TensorId logits;   // Held by the block until it returns.
  TensorId weights;  // [tokens, k]
  TensorId experts;  // int64 [tokens, k]
};

// softmax(logits.float()), or softmax(logits, dtype=float32), of which the fp16 kernel makes fp32 itself.
TensorId probabilities_of(GraphBuilder& g, Router router, TensorId logits) {
  if (router == Router::Softmax && g.dtype(logits) == DType::Float16) {
    return g.make(Op::Softmax, g.shape(logits), DType::Float32, {logits}, true);
  }
  const TensorId wide = g.cast(logits, DType::Float32);
  const TensorId probabilities = g.unary(Op::Softmax, wide);
  g.drop({wide});
  return probabilities;
}

Routing route(GraphBuilder& g, const ExpertParts& parts, ModuleId gate, TensorId hidden) {
  const Dimensions& d = g.model().dims;
  const std::int64_t tokens = g.shape(hidden).dims[0];
  g.enter(gate);
  const TensorId flat = g.view(hidden, g.shape(hidden));
  const TensorId logits = g.linear(flat, g.parameter("weight"), kNone, d.experts);
  const TensorId probabilities = probabilities_of(g, parts.router, logits);
  const auto [top, experts] = g.select(Op::TopK, probabilities, Shape{tokens, d.experts_per_token});
  TensorId weights = top;
  if (parts.normalised) {
    const TensorId sum = g.make(Op::SumDim, Shape{tokens, 1}, DType::Float32, {top}, true);
    weights = g.binary(Op::Div, top, sum);
    g.drop({sum, top});
  }
  if (parts.router == Router::Softmax) {
    const TensorId narrow = g.cast(weights, g.dtype(logits));
    g.drop({weights});
    weights = narrow;
  }
  g.drop({flat, probabilities});
  g.exit(gate);
  return {logits, weights, experts};
}

// act(gate) * up over the halves of one tensor.
TensorId apply_gate(GraphBuilder& g, ModuleId experts, TensorId both) {
  const std::vector<TensorId> halves = g.split_last(both, 2);
  const ModuleId act = g.child(experts, "act_fn");
  g.enter(act);
  const TensorId active = activated(g, g.model().dims.activation, halves[0]);
  g.exit(act);
  const TensorId out = g.binary(Op::Mul, active, halves[1]);
  g.drop({active, halves[0], halves[1]});
  return out;
}

// The rows of `x` by their expert's weight; rows of experts that live elsewhere are zeroed. The caller rebinds its
// variable to the product before it masks it: with `consumes`, that is where `x` dies.
TensorId grouped_linear(GraphBuilder& g, TensorId x, const char* weight, TensorId offsets, TensorId mask,
                        std::int64_t features, bool consumes) {
  const TensorId product = g.make(Op::GroupedMatmul, Shape{g.shape(x).dims[0], features}, g.dtype(x),
                                  {x, g.parameter(weight), offsets}, true);
  if (consumes) g.drop({x});
  const TensorId masked = g.make(Op::MaskedFill, g.shape(product), g.dtype(product), {product, mask}, true);
  g.drop({product});
  return masked;
}

// Back to token order, then the weighted sum over each token's experts, in fp32.
TensorId combine(GraphBuilder& g, TensorId weighted, TensorId order, std::int64_t tokens, DType dtype) {
  const Dimensions& d = g.model().dims;
  const std::int64_t rows = tokens * d.experts_per_token;
  const TensorId range = g.make(Op::Arange, Shape{rows}, DType::Int64, {});
  const TensorId inverse = g.make(Op::IndexPut, Shape{rows}, DType::Int64, {order, range});
  g.drop({range});
  const TensorId ordered = g.make(Op::Index, g.shape(weighted), g.dtype(weighted), {weighted, inverse}, true);
  g.drop({weighted});
  // The sum's gradient is expanded over a token's experts: back at one row each it has to be copied.
  const Shape by_token{tokens, d.experts_per_token, d.hidden};
  const bool copied = d.experts_per_token > 1 && tokens > 1;
  const TensorId grouped = copied ? g.view_copied_back(ordered, by_token) : g.view(ordered, by_token);
  const TensorId sum = g.make(Op::SumDim, Shape{tokens, d.hidden}, g.dtype(weighted), {grouped}, true);
  g.drop({grouped});
  const TensorId out = g.cast(sum, dtype);
  g.drop({ordered, inverse, sum});
  return out;
}

TensorId run_experts(GraphBuilder& g, ModuleId experts, TensorId hidden, const Routing& routing, std::int64_t ffn) {
  const Dimensions& d = g.model().dims;
  const std::int64_t tokens = g.shape(hidden).dims[0];
  const std::int64_t rows = tokens * d.experts_per_token;
  g.enter(experts);
  const TensorId weights = g.view(routing.weights, Shape{rows});
  const TensorId ids = g.view(routing.experts, Shape{rows});
  const auto [sorted, order] = g.select(Op::Sort, ids, Shape{rows});
  const TensorId source = g.make(Op::FloorDivScalar, Shape{rows}, DType::Int64, {order});
  const TensorId gathered = g.make(Op::Index, Shape{rows, d.hidden}, g.dtype(hidden), {hidden, source}, true);
  g.drop({source});
  const TensorId row_weights = g.make(Op::Index, Shape{rows}, g.dtype(weights), {weights, order}, true);
  const TensorId narrow_ids = g.make(Op::Cast, Shape{rows}, DType::Int32, {sorted});
  const TensorId counts = g.make(Op::Histogram, Shape{d.experts}, DType::Int32, {narrow_ids});
  const TensorId offsets = g.make(Op::CumSum, Shape{d.experts}, DType::Int32, {counts});
  const TensorId flags = g.make(Op::GreaterEqual, Shape{rows}, DType::Bool, {sorted});
  const TensorId mask = g.view(flags, Shape{rows, 1});
  g.drop({flags});
  const TensorId selected = g.in_place(Op::MaskedFillInPlace, gathered, mask);
  const TensorId both = grouped_linear(g, selected, "gate_up_proj", offsets, mask, 2 * ffn, false);
  const TensorId gated = apply_gate(g, experts, both);
  g.drop({both});
  const TensorId projected = grouped_linear(g, gated, "down_proj", offsets, mask, d.hidden, true);
  const TensorId column = g.view(row_weights, Shape{rows, 1});
  const TensorId weighted = g.binary(Op::Mul, projected, column);
  g.drop({column});
  const TensorId out = combine(g, weighted, order, tokens, g.dtype(hidden));
  g.drop({weights, ids, sorted, order, gathered, selected, row_weights, narrow_ids, counts, offsets, mask, projected});
  g.exit(experts);
  return out;
}

}  // namespace

// sigmoid(gate(x)) * shared(x) is added to what the routed experts give (qwen2_moe).
TensorId moe_block(GraphBuilder& g, const ExpertParts& parts, ModuleId block, TensorId hidden,
                   const SharedExpert& shared) {
  const Shape shape = g.shape(hidden);
  g.enter(block);
  const TensorId flat = g.view(hidden, Shape{shape.dims[0] * shape.dims[1], shape.dims[2]});
  TensorId beside = parts.shared_ffn > 0 ? shared(g.child(block, "shared_expert"), flat) : kNone;
  const Routing routing = route(g, parts, g.child(block, "gate"), flat);
  TensorId mixed = run_experts(g, g.child(block, "experts"), flat, routing, parts.ffn);
  if (beside != kNone) {
    const TensorId open = linear_module(g, g.child(block, "shared_expert_gate"), flat, 1);
    const TensorId share = g.unary(Op::Sigmoid, open);
    g.drop({open});
    const TensorId scaled = g.binary(Op::Mul, share, beside);
    g.drop({share, beside});
    const TensorId sum = g.binary(Op::Add, mixed, scaled);
    g.drop({mixed});
    mixed = sum;
    beside = scaled;
  }
  const TensorId out = g.view(mixed, shape);
  g.drop({mixed, flat, routing.logits, routing.weights, routing.experts});
  if (beside != kNone) g.drop({beside});
  g.exit(block);
  return out;
}

}  // namespace dsplan
