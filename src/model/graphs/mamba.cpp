// State-space mixers, and mamba2, which has nothing else: what transformers runs where neither mamba_ssm nor
// causal_conv1d is installed (modeling_mamba2.py: Mamba2Mixer, causal_conv1d_fn, mamba2_chunk_scan).
#include <limits>

#include "model/graphs/activations.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// One dimension of one element, in front of dimension `at`.
TensorId unsqueezed(GraphBuilder& g, TensorId x, std::size_t at) {
  Shape shape = g.shape(x);
  for (std::size_t i = shape.rank++; i > at; --i) shape.dims[i] = shape.dims[i - 1];
  shape.dims[at] = 1;
  return g.view(x, shape);
}

using Swaps = std::initializer_list<std::pair<int, int>>;
TensorId permuted(GraphBuilder& g, TensorId x, Swaps swaps) {
  TensorId out = x;
  Shape at = g.shape(x);
  for (const auto& [first, second] : swaps) {
    std::swap(at.dims[static_cast<std::size_t>(first)], at.dims[static_cast<std::size_t>(second)]);
    const ViewStep step = step_swap(static_cast<std::int8_t>(first), static_cast<std::int8_t>(second));
    const TensorId next = g.view(out, at, {step});
    if (out != x) g.drop({out});
    out = next;
  }
  return out;
}

// The chunked scan, whose frame holds what its names stand for. Letters of shapes: b rows, c chunks, l and s tokens of
// a chunk, h heads, p elements of a head, n states.
class ChunkScan {
 public:
  ChunkScan(GraphBuilder& g, const MambaParts& p)
      : g_(g), p_(p), rows_(g.options().micro_batch), seq_(g.options().seq), chunks_(div_ceil(seq_, p.chunk)) {}

  // Uses up `x`, `b` and `c`, which its arguments alone hold.
  TensorId run(TensorId x, TensorId dt, TensorId a, TensorId b, TensorId c, ModuleId mixer) {
    dt = steps(dt, mixer);
    TensorId hidden = rebound(g_, x, g_.cast(x, DType::Float32));
    b = by_head(b);
    c = by_head(c);
    const TensorId skipped = skip(hidden, mixer);
    const TensorId wide_dt = unsqueezed(g_, dt, 3);
    const TensorId per_element = g_.cast(wide_dt, DType::Float32);
    hidden = rebound(g_, hidden, g_.binary(Op::Mul, hidden, per_element));
    g_.drop({wide_dt, per_element});
    const TensorId wide = g_.cast(dt, DType::Float32);
    a = g_.binary(Op::Mul, a, wide);
    g_.drop({wide});
    const std::array<TensorId, 4> whole{hidden, a, b, c};
    const std::array<TensorId, 4> cut{chunked(hidden), chunked(a), chunked(b), chunked(c)};
    g_.drop({whole[0], whole[1], whole[2], whole[3]});
    const TensorId decays = permuted(g_, cut[1], {{2, 3}, {1, 2}});
    g_.drop({cut[1]});
    const TensorId sums = g_.make(Op::CumSum, g_.shape(decays), DType::Float32, {decays}, true);
    const TensorId own = within(cut[0], decays, cut[2], cut[3]);
    const TensorId output = with_states(own, cut[0], sums, cut[2], cut[3]);
    const Shape by_token{rows_, chunks_ * p_.chunk, p_.heads, p_.head_dim};
    const TensorId joined = rebound(g_, output, g_.view(output, by_token));
    TensorId out = rebound(g_, joined, g_.binary(Op::Add, joined, skipped));
    g_.drop({cut[0], dt, decays, cut[2], cut[3], skipped, sums, own});
    for (const TensorId one : held_) g_.drop({one});
    if (by_token.dims[1] > seq_) out = rebound(g_, out, g_.slice(out, 1, 0, seq_));
    return out;
  }

 private:
  // clamp(softplus(dt + bias)); `dt` stays the caller's.
  TensorId steps(TensorId dt, ModuleId mixer) {
    const TensorId bias = g_.cast(g_.parameter_of(mixer, "dt_bias"), g_.dtype(dt));
    const TensorId shifted = g_.binary(Op::Add, dt, bias);
    g_.drop({bias});
    const TensorId positive = rebound(g_, shifted, g_.unary(Op::Softplus, shifted));
    return rebound(g_, positive, g_.unary(Op::Clamp, positive));
  }

  // Each group's, for all of its heads.
  TensorId by_head(TensorId x) {
    const TensorId wide = rebound(g_, x, g_.cast(x, DType::Float32));
    const Shape repeated{rows_, seq_, p_.groups, p_.heads / p_.groups, p_.state};
    const TensorId apart = rebound(g_, wide, unsqueezed(g_, wide, 3));
    const TensorId expanded = rebound(g_, apart, g_.view(apart, repeated, Op::Expand));
    const TensorId copied = rebound(g_, expanded, g_.copy(expanded));
    return rebound(g_, copied, g_.view(copied, Shape{rows_, seq_, p_.heads, p_.state}));
  }

  TensorId padded(TensorId x) {
    Shape shape = g_.shape(x);
    shape.dims[1] = chunks_ * p_.chunk;
    return g_.make(Op::Pad, shape, g_.dtype(x), {x}, true);
  }

  // D[..., None] * pad(hidden).
  TensorId skip(TensorId hidden, ModuleId mixer) {
    const TensorId factor = unsqueezed(g_, g_.parameter_of(mixer, "D"), 1);
    const TensorId whole = padded(hidden);
    const TensorId out = g_.binary(Op::Mul, factor, whole);
    g_.drop({factor, whole});
    return out;
  }

  TensorId chunked(TensorId x) {
    const TensorId whole = padded(x);
    Shape shape = g_.shape(whole);
    for (std::size_t i = shape.rank++; i > 2; --i) shape.dims[i] = shape.dims[i - 1];
    shape.dims[1] = g_.shape(whole).dims[1] / p_.chunk;
    shape.dims[2] = p_.chunk;
    return rebound(g_, whole, g_.view(whole, shape));
  }

  TensorId triangle(std::int64_t side) {
    const Shape square{side, side};
    const TensorId ones = g_.filled(square, DType::Bool, 1);
    return rebound(g_, ones, g_.make(Op::Tril, square, DType::Bool, {ones}));
  }

  TensorId filled_above(TensorId x, TensorId mask, double number) {
    const TensorId above = g_.make(Op::BitwiseNot, g_.shape(mask), DType::Bool, {mask});
    const TensorId out = g_.make(Op::MaskedFill, g_.shape(x), g_.dtype(x), {x, above}, true, number);
    g_.drop({above});
    return out;
  }

  // exp(segment_sum(x)); uses up `x`.
  TensorId segments(TensorId x) {
    Shape square = g_.shape(x);
    const std::int64_t side = square.dims[square.rank - 1U];
    const TensorId column = rebound(g_, x, unsqueezed(g_, x, square.rank));
    square.dims[square.rank++] = side;
    const TensorId repeated = rebound(g_, column, g_.view(column, square, Op::Expand));
    TensorId mask = triangle(side);
    const TensorId filled = rebound(g_, repeated, filled_above(repeated, mask, 0));
    const TensorId sums = g_.make(Op::CumSum, square, DType::Float32, {filled}, true);
    mask = rebound(g_, mask, triangle(side));
    const TensorId below = rebound(g_, sums, filled_above(sums, mask, -std::numeric_limits<double>::infinity()));
    g_.drop({filled, mask});
    return rebound(g_, below, g_.unary(Op::Exp, below));
  }

  // A name and where it gets one more dimension.
  struct Seen {
    TensorId tensor;
    std::size_t at;
  };
  // (a * b).sum(dim), the summed dimension gone.
  TensorId summed_product(Seen left, Seen right, std::size_t dim) {
    const TensorId a = unsqueezed(g_, left.tensor, left.at);
    const TensorId b = unsqueezed(g_, right.tensor, right.at);
    const TensorId product = g_.binary(Op::Mul, a, b);
    Shape shape = g_.shape(product);
    for (std::size_t i = dim; i + 1 < shape.rank; ++i) shape.dims[i] = shape.dims[i + 1];
    --shape.rank;
    const TensorId sum = g_.make(Op::SumDim, shape, DType::Float32, {product}, true);
    g_.drop({product, a, b});
    return sum;
  }

  // What tokens of a chunk make of each other.
  TensorId within(TensorId hidden, TensorId decays, TensorId b, TensorId c) {
    const TensorId weights = segments(g_.keep(decays));
    const TensorId scores = summed_product({c, 3}, {b, 2}, 5);
    const TensorId turned = permuted(g_, weights, {{1, 2}, {2, 3}, {3, 4}});
    const TensorId mixed = summed_product({scores, 5}, {turned, 5}, 5);
    g_.drop({turned});
    const TensorId out = summed_product({mixed, 5}, {hidden, 2}, 3);
    held_.insert(held_.end(), {weights, scores, mixed});
    return out;
  }

  // What each chunk adds to the state.
  TensorId chunk_states(TensorId hidden, TensorId sums, TensorId b) {
    const TensorId last = g_.slice(sums, 3, p_.chunk - 1, 1);
    const TensorId apart = rebound(g_, last, g_.binary(Op::Sub, last, sums));
    const TensorId decay = rebound(g_, apart, g_.unary(Op::Exp, apart));
    const TensorId turned = permuted(g_, decay, {{1, 2}, {2, 3}});
    const TensorId column = rebound(g_, turned, unsqueezed(g_, turned, 4));
    const TensorId decayed = g_.binary(Op::Mul, b, column);
    g_.drop({column});
    held_.insert(held_.end(), {decay, decayed});
    return summed_product({decayed, 4}, {hidden, 5}, 2);
  }

  // The state before each chunk.
  TensorId carried(TensorId states, TensorId sums) {
    const Shape one{rows_, 1, p_.heads, p_.head_dim, p_.state};
    const TensorId none = g_.filled(one, DType::Float32, 0);
    const TensorId all = rebound(g_, states, g_.cat({none, states}, 1));
    const TensorId ends = g_.view(sums, Shape{rows_, p_.heads, chunks_}, Op::Select);
    const TensorId from_none =
        rebound(g_, ends, g_.make(Op::Pad, Shape{rows_, p_.heads, chunks_ + 1}, DType::Float32, {ends}, true));
    const TensorId decay = segments(from_none);
    const TensorId turned =
        rebound(g_, decay, g_.view(decay, Shape{rows_, chunks_ + 1, chunks_ + 1, p_.heads}, {step_swap(1, 3)}));
    const TensorId column = unsqueezed(g_, turned, 4);
    const TensorId after = summed_product({column, 5}, {all, 2}, 1);
    g_.drop({all, column});
    const TensorId before = g_.slice(after, 1, 0, chunks_);
    held_.insert(held_.end(), {none, turned, after});
    return before;
  }

  // own + what the state before its chunk gives each token.
  TensorId with_states(TensorId own, TensorId hidden, TensorId sums, TensorId b, TensorId c) {
    const TensorId states = carried(chunk_states(hidden, sums, b), sums);
    const TensorId decay = g_.unary(Op::Exp, sums);
    const TensorId read = unsqueezed(g_, c, 4);
    const TensorId written = unsqueezed(g_, states, 2);
    const TensorId product = g_.binary(Op::Mul, read, written);
    g_.drop({read, written});
    const Shape shape{rows_, chunks_, p_.chunk, p_.heads, p_.head_dim};
    const TensorId sum = g_.make(Op::SumDim, shape, DType::Float32, {product}, true);
    const TensorId turned = permuted(g_, decay, {{1, 2}, {2, 3}});
    const TensorId column = rebound(g_, turned, unsqueezed(g_, turned, 4));
    const TensorId scaled = rebound(g_, sum, g_.binary(Op::Mul, sum, column));
    g_.drop({column});
    held_.insert(held_.end(), {states, decay, product, scaled});
    return g_.binary(Op::Add, own, scaled);
  }

  GraphBuilder& g_;
  const MambaParts& p_;
  std::int64_t rows_;
  std::int64_t seq_;
  std::int64_t chunks_;
  std::vector<TensorId> held_;  // By names of the frame.
};

// x * silu(gate), in fp32.
TensorId gated_by(GraphBuilder& g, TensorId x, TensorId gate) {
  const TensorId wide = g.cast(gate, DType::Float32);
  const TensorId open = g.unary(Op::Silu, wide);
  g.drop({wide});
  const TensorId out = g.binary(Op::Mul, x, open);
  g.drop({open});
  return out;
}

// Zamba2RMSNormGated: each group of the width is normed alone; uses up `x`.
TensorId grouped_norm(GraphBuilder& g, ModuleId module, std::int64_t groups, TensorId x, TensorId gate) {
  const Shape whole = g.shape(x);
  g.enter(module);
  const TensorId gated = gated_by(g, x, gate);
  const TensorId apart = g.view(gated, Shape{whole.dims[0], whole.dims[1], groups, whole.dims[2] / groups});
  TensorId variance = kNone;
  const TensorId by_group = rebound(g, apart, normalised(g, apart, &variance));
  const TensorId norm = rebound(g, gated, g.view(by_group, whole));
  const TensorId out = g.binary(Op::Mul, g.parameter("weight"), norm);
  g.drop({norm, variance, by_group, x});
  g.exit(module);
  return out;
}

// MambaRMSNormGated; uses up `x`.
TensorId gated_norm(GraphBuilder& g, ModuleId module, TensorId x, TensorId gate) {
  g.enter(module);
  const TensorId gated = gated_by(g, x, gate);
  TensorId variance = kNone;
  const TensorId norm = normalised(g, gated, &variance);
  g.drop({gated});
  const TensorId out = g.binary(Op::Mul, g.parameter("weight"), norm);
  g.drop({norm, variance, x});
  g.exit(module);
  return out;
}

}  // namespace

TensorId bare_convolution(GraphBuilder& g, ModuleId convolution, TensorId x, std::int64_t kernel) {
  const Shape by_channel = g.shape(x);
  const TensorId weight = asked(g, convolution, "weight");
  const TensorId bias = asked(g, convolution, "bias");
  const TensorId seen = g.view(weight, g.shape(weight));  // squeeze(1), then unsqueeze(1).
  const TensorId own = g.cast(x, g.dtype(weight));
  const TensorId low_bias = g.lowered(bias);
  const TensorId low_weight = g.lowered(seen);
  const TensorId low_x = g.lowered(own);
  Shape shape = by_channel;
  shape.dims[2] += kernel - 1;
  const TensorId made = g.make(Op::Conv2d, shape, g.dtype(low_x), {low_x, low_weight, low_bias}, true);
  g.drop({low_x, low_weight, own, seen});
  if (low_bias != kNone) g.drop({low_bias});
  const TensorId cut = kernel > 1 ? g.slice(made, 2, 0, by_channel.dims[2]) : g.view(made, shape);
  g.drop({made});
  return cut;
}

TensorId causal_convolution(GraphBuilder& g, ModuleId convolution, TensorId x, std::int64_t kernel,
                            std::string_view activation) {
  const Shape by_token = g.shape(x);
  const Shape by_channel{by_token.dims[0], by_token.dims[2], by_token.dims[1]};
  const TensorId turned = g.view(x, by_channel, {step_swap(1, 2)});
  g.drop({x});
  const TensorId cut = bare_convolution(g, convolution, turned, kernel);
  const TensorId active = activated(g, activation, cut);
  g.drop({cut});
  const TensorId out = g.cast(active, g.dtype(turned));
  g.drop({active, turned});
  const TensorId back = g.view(out, by_token, {step_swap(1, 2)});
  g.drop({out});
  return back;
}

TensorId mamba_mixer(GraphBuilder& g, const MambaParts& p, ModuleId module, TensorId hidden) {
  const std::int64_t rows = g.options().micro_batch;
  const std::int64_t seq = g.options().seq;
  g.enter(module);
  const TensorId projected = linear_module(g, g.child(module, "in_proj"), hidden, p.inner + p.convolved() + p.heads);
  const TensorId wide = g.cast(g.parameter_of(module, "A_log"), DType::Float32);
  const TensorId positive = g.unary(Op::Exp, wide);
  g.drop({wide});
  const TensorId a = g.unary(Op::Neg, positive);
  g.drop({positive});
  const std::vector<TensorId> parts = split_last(g, projected, {p.inner, p.convolved(), p.heads});
  // Arguments of one kernel, where its package is installed.
  for (const auto& [child, leaf] :
       {std::pair("conv1d", "weight"), std::pair("conv1d", "bias"), std::pair("norm", "weight"),
        std::pair("out_proj", "weight"), std::pair("out_proj", "bias")}) {
    (void)asked(g, g.child(module, child), leaf);
  }
  const TensorId mixed = causal_convolution(g, g.child(module, "conv1d"), parts[1], p.kernel,
                                            p.activation.empty() ? g.dims().activation : p.activation);
  const std::vector<TensorId> read = split_last(g, mixed, {p.inner, p.groups * p.state, p.groups * p.state});
  const Shape by_group{rows, seq, p.groups, p.state};
  const TensorId x = g.view(read[0], Shape{rows, seq, p.heads, p.head_dim});
  const TensorId b = g.view(read[1], by_group);
  const TensorId c = g.view(read[2], by_group);
  const TensorId scanned = ChunkScan(g, p).run(x, parts[2], a, b, c, module);
  const TensorId flat = g.view(scanned, Shape{rows, seq, p.inner});  // `scanned` has a name of its own.
  const ModuleId norm = g.child(module, "norm");
  const TensorId normed =
      p.norms_by_group ? grouped_norm(g, norm, p.groups, flat, parts[0]) : gated_norm(g, norm, flat, parts[0]);
  const TensorId narrow = g.cast(normed, g.dtype(hidden));
  const TensorId out = linear_module(g, g.child(module, "out_proj"), narrow, g.dims().hidden);
  g.drop({narrow, projected, a, parts[0], mixed, parts[2], read[0], read[1], read[2], scanned, normed});
  g.exit(module);
  return out;
}

namespace {

class Mamba2Graph {
 public:
  Mamba2Graph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), p_(model.parts->mamba), body_(g_.child(g_.causal(), "backbone")) {}

  Graph build() {
    const Shape shape{g_.options().micro_batch, g_.options().seq};
    const TensorId ids = g_.batch_input(shape, DType::Int64);
    const TensorId labels = g_.batch_input(shape, DType::Int64);
    g_.set_batch({ids, labels});
    g_.enter_model();
    const TensorId hidden = body(ids);
    return g_.finish(causal_loss(g_, hidden, labels, [&](TensorId x) { return logits_of(x); }));
  }

 private:
  TensorId norm(ModuleId parent, std::string_view name, TensorId x) {
    return norm_module(g_, NormKind::Rms, g_.child(parent, name), x);
  }

  TensorId layer(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const DType own = g_.dtype(g_.parameter_of(g_.child(module, "norm"), "weight"));
    const TensorId narrow = g_.cast(hidden, own);
    const TensorId normed = norm(module, "norm", narrow);
    g_.drop({narrow});
    const TensorId residual = p_.wide_residual ? g_.cast(hidden, DType::Float32) : g_.keep(hidden);
    const TensorId mixed = mamba_mixer(g_, p_, g_.child(module, "mixer"), normed);
    g_.drop({normed});
    const TensorId out = g_.binary(Op::Add, residual, mixed);
    g_.drop({mixed, residual});
    g_.exit(module);
    return out;
  }

  TensorId body(TensorId ids) {
    g_.enter(body_);
    const TensorId embedded = words_module(g_, g_.child(body_, "embeddings"), ids);
    if (g_.options().inputs_require_grad) g_.require_grad(embedded);
    const auto nothing = [](std::size_t) { return std::vector<TensorId>{}; };
    const TensorId hidden = run_layers(g_, g_.child(body_, "layers"), g_.keep(embedded), nothing,
                                       [&](ModuleId module, std::size_t, TensorId x) { return layer(module, x); });
    const TensorId normed = norm(body_, "norm_f", hidden);
    g_.drop({hidden, embedded});
    g_.exit(body_);
    return normed;
  }

  // lm_head(hidden.to(its dtype)).float().
  TensorId logits_of(TensorId hidden) {
    const ModuleId head = g_.child(g_.causal(), "lm_head");
    const TensorId weight = g_.parameter_of(head, "weight");
    const TensorId own = g_.cast(hidden, g_.dtype(weight));
    const TensorId logits = vocabulary_head(g_, head, own);
    g_.drop({own});
    const TensorId wide = g_.cast(logits, DType::Float32);
    g_.drop({logits});
    return wide;
  }

  GraphBuilder g_;
  const MambaParts& p_;
  ModuleId body_;
};

}  // namespace

Graph build_mamba2_graph(const ModelSpec& model, const GraphOptions& options) {
  return Mamba2Graph(model, options).build();
}

}  // namespace dsplan
