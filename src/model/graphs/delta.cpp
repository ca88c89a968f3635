// The gated delta net of qwen3_next and qwen3_5: what transformers runs where neither flash-linear-attention nor
// causal_conv1d is installed (modeling_qwen3_next.py: Qwen3NextGatedDeltaNet, torch_chunk_gated_delta_rule).
#include <cmath>
#include <limits>

#include "model/graphs/attention.h"
#include "model/graphs/linear.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

constexpr std::int64_t kChunk = 64;  // torch_chunk_gated_delta_rule's chunk_size.

TensorId transposed(GraphBuilder& g, TensorId x) {
  Shape shape = g.shape(x);
  const auto last = static_cast<std::int8_t>(shape.rank - 1);
  std::swap(shape.dims[shape.rank - 1U], shape.dims[shape.rank - 2U]);
  return g.view(x, shape, {step_swap(static_cast<std::int8_t>(last - 1), last)});
}

// The rule in chunks of tokens, whose frame holds what its names stand for. Letters of shapes: b rows, h heads, c
// chunks, l tokens of a chunk, k and v elements of a key and a value.
class DeltaRule {
 public:
  DeltaRule(GraphBuilder& g, const DeltaParts& p)
      : g_(g), p_(p), rows_(g.options().micro_batch), seq_(g.options().seq), chunks_(div_ceil(seq_, kChunk)) {}

  // All by token; the caller keeps them.
  TensorId run(TensorId q, TensorId k, TensorId v, TensorId decay, TensorId beta) {
    const DType asked = g_.dtype(q);
    TensorId query = wide(q);
    TensorId key = wide(k);
    const TensorId value = wide(v);
    const TensorId rate = wide(beta);
    const TensorId log_decay = wide(decay);
    query = rebound(g_, query, normed(query));
    key = rebound(g_, key, normed(key));
    query = rebound(g_, query, g_.unary(Op::MulScalar, query, 1 / std::sqrt(static_cast<double>(p_.key_dim))));
    const std::vector<TensorId> old{query, key, value};
    query = padded(query);
    key = padded(key);
    const TensorId values = padded(value);
    for (const TensorId one : old) g_.drop({one});
    const TensorId rates = padded(rate);
    const TensorId decays = padded(log_decay);
    g_.drop({rate, log_decay});
    TensorId scaled_values = scaled(values, rates);
    TensorId scaled_keys = scaled(key, rates);
    query = chunked(query);
    key = chunked(key);
    scaled_keys = chunked(scaled_keys, true);
    scaled_values = chunked(scaled_values, true);
    const TensorId cut = g_.view(decays, Shape{rows_, p_.heads, chunks_, kChunk});
    g_.drop({decays});
    const TensorId out = solved(query, key, scaled_keys, scaled_values, cut);
    held_.insert(held_.end(), {values, rates});
    const bool whole = chunks_ * kChunk == seq_;
    const TensorId own = whole ? out : rebound(g_, out, g_.slice(out, 2, 0, seq_));
    const Shape by_token{rows_, seq_, p_.heads, p_.value_dim};
    const TensorId turned = rebound(g_, own, g_.view(own, by_token, {step_swap(1, 2)}));
    const TensorId narrow = rebound(g_, turned, g_.cast(turned, asked));
    for (const TensorId one : held_) g_.drop({one});
    for (const TensorId one : unread_) g_.forget(one);
    return narrow;
  }

 private:
  // x.transpose(1, 2).to(fp32).
  TensorId wide(TensorId x) {
    Shape shape = g_.shape(x);
    std::swap(shape.dims[1], shape.dims[2]);
    const TensorId turned = g_.view(x, shape, {step_swap(1, 2)});
    const TensorId out = g_.cast(turned, DType::Float32);
    g_.drop({turned});
    return out;
  }

  // x * rsqrt((x * x).sum(-1) + eps).
  TensorId normed(TensorId x) {
    Shape narrow = g_.shape(x);
    narrow.dims[3] = 1;
    const TensorId squared = g_.binary(Op::Mul, x, x);
    const TensorId sum = g_.make(Op::SumDim, narrow, DType::Float32, {squared}, true);
    g_.drop({squared});
    const TensorId shifted = rebound(g_, sum, g_.unary(Op::AddScalar, sum, 1e-6));
    const TensorId inverse = rebound(g_, shifted, g_.unary(Op::Rsqrt, shifted));
    const TensorId out = g_.binary(Op::Mul, x, inverse);
    g_.drop({inverse});
    return out;
  }

  TensorId padded(TensorId x) {
    Shape shape = g_.shape(x);
    shape.dims[2] = chunks_ * kChunk;
    return g_.make(Op::Pad, shape, g_.dtype(x), {x}, true);
  }

  // x * rates.unsqueeze(-1).
  TensorId scaled(TensorId x, TensorId rates) {
    Shape column = g_.shape(rates);
    column.dims[column.rank++] = 1;
    const TensorId seen = g_.view(rates, column);
    const TensorId out = g_.binary(Op::Mul, x, seen);
    g_.drop({seen});
    return out;
  }

  // `solved`: its gradient comes from the solver, column by column.
  TensorId chunked(TensorId x, bool solved = false) {
    const Shape shape{rows_, p_.heads, chunks_, kChunk, g_.shape(x).dims[3]};
    return rebound(g_, x, solved && chunks_ > 1 ? g_.view_copied_back(x, shape) : g_.view(x, shape));
  }

  // exp(cum_i - cum_j) where j comes no later than i.
  TensorId pairwise(TensorId sums) {
    const Shape square{kChunk, kChunk};
    const TensorId ones = g_.filled(square, DType::Bool, 1);
    mask_ = rebound(g_, ones, g_.make(Op::Triu, square, DType::Bool, {ones}));
    sums_ = g_.make(Op::CumSum, g_.shape(sums), DType::Float32, {sums}, true);
    const TensorId column = g_.view(sums_, Shape{rows_, p_.heads, chunks_, kChunk, 1});
    const TensorId row = g_.view(sums_, Shape{rows_, p_.heads, chunks_, 1, kChunk});
    const TensorId apart = g_.binary(Op::Sub, column, row);
    g_.drop({column, row});
    const TensorId below = rebound(g_, apart,
                                   g_.make(Op::MaskedFill, g_.shape(apart), DType::Float32, {apart, mask_}, true,
                                           -std::numeric_limits<double>::infinity()));
    return rebound(g_, below, g_.unary(Op::Exp, below));
  }

  // (a @ b.transpose(-1, -2)) * decay.
  TensorId products(TensorId a, TensorId b, TensorId decay) {
    const TensorId turned = transposed(g_, b);
    const TensorId product = g_.matmul(a, turned);
    g_.drop({turned});
    return rebound(g_, product, g_.binary(Op::Mul, product, decay));
  }

  TensorId decayed(TensorId x, TensorId sums) {
    const TensorId decay = g_.unary(Op::Exp, sums);
    const TensorId out = scaled(x, decay);
    g_.drop({decay});
    return out;
  }

  TensorId solve(TensorId system, TensorId right) {
    return g_.make(Op::SolveTriangular, g_.shape(right), DType::Float32, {system, right}, true);
  }

  TensorId solved(TensorId query, TensorId key, TensorId scaled_keys, TensorId scaled_values, TensorId cut) {
    const TensorId decay = pairwise(cut);
    const TensorId system = products(scaled_keys, key, decay);
    const TensorId scores = products(query, key, decay);
    const TensorId decayed_keys = decayed(scaled_keys, sums_);
    const TensorId values = solve(system, scaled_values);
    const TensorId keys = solve(system, decayed_keys);
    const TensorId none = g_.filled(Shape{rows_, p_.heads, p_.key_dim, p_.value_dim}, DType::Float32, 0);
    const TensorId empty = g_.filled(g_.shape(values), DType::Float32, 0);
    query = rebound(g_, query, decayed(query, sums_));
    const TensorId ends = g_.slice(sums_, 3, kChunk - 1, 1);
    const TensorId apart = rebound(g_, ends, g_.binary(Op::Sub, ends, sums_));
    const TensorId rest = rebound(g_, apart, g_.unary(Op::Exp, apart));
    key = rebound(g_, key, scaled(key, rest));
    g_.drop({rest});
    if (chunks_ == 1) unread_.insert(unread_.end(), {key, rest, apart});
    const TensorId last = g_.view(sums_, Shape{rows_, p_.heads, chunks_}, Op::Select);
    const TensorId faded = rebound(g_, last, g_.unary(Op::Exp, last));
    const TensorId by_chunk = rebound(g_, faded, g_.view(faded, Shape{rows_, p_.heads, chunks_, 1, 1}));
    if (chunks_ == 1) unread_.insert(unread_.end(), {by_chunk, faded, last});
    const TensorId filled = scanned({query, key, values, keys, scores, by_chunk}, none, empty);
    const Shape joined{rows_, p_.heads, chunks_ * kChunk, p_.value_dim};
    // The solver's results lie column by column, and so does what is made like them.
    const bool copied = chunks_ > 1 && p_.value_dim > 1;
    const TensorId flat = copied ? rebound(g_, filled, g_.copy(filled)) : filled;
    const TensorId out = rebound(g_, flat, g_.view(flat, joined));
    held_.insert(held_.end(), {query, key, scaled_keys, scaled_values, cut, mask_, sums_, decay, system, scores,
                               decayed_keys, values, keys, by_chunk, read_, corrected_});
    return out;
  }

  struct Chunks {
    TensorId query, key, values, keys, scores, decay;
  };

  TensorId at(TensorId x) {
    Shape part = g_.shape(x);
    for (std::size_t i = 2; i + 1 < part.rank; ++i) part.dims[i] = part.dims[i + 1];
    --part.rank;
    return g_.view(x, part, Op::Select);
  }

  TensorId product_at(TensorId x, TensorId with) {
    const TensorId part = at(x);
    const TensorId out = g_.matmul(part, with);
    g_.drop({part});
    return out;
  }

  // The scan over chunks. Uses up `state` and `out`; the last state is nobody's.
  TensorId scanned(const Chunks& c, TensorId state, TensorId out) {
    for (std::int64_t i = 0; i < chunks_; ++i) {
      const TensorId value = at(c.values);
      const TensorId known = product_at(c.keys, state);
      const TensorId corrected = g_.binary(Op::Sub, value, known);
      g_.drop({value, known});
      if (corrected_ != kNone) g_.drop({corrected_});
      corrected_ = corrected;
      const TensorId read = product_at(c.query, state);
      if (read_ != kNone) g_.drop({read_});
      read_ = read;
      const TensorId own = product_at(c.scores, corrected_);
      const TensorId sum = g_.binary(Op::Add, read_, own);
      g_.drop({own});
      out = rebound(g_, out, g_.in_place(Op::CopyInto, out, sum, 2, i));
      g_.drop({sum});
      state = next(c, state, i + 1 == chunks_);
    }
    return out;
  }

  TensorId next(const Chunks& c, TensorId state, bool last) {
    const TensorId fade = at(c.decay);
    const TensorId kept = g_.binary(Op::Mul, state, fade);
    const TensorId keys = at(c.key);
    const TensorId turned = transposed(g_, keys);
    const TensorId added = g_.matmul(turned, corrected_);
    const TensorId sum = g_.binary(Op::Add, kept, added);
    g_.drop({fade, keys, turned, kept, added, state});
    if (!last) return sum;
    g_.drop({sum});
    for (const TensorId one : {sum, added, turned, keys, kept, fade}) g_.forget(one);
    return kNone;
  }

  GraphBuilder& g_;
  const DeltaParts& p_;
  std::int64_t rows_;
  std::int64_t seq_;
  std::int64_t chunks_;
  TensorId mask_ = kNone;
  TensorId sums_ = kNone;
  TensorId read_ = kNone;
  TensorId corrected_ = kNone;
  std::vector<TensorId> held_;    // By names of the frame.
  std::vector<TensorId> unread_;  // Of one chunk: nothing but the state behind it is made of these.
};

// What the projections give, as they lie by group of heads.
struct Mixed4 {
  TensorId query, key, value, z, b, a;
};

// reshape of one of several parts of a group: a copy, unless there is one group or one head in it.
TensorId regrouped(GraphBuilder& g, TensorId part, const Shape& shape, bool copies) {
  const TensorId flat = copies ? g.copy(part) : g.keep(part);
  const TensorId out = g.view(flat, shape);
  g.drop({flat, part});
  return out;
}

Mixed4 ordered(GraphBuilder& g, const DeltaParts& p, TensorId wide, TensorId narrow) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const std::int64_t share = p.heads / p.key_heads;
  const std::int64_t values = share * p.value_dim;
  const TensorId groups = g.view(wide, Shape{rows, seq, p.key_heads, 2 * p.key_dim + 2 * values});
  const TensorId pairs = g.view(narrow, Shape{rows, seq, p.key_heads, 2 * share});
  const std::vector<TensorId> parts = split_last(g, groups, {p.key_dim, p.key_dim, values, values});
  const std::vector<TensorId> rates = split_last(g, pairs, {share, share});
  const bool copies = p.key_heads > 1 && share > 1;
  const Shape by_head{rows, seq, p.heads, p.value_dim};
  const Shape flat{rows, seq, p.heads};
  Mixed4 made;
  made.value = regrouped(g, parts[2], by_head, copies);
  made.z = regrouped(g, parts[3], by_head, copies);
  made.b = regrouped(g, rates[0], flat, copies);
  made.a = regrouped(g, rates[1], flat, copies);
  g.drop({groups, pairs});
  const Shape keys{rows, seq, p.key_heads * p.key_dim};
  const bool several = p.key_heads > 1;
  made.query = regrouped(g, parts[0], keys, several);
  made.key = regrouped(g, parts[1], keys, several);
  // Of several groups with one head each the value is still a part of the product.
  made.value = regrouped(g, made.value, Shape{rows, seq, p.heads * p.value_dim}, several && !copies);
  return made;
}

// weight * x_normed, then times silu of the gate in fp32 (Qwen3NextRMSNormGated).
TensorId norm_then_gate(GraphBuilder& g, ModuleId module, TensorId x, TensorId gate) {
  g.enter(module);
  const DType asked = g.dtype(x);
  const TensorId wide = g.cast(x, DType::Float32);
  TensorId variance = kNone;
  const TensorId norm = normalised(g, wide, &variance);
  g.drop({wide});
  const TensorId narrow = g.cast(norm, asked);
  TensorId hidden = g.binary(Op::Mul, g.parameter("weight"), narrow);
  g.drop({narrow, norm});
  const TensorId wide_gate = g.cast(gate, DType::Float32);
  const TensorId open = g.unary(Op::Silu, wide_gate);
  g.drop({wide_gate});
  hidden = rebound(g, hidden, g.binary(Op::Mul, hidden, open));
  g.drop({open});
  const TensorId out = g.cast(hidden, asked);
  g.drop({hidden, variance});
  g.exit(module);
  return out;
}

// -exp(A) * softplus(a + bias).
TensorId log_decays(GraphBuilder& g, ModuleId module, TensorId a) {
  const TensorId wide = g.cast(g.parameter_of(module, "A_log"), DType::Float32);
  const TensorId positive = rebound(g, wide, g.unary(Op::Exp, wide));
  const TensorId negative = rebound(g, positive, g.unary(Op::Neg, positive));
  const TensorId wide_a = g.cast(a, DType::Float32);
  const TensorId shifted = g.binary(Op::Add, wide_a, g.parameter_of(module, "dt_bias"));
  g.drop({wide_a});
  const TensorId step = rebound(g, shifted, g.unary(Op::Softplus, shifted));
  const TensorId out = g.binary(Op::Mul, negative, step);
  g.drop({negative, step});
  return out;
}

// Each key head's, for the heads of values that share it; uses up `x`.
TensorId for_all_heads(GraphBuilder& g, const DeltaParts& p, TensorId x) {
  const std::int64_t share = p.heads / p.key_heads;
  if (share == 1) return x;
  const Shape by_token = g.shape(x);
  const Shape apart{by_token.dims[0], by_token.dims[1], p.key_heads, 1, p.key_dim};
  Shape repeated = apart;
  repeated.dims[3] = share;
  const TensorId column = rebound(g, x, g.view(x, apart));
  const TensorId expanded = rebound(g, column, g.view(column, repeated, Op::Expand));
  const TensorId copied = rebound(g, expanded, g.copy(expanded));
  return rebound(g, copied, g.view(copied, Shape{by_token.dims[0], by_token.dims[1], p.heads, p.key_dim}));
}

// What the convolution is given, and what stands beside it. `parts` live until the convolution has run.
struct Projected {
  TensorId joined, z, b, a;
  std::vector<TensorId> parts;
};

// Two products, from which parts are sorted (qwen3_next); `held` by names of the mixer.
Projected projected(GraphBuilder& g, const DeltaParts& p, ModuleId module, TensorId hidden,
                    std::vector<TensorId>& held) {
  const std::int64_t both = 2 * p.key_heads * p.key_dim + 2 * p.heads * p.value_dim;
  const TensorId wide = linear_module(g, g.child(module, "in_proj_qkvz"), hidden, both);
  const TensorId narrow = linear_module(g, g.child(module, "in_proj_ba"), hidden, 2 * p.heads);
  const Mixed4 made = ordered(g, p, wide, narrow);
  held = {wide, narrow};
  const TensorId joined = g.cat({made.query, made.key, made.value}, 2);
  return {joined, made.z, made.b, made.a, {made.query, made.key, made.value}};
}

// A product each (qwen3_5).
Projected apart(GraphBuilder& g, const DeltaParts& p, ModuleId module, TensorId hidden) {
  const std::int64_t values = p.heads * p.value_dim;
  const auto product = [&](std::string_view name, std::int64_t width) {
    return linear_module(g, g.child(module, name), hidden, width);
  };
  Projected made{};
  // The gradients of the convolution's and of the rule's operand come channel by channel and head by head, which of one
  // row is a matrix that the product takes.
  const bool several = g.options().micro_batch > 1 && g.options().seq > 1;
  const auto turned_back = [&](std::string_view name, std::int64_t width, bool copied) {
    Shape shape = g.shape(hidden);
    shape.dims[shape.rank - 1U] = width;
    if (copied) return linear_by_column(g, g.child(module, name), hidden, width, shape, {});
    const TensorId x = product(name, width);
    return rebound(g, x, g.view(x, shape));
  };
  made.joined = turned_back("in_proj_qkv", 2 * p.key_heads * p.key_dim + values, several);
  const TensorId flat = product("in_proj_z", values);
  made.z = rebound(g, flat, g.view(flat, Shape{g.options().micro_batch, g.options().seq, p.heads, p.value_dim}));
  made.b = turned_back("in_proj_b", p.heads, several && p.heads > 1);
  made.a = product("in_proj_a", p.heads);
  return made;
}

}  // namespace

TensorId delta_mixer(GraphBuilder& g, const DeltaParts& p, ModuleId module, TensorId hidden) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  const std::int64_t keys = p.key_heads * p.key_dim;
  const std::int64_t values = p.heads * p.value_dim;
  g.enter(module);
  std::vector<TensorId> held;
  const Projected made = p.apart ? apart(g, p, module, hidden) : projected(g, p, module, hidden, held);
  const TensorId mixed = causal_convolution(g, g.child(module, "conv1d"), made.joined, p.kernel, g.dims().activation);
  for (const TensorId one : made.parts) g.drop({one});
  const std::vector<TensorId> parts = split_last(g, mixed, {keys, keys, values});
  const auto by_heads = [&](TensorId part, std::int64_t heads, std::int64_t width, bool copied) {
    const Shape shape{rows, seq, heads, width};
    return rebound(g, part, copied ? g.view_copied_back(part, shape) : g.view(part, shape));
  };
  const bool alone = p.heads == p.key_heads;  // Its gradient comes head by head.
  const TensorId few_queries = by_heads(parts[0], p.key_heads, p.key_dim, alone && p.heads > 1 && seq > 1);
  const TensorId few_keys = by_heads(parts[1], p.key_heads, p.key_dim, alone && p.heads > 1 && seq > 1);
  const TensorId value = by_heads(parts[2], p.heads, p.value_dim, p.heads > 1 && seq > kChunk);
  const TensorId beta = g.unary(Op::Sigmoid, made.b);
  const TensorId decay = log_decays(g, module, made.a);
  const TensorId query = for_all_heads(g, p, few_queries);
  const TensorId key = for_all_heads(g, p, few_keys);
  const TensorId attended = DeltaRule(g, p).run(query, key, value, decay, beta);
  const Shape flat{rows * seq * p.heads, p.value_dim};
  const bool strided = g.dtype(query) == DType::Float32 && p.heads > 1 && seq > 1;
  const TensorId whole = strided ? rebound(g, attended, g.copy(attended)) : attended;
  const TensorId core = rebound(g, whole, g.view(whole, flat));
  const TensorId gate = rebound(g, made.z, g.view(made.z, flat));
  const TensorId normed = rebound(g, core, norm_then_gate(g, g.child(module, "norm"), core, gate));
  const TensorId by_token = rebound(g, normed, g.view(normed, Shape{rows, seq, values}));
  const TensorId out = linear_module(g, g.child(module, "out_proj"), by_token, g.dims().hidden);
  for (const TensorId one : held) g.drop({one});
  g.drop({query, key, value, gate, made.b, made.a, mixed, beta, decay, by_token});
  g.exit(module);
  return out;
}

}  // namespace dsplan
