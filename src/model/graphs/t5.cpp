// t5: transformers' T5ForConditionalGeneration, module by module: an encoder, and a decoder that sees what it made in
// every block. The first block of each stack makes the biases of relative positions, and the others are given them; of
// the encoder's tokens the decoder's first block makes biases of zeros. umt5's blocks all make their own.
#include <cmath>
#include <utility>

#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

// _relative_position_bucket: of each pair of places, in int64.
class Buckets {
 public:
  Buckets(GraphBuilder& g, const Shape& pairs, std::int64_t buckets, bool both_sides, bool named_ratio)
      : g_(g),
        shape_(pairs),
        both_sides_(both_sides),
        named_ratio_(named_ratio),
        buckets_(static_cast<double>(both_sides ? buckets / 2 : buckets)),
        exact_(std::floor(buckets_ / 2)) {}

  TensorId of(TensorId relative) {
    const TensorId later = both_sides_ ? of_later(relative) : kNone;
    const TensorId apart = both_sides_ ? g_.make(Op::Abs, shape_, DType::Int64, {relative}) : before(relative);
    const TensorId near = g_.make(Op::Less, shape_, DType::Bool, {apart}, false, exact_);
    const TensorId far = of_far(apart);
    const TensorId chosen = g_.make(Op::Where, shape_, DType::Int64, {near, apart, far});
    TensorId out = kNone;
    if (both_sides_) {
      out = g_.in_place(Op::Add, later, chosen);
      g_.drop({later});
    } else {
      out = number(Op::AddScalar, chosen, DType::Int64, 0);
    }
    g_.drop({chosen, far, near, apart});
    if (ratio_ != kNone) g_.drop({ratio_});
    return out;
  }

 private:
  TensorId number(Op op, TensorId x, DType dtype, double with) { return g_.make(op, shape_, dtype, {x}, false, with); }
  TensorId next(Op op, TensorId x, DType dtype, double with = 0) {
    const TensorId out = number(op, x, dtype, with);
    g_.drop({x});
    return out;
  }

  // 0 + (relative > 0).to(int64) * buckets.
  TensorId of_later(TensorId relative) {
    TensorId x = number(Op::GreaterEqual, relative, DType::Bool, 1);
    x = next(Op::Cast, x, DType::Int64);
    x = next(Op::MulScalar, x, DType::Int64, buckets_);
    return next(Op::AddScalar, x, DType::Int64, 0);
  }

  // -min(relative, 0).
  TensorId before(TensorId relative) {
    const TensorId zeros = g_.filled(shape_, DType::Int64, 0);
    const TensorId least = g_.make(Op::Minimum, shape_, DType::Int64, {relative, zeros});
    g_.drop({zeros});
    return next(Op::Neg, least, DType::Int64);
  }

  // By the logarithm, at most the last.
  TensorId of_far(TensorId apart) {
    const double farthest = std::log(static_cast<double>(g_.dims().farthest) / exact_);
    TensorId x = number(Op::Cast, apart, DType::Float32, 0);
    x = next(Op::DivScalar, x, DType::Float32, exact_);
    x = next(Op::Log, x, DType::Float32);
    x = next(Op::DivScalar, x, DType::Float32, farthest);
    x = next(Op::MulScalar, x, DType::Float32, buckets_ - exact_);
    if (named_ratio_) ratio_ = g_.keep(x);
    x = next(Op::Cast, x, DType::Int64);
    x = next(Op::AddScalar, x, DType::Int64, exact_);
    const TensorId last = g_.filled(shape_, DType::Int64, buckets_ - 1);
    const TensorId out = g_.make(Op::Minimum, shape_, DType::Int64, {x, last});
    g_.drop({last, x});
    return out;
  }

  GraphBuilder& g_;
  Shape shape_;
  bool both_sides_;
  bool named_ratio_;  // The logarithm is a variable (umt5).
  TensorId ratio_ = kNone;
  double buckets_;  // Of one side.
  double exact_;    // So many of them are of one distance each.
};

class T5Graph {
 public:
  T5Graph(const ModelSpec& model, const GraphOptions& options)
      : options_(options), g_(model, options_), d_(model.dims), own_tables_(model.family == "umt5") {}

  Graph build() {
    const Shape target{options_.micro_batch, options_.target_seq};
    const TensorId ids = g_.batch_input(Shape{options_.micro_batch, options_.seq}, DType::Int64);
    const TensorId labels = g_.batch_input(target, DType::Int64);
    g_.set_batch({ids, labels});
    g_.enter_model();
    const TensorId encoded = stack("encoder", ids, kNone);
    const TensorId target_ids = shifted_right(g_, labels);
    options_.seq = options_.target_seq;  // The decoder's rows are those of the target.
    const TensorId decoded = stack("decoder", target_ids, encoded);
    const TensorId seen = d_.scaled_output
                              ? g_.unary(Op::MulScalar, decoded, 1 / std::sqrt(static_cast<double>(d_.hidden)))
                              : g_.keep(decoded);
    const TensorId logits = linear_module(g_, g_.child(g_.causal(), "lm_head"), seen, d_.vocab);
    const TensorId loss = class_loss(g_, logits, labels);
    g_.drop({seen, decoded, target_ids});
    const TensorId returned = end_model(g_, logits, loss, {encoded});
    return g_.finish(returned);
  }

 private:
  // What the blocks of a stack hand on to each other, and what the encoder gives them.
  struct Given {
    TensorId mask = kNone;
    TensorId bias = kNone;
    TensorId encoded = kNone;
    TensorId cross_bias = kNone;
  };

  // T5LayerNorm: of the input as it is, with its mean square in fp32.
  TensorId norm(ModuleId parent, TensorId x) {
    const ModuleId module = g_.child(parent, is_stack(parent) ? "final_layer_norm" : "layer_norm");
    g_.enter(module);
    const TensorId wide = g_.cast(x, DType::Float32);
    const TensorId squared = g_.unary(Op::PowScalar, wide, 2);
    g_.drop({wide});
    const TensorId variance = mean_last(g_, squared);
    g_.drop({squared});
    const TensorId shifted = g_.unary(Op::AddScalar, variance, d_.norm_epsilon);
    const TensorId scale = g_.unary(Op::Rsqrt, shifted);
    g_.drop({shifted});
    TensorId normed = g_.binary(Op::Mul, x, scale);
    g_.drop({scale});
    const TensorId weight = g_.parameter("weight");
    if (g_.dtype(weight) != DType::Float32) {
      const TensorId narrow = g_.cast(normed, g_.dtype(weight));
      g_.drop({normed});
      normed = narrow;
    }
    const TensorId out = g_.binary(Op::Mul, weight, normed);
    g_.drop({normed, variance});
    g_.exit(module);
    return out;
  }
  [[nodiscard]] bool is_stack(ModuleId module) const { return g_.model().child(module, "block") != kNone; }

  // x + dropout(branch).
  TensorId joined(ModuleId layer, TensorId x, TensorId branch) {
    const TensorId dropped = dropout_module(g_, g_.child(layer, "dropout"), branch, d_.residual_dropout);
    const TensorId out = g_.binary(Op::Add, x, dropped);
    g_.drop({dropped});
    return out;
  }

  TensorId heads_of(ModuleId module, std::string_view name, TensorId x, bool by_head) {
    const TensorId flat = linear_module(g_, g_.child(module, name), x, d_.heads * d_.head_dim);
    return by_heads(g_, flat, d_.heads, d_.head_dim, by_head);
  }

  // compute_bias: [1, H, Sq, Sk] of a table's rows [Sq, Sk, H].
  TensorId learned_bias(ModuleId attention, std::int64_t queries, std::int64_t keys, bool both_sides) {
    const TensorId first = arange(g_, queries);
    const TensorId shifted = g_.make(Op::AddScalar, Shape{queries}, DType::Int64, {first});
    g_.drop({first});
    const TensorId rows = g_.view(shifted, Shape{queries, 1});
    g_.drop({shifted});
    const TensorId columns = arange(g_, keys);
    const TensorId relative = g_.make(Op::Sub, Shape{queries, keys}, DType::Int64, {columns, rows});
    const ModuleId table = g_.child(attention, "relative_attention_bias");
    const std::int64_t count = g_.shape(g_.parameter_of(table, "weight")).dims[0];
    const TensorId buckets = Buckets(g_, Shape{queries, keys}, count, both_sides, own_tables_).of(relative);
    const TensorId values = table_module(g_, table, buckets, -1, d_.heads > 1);
    const Shape by_head{1, d_.heads, queries, keys};
    const TensorId out = g_.view(values, by_head, {step_swap(1, 2), step_swap(0, 1), step_reshape(by_head)});
    g_.drop({values, buckets, relative, columns, rows});
    return out;
  }

  // Zeros that are given a gradient where the model is checkpointed (T5Attention.gradient_checkpointing).
  TensorId empty_bias(std::int64_t queries, std::int64_t keys) {
    const TensorId zeros = g_.filled(Shape{1, d_.heads, queries, keys}, options_.autocast.value_or(options_.dtype), 0);
    if (options_.inputs_require_grad && !own_tables_) g_.require_grad(zeros);
    return zeros;
  }

  // Makes `bias`, if there is none yet.
  Attended attention(ModuleId module, TensorId hidden, TensorId seen, TensorId mask, TensorId& bias) {
    g_.enter(module);
    const bool cross = seen != kNone;
    const TensorId source = cross ? seen : hidden;
    const bool learned = g_.model().child(module, "relative_attention_bias") != kNone;
    const bool encodes = !cross && mask_free_;
    AttentionCall call;
    call.fused = cross && options_.fused_between_stacks;
    GraphOptions kinds = options_;
    kinds.math_attention = options_.math_attention && !call.fused;
    call.q = heads_of(module, "q", hidden, queries_come_back_by_head(kinds, d_, true));
    call.k = heads_of(module, "k", source, keys_come_back_by_head(kinds, d_, true));
    call.v = heads_of(module, "v", source, values_come_back_by_head(kinds, d_, true));
    const std::int64_t queries = g_.shape(call.q).dims[2];
    const std::int64_t keys = g_.shape(call.k).dims[2];
    if (bias == kNone) bias = learned ? learned_bias(module, queries, keys, encodes) : empty_bias(queries, keys);
    call.bias = bias;
    call.strided_bias = !cross;
    call.mask = mask;
    call.scale = 1;
    call.dropout = d_.attention_dropout;
    call.softmax = SoftmaxKind::Bare;
    // Nobody tells umt5's decoder that it is causal: of its own accord sdpa makes no mask.
    call.full = cross || encodes || (own_tables_ && !options_.eager_attention);
    Attended attended = attend(g_, call);
    const TensorId out = linear_module(g_, g_.child(module, "o"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v});
    if (own_tables_) g_.drop({std::exchange(bias, kNone)});
    g_.exit(module);
    return {out, attended.weights};
  }

  // The weights of eager attention are a variable of the block, too, until it returns or has others.
  TensorId attention_layer(ModuleId layer, bool cross, TensorId hidden, Given& given) {
    g_.enter(layer);
    const ModuleId module = g_.child(layer, cross ? "EncDecAttention" : "SelfAttention");
    const TensorId normed = norm(layer, hidden);
    const Attended attended = cross ? attention(module, normed, given.encoded, kNone, given.cross_bias)
                                    : attention(module, normed, kNone, given.mask, given.bias);
    const TensorId out = joined(layer, hidden, attended.flat);
    g_.drop({normed, attended.flat});
    g_.exit(layer);
    if (weights_ != kNone) g_.drop({weights_});
    weights_ = attended.weights;
    return out;
  }

  TensorId dense(ModuleId module, TensorId x) {
    g_.enter(module);
    const bool gated = g_.model().child(module, "wi_1") != kNone;
    const TensorId wide = linear_module(g_, g_.child(module, gated ? "wi_0" : "wi"), x, d_.ffn);
    const TensorId active = rebound(g_, wide, activation_module(g_, g_.child(module, "act"), wide));
    const TensorId linear = gated ? linear_module(g_, g_.child(module, "wi_1"), x, d_.ffn) : kNone;
    TensorId inner = gated ? g_.binary(Op::Mul, active, linear) : g_.keep(active);
    if (!gated) g_.drop({active});
    inner = rebound(g_, inner, dropout_module(g_, g_.child(module, "dropout"), inner, d_.residual_dropout));
    const ModuleId last = g_.child(module, "wo");
    inner = rebound(g_, inner, g_.cast(inner, g_.dtype(g_.parameter_of(unwrapped(g_, last), "weight"))));
    const TensorId out = linear_module(g_, last, inner, d_.hidden);
    g_.drop({inner});
    if (gated) g_.drop({active, linear});
    g_.exit(module);
    return out;
  }

  TensorId feed_forward(ModuleId layer, TensorId hidden) {
    g_.enter(layer);
    const TensorId normed = norm(layer, hidden);
    const TensorId fed = rebound(g_, normed, dense(g_.child(layer, "DenseReluDense"), normed));
    const TensorId out = rebound(g_, fed, joined(layer, hidden, fed));
    g_.exit(layer);
    return out;
  }

  TensorId block(ModuleId module, TensorId x, Given& given) {
    g_.enter(module);
    const ModuleId layers = g_.child(module, "layer");
    TensorId hidden = attention_layer(g_.child(layers, "0"), false, x, given);
    if (given.encoded != kNone)
      hidden = rebound(g_, hidden, attention_layer(g_.child(layers, "1"), true, hidden, given));
    hidden = rebound(g_, hidden, feed_forward(g_.child(layers, given.encoded == kNone ? "1" : "2"), hidden));
    if (weights_ != kNone) g_.drop({weights_});
    weights_ = kNone;
    g_.exit(module);
    return hidden;
  }

  // A region is given what the block is called with; what it makes besides its result others are given.
  TensorId stack(std::string_view name, TensorId ids, TensorId encoded) {
    const ModuleId module = g_.child(g_.causal(), name);
    mask_free_ = encoded == kNone;
    g_.enter(module);
    const TensorId words = table_module(g_, g_.child(module, "embed_tokens"), ids);
    if (options_.inputs_require_grad) g_.require_grad(words);
    Given given;
    given.encoded = encoded;
    if (encoded != kNone) given.mask = attention_mask(g_, kNone, kNone);
    TensorId hidden = dropout_module(g_, g_.child(module, "dropout"), words, d_.embedding_dropout);
    const std::vector<ModuleId> blocks = modules_of(g_.model(), g_.child(module, "block"));
    for (const ModuleId one : blocks) {
      std::vector<TensorId> arguments{hidden, given.mask, given.bias, given.encoded, given.cross_bias};
      std::erase(arguments, kNone);
      std::vector<TensorId> returned{given.bias, given.cross_bias};
      std::erase(returned, kNone);
      // The last block's gradient of the bias comes head by head, and goes on as the bias lies.
      std::vector<TensorId> strided;
      if (d_.heads > 1 && one == blocks.back() && given.bias != kNone) strided.push_back(given.bias);
      const std::int32_t region = g_.begin_region({std::move(arguments), {}, std::move(returned), std::move(strided)});
      const TensorId out = block(one, hidden, given);
      g_.end_region(region);
      hidden = rebound(g_, hidden, out);
    }
    hidden = rebound(g_, hidden, norm(module, hidden));
    hidden = rebound(g_, hidden, dropout_module(g_, g_.child(module, "dropout"), hidden, d_.residual_dropout));
    for (const TensorId one : {given.mask, given.bias, given.cross_bias, words}) {
      if (one != kNone) g_.drop({one});
    }
    g_.exit(module);
    return hidden;
  }

  GraphOptions options_;
  GraphBuilder g_;
  const Dimensions& d_;
  bool own_tables_ = false;
  bool mask_free_ = true;  // In the encoder, where each token sees every other.
  TensorId weights_ = kNone;
};

}  // namespace

Graph build_t5_graph(const ModelSpec& model, const GraphOptions& options) { return T5Graph(model, options).build(); }

}  // namespace dsplan
