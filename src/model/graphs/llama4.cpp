// What llama4's layers have of their own: heads that are turned and normed before they change places with the tokens,
// queries with a temperature by position, and experts that each see every token, weighed by a sigmoid that is none for
// those that were not chosen.
#include <limits>

#include "model/graphs/builder.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// Whether the gradients of queries and keys come back head by head.
struct ByHead {
  bool q = false;
  bool k = false;
};

// The gradient of view_as_real is made contiguous before it is seen as complex.
TensorId turned_pairs(GraphBuilder& g, TensorId numbers, TensorId tables, const Shape& shape, bool copied) {
  const TensorId turned = g.make(Op::ComplexMul, g.shape(numbers), DType::Float32, {numbers, tables}, true);
  const TensorId flat = copied ? g.view_copied_back(turned, shape) : g.view(turned, shape);
  g.drop({turned});
  return flat;
}

// Uses up `x`.
QueryKey turned_by_token(GraphBuilder& g, QueryKey x, const Waves& waves, ByHead back) {
  const Shape& table = g.shape(waves.cos);
  const TensorId seen = g.view(waves.cos, Shape{1, table.dims[1], 1, table.dims[2], 2});
  const QueryKey numbers{complex_pairs(g, x.q), complex_pairs(g, x.k)};
  const QueryKey flat{turned_pairs(g, numbers.q, seen, g.shape(x.q), back.q),
                      turned_pairs(g, numbers.k, seen, g.shape(x.k), back.k)};
  const QueryKey out{g.cast(flat.q, g.dtype(x.q)), g.cast(flat.k, g.dtype(x.k))};
  g.drop({numbers.q, numbers.k, flat.q, flat.k, x.q, x.k, seen});
  return out;
}

// q * (log1p(floor((position + 1) / floor_scale)) * attn_scale + 1), in q's dtype. Op::Log is of one plus its number.
TensorId tempered(GraphBuilder& g, const DecoderParts& p, TensorId q, std::vector<TensorId>& held) {
  const std::int64_t seq = g.options().seq;
  const TensorId range = arange(g, seq);
  const TensorId positions = g.make(Op::AddScalar, Shape{seq}, DType::Int64, {range});
  g.drop({range});
  TensorId scales = g.make(Op::Cast, Shape{seq}, DType::Float32, {positions});
  const auto becomes = [&](Op op, double number) {
    const TensorId next = g.make(op, Shape{seq}, DType::Float32, {scales}, false, number);
    g.drop({scales});
    scales = next;
  };
  becomes(Op::AddScalar, 1);
  becomes(Op::DivScalar, p.temperature_floor);
  becomes(Op::FloorDivScalar, 1);
  becomes(Op::Log, 1);
  becomes(Op::MulScalar, p.temperature_scale);
  becomes(Op::AddScalar, 1);
  const TensorId column = g.view(scales, Shape{1, seq, 1, 1});
  const TensorId spread = g.view(column, Shape{g.options().micro_batch, seq, 1, 1}, Op::Expand);
  g.drop({scales, column});
  const TensorId product = g.binary(Op::Mul, q, spread);
  const TensorId out = g.cast(product, g.dtype(q));
  g.drop({product, q});
  held.insert(held.end(), {positions, spread});
  return out;
}

}  // namespace

// q * (1 + beta * log(1 + floor(position / original_max_position_embeddings))), brought to q's dtype first.
TensorId tempered_behind(GraphBuilder& g, const DecoderParts& p, TensorId q, TensorId ids) {
  const std::int64_t seq = g.options().seq;
  TensorId scales = g.make(Op::DivScalar, Shape{1, seq}, DType::Float32, {ids}, false, p.temperature_floor);
  const auto becomes = [&](Op op, double number) {
    const TensorId next = g.make(op, Shape{1, seq}, DType::Float32, {scales}, false, number);
    g.drop({scales});
    scales = next;
  };
  becomes(Op::FloorDivScalar, 1);
  becomes(Op::AddScalar, 1);
  becomes(Op::Log, 0);
  becomes(Op::MulScalar, p.temperature_scale);
  becomes(Op::AddScalar, 1);
  const TensorId column = g.view(scales, Shape{1, 1, seq, 1});
  g.drop({scales});
  const TensorId narrow = g.cast(column, g.dtype(q));
  g.drop({column});
  const TensorId out = g.binary(Op::Mul, q, narrow);
  g.drop({narrow, q});
  return out;
}

namespace {

// Whether the gradient of the keys lies otherwise than [B, S, H, D]. A product's is that of keys whose tokens come
// last, which of one row is a matrix that the projection takes.
bool keys_come_back_otherwise(const GraphBuilder& g, bool turns, bool masked) {
  const GraphOptions& options = g.options();
  const Dimensions& d = g.dims();
  if (options.seq == 1) return false;
  const bool composed = options.eager_attention || options.math_attention;
  if (composed && d.heads == d.kv_heads) return turns || options.micro_batch > 1;
  return d.kv_heads > 1 && values_come_back_by_head(options, d, masked);
}

// The router's sigmoids in the hidden state's dtype, and its logits.
struct Scores {
  TensorId scores = kNone;
  TensorId logits = kNone;
};

Scores routed_scores(GraphBuilder& g, ModuleId router, TensorId flat) {
  const Dimensions& d = g.dims();
  const std::int64_t tokens = g.shape(flat).dims[0];
  g.enter(router);
  const TensorId logits = g.linear(flat, g.parameter("weight"), kNone, d.experts);
  const auto [top, chosen] = g.select(Op::TopK, logits, Shape{tokens, d.experts_per_token});
  const TensorId none = g.filled(g.shape(logits), g.dtype(logits), -std::numeric_limits<double>::infinity());
  const TensorId marked = g.in_place(Op::Scatter, none, chosen, 1, 0, top);
  const TensorId wide = g.cast(marked, DType::Float32);
  const TensorId open = g.unary(Op::Sigmoid, wide);
  g.drop({wide});
  const TensorId scores = g.cast(open, g.dtype(logits));
  g.drop({open, top, chosen, none, marked});
  g.exit(router);
  return {scores, logits};
}

TensorId stacked_product(GraphBuilder& g, TensorId a, TensorId b) {
  const TensorId low_b = g.lowered(b);
  const TensorId low_a = g.lowered(a);
  const Shape shape{g.shape(a).dims[0], g.shape(a).dims[1], g.shape(b).dims[2]};
  const TensorId out = g.make(Op::Bmm, shape, g.dtype(low_a), {low_a, low_b}, true);
  g.drop({low_b, low_a});
  return out;
}

// All experts over rows that lie expert by expert.
TensorId stacked_experts(GraphBuilder& g, ModuleId experts, TensorId rows) {
  const Dimensions& d = g.dims();
  g.enter(experts);
  const TensorId apart = g.view(rows, Shape{d.experts, g.shape(rows).dims[0] / d.experts, d.hidden});
  const TensorId both = stacked_product(g, apart, g.parameter("gate_up_proj"));
  const std::vector<TensorId> halves = split_last(g, both, equal_widths(g, both, 2));
  const TensorId active = activation_module(g, g.child(experts, "act_fn"), halves[0]);
  const TensorId product = g.binary(Op::Mul, halves[1], active);
  g.drop({active});
  const TensorId made = stacked_product(g, product, g.parameter("down_proj"));
  g.drop({product});
  const TensorId out = g.view(made, g.shape(rows));
  g.drop({made, apart, both, halves[0], halves[1]});
  g.exit(experts);
  return out;
}

}  // namespace

QueryKey token_projections(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                           const LayerInputs& given, TensorId& value, std::vector<TensorId>& held) {
  const Dimensions& d = g.dims();
  const bool masked = given.mask != kNone;
  const auto several = [&](std::int64_t heads) { return heads > 1 && g.options().seq > 1; };
  const bool values = several(d.kv_heads) && values_come_back_by_head(g.options(), d, masked);
  ByHead back;
  back.q = several(d.heads) && queries_come_back_by_head(g.options(), d, masked);
  back.k = keys_come_back_otherwise(g, given.turns, masked);
  QueryKey x;
  x.q = heads_of_tokens(g, g.child(module, "q_proj"), hidden, d.heads, back.q && !given.turns);
  x.k = heads_of_tokens(g, g.child(module, "k_proj"), hidden, d.kv_heads, back.k && !given.turns);
  value = heads_before_tokens(g, heads_of_tokens(g, g.child(module, "v_proj"), hidden, d.kv_heads, values));
  if (given.turns) x = turned_by_token(g, x, given.waves, back);
  if (const ModuleId norm = g.model().child(module, "qk_norm"); norm != kNone) {
    for (TensorId* one : {&x.q, &x.k}) {
      const TensorId normed = norm_module(g, p.norm, norm, *one);
      g.drop({*one});
      *one = normed;
    }
  }
  if (p.tempered && !given.turns) x.q = tempered(g, p, x.q, held);
  return {heads_before_tokens(g, x.q), heads_before_tokens(g, x.k)};
}

Mixed every_expert(GraphBuilder& g, ModuleId block, TensorId hidden, const SharedExpert& shared) {
  const Shape shape = g.shape(hidden);
  const std::int64_t tokens = shape.dims[0] * shape.dims[1];
  const std::int64_t experts = g.dims().experts;
  g.enter(block);
  const TensorId flat = g.view(hidden, Shape{tokens, shape.dims[2]});
  const Scores made = routed_scores(g, g.child(block, "router"), flat);
  const Shape stacked{experts * tokens, shape.dims[2]};
  // Of one repetition the gradient is the input's as it is.
  const TensorId repeated = experts > 1 ? g.make(Op::Repeat, stacked, g.dtype(flat), {flat}, true) : g.copy(flat);
  const TensorId turned = g.view(made.scores, Shape{experts, tokens}, {step_swap(0, 1)});
  const TensorId copied = experts > 1 && tokens > 1 ? g.copy(turned) : g.keep(turned);
  const TensorId column = g.view(copied, Shape{experts * tokens, 1});
  g.drop({turned, copied});
  const TensorId rows = g.binary(Op::Mul, repeated, column);
  g.drop({repeated, column});
  const TensorId routed = stacked_experts(g, g.child(block, "experts"), rows);
  const TensorId beside = shared(g.child(block, "shared_expert"), flat);
  const Shape by_expert{experts, tokens, shape.dims[2]};
  // autocast sums in fp32, so that the sum's gradient is brought back; otherwise it is spread over the experts.
  const DType summed = g.options().autocast ? DType::Float32 : g.dtype(routed);
  const bool spread = experts > 1 && tokens > 1 && summed == g.dtype(routed);
  const TensorId apart = spread ? g.view_copied_back(routed, by_expert) : g.view(routed, by_expert);
  const TensorId sum = g.make(Op::SumDim, Shape{tokens, shape.dims[2]}, summed, {apart}, true);
  g.drop({apart});
  const TensorId joint = g.in_place(Op::Add, beside, sum);
  g.drop({sum, beside});
  const TensorId out = g.view(joint, shape);
  g.drop({joint, rows, routed, made.scores, flat});
  g.exit(block);
  return {out, made.logits};
}

}  // namespace dsplan
