// BLOOM: transformers' BloomForCausalLM, module by module. Positions are biases of the scores, made once from a mask of
// ones; attention is composed of products, of which the first adds its biases (baddbmm).
#include <cmath>

#include "model/catalogue/rules.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class Bloom {
 public:
  Bloom(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), model_(g_.child(g_.causal(), "transformer")) {}

  Graph build() {
    return language_model(
        g_, [&](TensorId ids) { return body(ids); }, cache_);
  }

 private:
  TensorId norm(ModuleId parent, const char* name, TensorId x) {
    return norm_module(g_, NormKind::Layer, g_.child(parent, name), x);
  }

  // fused[..., part, :].transpose(1, 2).reshape(B * H, S, D): a copy with several rows, heads and tokens, unless it
  // lies head by head.
  TensorId rows_of(TensorId part, bool by_head) {
    const Shape& apart = g_.shape(part);
    const Shape flat{apart.dims[0] * apart.dims[1], apart.dims[2], apart.dims[3]};
    const bool copies = !by_head && apart.dims[0] > 1 && apart.dims[1] > 1 && apart.dims[2] > 1;
    const TensorId own = copies ? g_.copy(part) : g_.keep(part);
    const TensorId out = g_.view(own, flat);
    g_.drop({own, part});
    return out;
  }

  std::vector<TensorId> heads_of(TensorId fused) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    const TensorId split = g_.view(fused, Shape{batch, seq, d_.heads, 3, d_.head_dim});
    std::vector<TensorId> parts;
    for (std::int64_t part = 0; part < 3; ++part) {
      const TensorId one = g_.slice(split, 3, part, 1);
      const Shape by_token{batch, seq, d_.heads, d_.head_dim};
      const Shape by_head{batch, d_.heads, seq, d_.head_dim};
      parts.push_back(g_.view(one, by_head, {step_reshape(by_token), step_swap(1, 2)}));
      g_.drop({one});
    }
    g_.drop({split});
    return parts;
  }

  // bmm, or baddbmm of what is added to `factor` times the product. Casts begin with the last operand.
  TensorId product(TensorId a, TensorId b, TensorId added, double factor) {
    const TensorId low_b = g_.lowered(b);
    const TensorId low_a = g_.lowered(a);
    const TensorId low_added = g_.lowered(added);
    const Shape shape{g_.shape(a).dims[0], g_.shape(a).dims[1], g_.shape(b).dims[2]};
    const TensorId out = g_.make(Op::Bmm, shape, g_.dtype(low_a), {low_a, low_b, low_added}, true, factor);
    g_.drop({low_b, low_a});
    if (added != kNone) g_.drop({low_added});
    return out;
  }

  // softmax(dtype=float32).to(query.dtype), of which the fp16 kernel makes fp32 itself; the scores live on. Under
  // autocast a mask in fp32 has made them wider than the query is.
  TensorId probabilities(TensorId weights, DType as) {
    const bool reads = g_.dtype(weights) == DType::Float16;
    const TensorId upcast = reads ? g_.keep(weights) : g_.cast(weights, DType::Float32);
    const TensorId wide = g_.make(Op::Softmax, g_.shape(weights), DType::Float32, {upcast}, true);
    g_.drop({upcast});
    const TensorId out = g_.cast(wide, as);
    g_.drop({wide});
    return out;
  }

  // residual + dropout(x), rebinding the variable.
  TensorId joined(TensorId x, TensorId residual) {
    const TensorId dropped = g_.dropout(x, d_.residual_dropout);
    const TensorId out = g_.binary(Op::Add, residual, dropped);
    g_.drop({dropped, x});
    return out;
  }

  Attended attention(ModuleId module, TensorId hidden, TensorId residual, TensorId alibi, TensorId mask) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    const Shape scores_shape{batch, d_.heads, seq, seq};
    g_.enter(module);
    const TensorId fused = linear_module(g_, g_.child(module, "query_key_value"), hidden, 3 * d_.hidden);
    std::vector<TensorId> heads = heads_of(fused);
    const bool cached = g_.options().use_cache;
    if (cached) keep_in_cache(g_, heads[1], heads[2], cache_, false);
    const TensorId q = rows_of(heads[0], false);
    const TensorId k = rows_of(heads[1], cached);
    const TensorId turned = g_.view(k, Shape{batch * d_.heads, d_.head_dim, seq}, {step_swap(1, 2)});
    const TensorId v = rows_of(heads[2], cached);
    const TensorId scores = product(q, turned, alibi, 1 / std::sqrt(static_cast<double>(d_.head_dim)));
    const TensorId viewed = g_.view(scores, scores_shape);
    const TensorId weights = g_.binary(Op::Add, viewed, mask);
    g_.drop({viewed});
    const TensorId soft = probabilities(weights, g_.dtype(q));
    const TensorId kept = dropout_module(g_, g_.child(module, "attention_dropout"), soft, d_.attention_dropout);
    g_.drop({soft});
    const TensorId rows = g_.view(kept, Shape{batch * d_.heads, seq, seq});
    const TensorId context = product(rows, v, kNone, 1);
    const TensorId flat = merged_heads(g_, context);
    const TensorId out = joined(linear_module(g_, g_.child(module, "dense"), flat, d_.hidden), residual);
    g_.drop({fused, q, k, turned, v, scores, weights, rows, flat});
    g_.exit(module);
    return {out, kept};
  }

  TensorId mlp(ModuleId module, TensorId hidden, TensorId residual) {
    g_.enter(module);
    const TensorId wide = linear_module(g_, g_.child(module, "dense_h_to_4h"), hidden, d_.ffn);
    const ModuleId act = g_.child(module, "gelu_impl");
    g_.enter(act);
    const TensorId active = g_.unary(Op::Gelu, wide, rules::kGeluFunction);
    g_.exit(act);
    g_.drop({wide});
    const TensorId out = joined(linear_module(g_, g_.child(module, "dense_4h_to_h"), active, d_.hidden), residual);
    g_.drop({active});
    g_.exit(module);
    return out;
  }

  // What a block returns besides lives until the next has returned.
  TensorId block(ModuleId module, TensorId hidden, TensorId alibi, TensorId mask) {
    g_.enter(module);
    const TensorId normed = norm(module, "input_layernorm", hidden);
    const Attended attended = attention(g_.child(module, "self_attention"), normed, hidden, alibi, mask);
    const TensorId second = norm(module, "post_attention_layernorm", attended.flat);
    g_.drop({normed});
    const TensorId out = mlp(g_.child(module, "mlp"), second, attended.flat);
    g_.drop({second, attended.flat});
    g_.exit(module);
    if (returned_ != kNone) g_.drop({returned_});
    returned_ = attended.weights;
    return out;
  }

  TensorId body(TensorId ids) {
    g_.enter(model_);
    const TensorId words = words_module(g_, g_.child(model_, "word_embeddings"), ids);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    TensorId hidden = norm(model_, "word_embeddings_layernorm", words);
    const TensorId ones = g_.filled(g_.shape(ids), DType::Float32, 1);
    const TensorId alibi = alibi_biases(g_, ones, g_.dtype(hidden), false);
    const TensorId mask = attention_mask(g_, kNone, ones);
    hidden = run_layers(
        g_, g_.child(model_, "h"), hidden,
        [&](std::size_t) {
          return std::vector<TensorId>{mask, alibi};
        },
        [&](ModuleId module, std::size_t, TensorId x) { return block(module, x, alibi, mask); });
    const TensorId normed = norm(model_, "ln_f", hidden);
    g_.drop({hidden, returned_, words, ones, alibi, mask});
    g_.exit(model_);
    return normed;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  ModuleId model_;
  std::vector<TensorId> cache_;  // Keys and values, layer by layer.
  TensorId returned_ = kNone;
};

}  // namespace

Graph build_bloom_graph(const ModelSpec& model, const GraphOptions& options) { return Bloom(model, options).build(); }

}  // namespace dsplan
