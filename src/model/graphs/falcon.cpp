// Falcon: transformers' FalconForCausalLM, module by module: one key-value head for all, some, or as many as heads;
// rotary positions, or biases in the mask; attention and MLP side by side or not.
#include <cmath>

#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class Falcon {
 public:
  Falcon(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), p_(*model.parts), model_(g_.child(g_.causal(), "transformer")) {}

  Graph build() {
    return language_model(
        g_, [&](TensorId ids) { return body(ids); }, cache_);
  }

 private:
  struct Given {
    TensorId ids = kNone;
    TensorId mask = kNone;
    TensorId alibi = kNone;
    TensorId ones = kNone;
    Waves waves;
  };

  TensorId norm(ModuleId parent, std::string_view name, TensorId x) {
    return norm_module(g_, NormKind::Layer, g_.child(parent, name), x);
  }

  // split[..., [place], :]: the list becomes a tensor on the device, and what it picks a copy.
  TensorId picked_row(TensorId split, std::int64_t place) {
    const auto axis = static_cast<std::int8_t>(g_.shape(split).rank - 2U);
    const TensorId index = g_.filled(Shape{1}, DType::Int64, static_cast<double>(place));
    const TensorId out = picked(g_, split, index, axis);
    g_.drop({index});
    return out;
  }

  struct Split {
    TensorId q = kNone;
    TensorId k = kNone;
    TensorId v = kNone;
  };

  // Query, key and value of each head side by side.
  Split split_heads(TensorId fused) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    const TensorId split = g_.view(fused, Shape{batch, seq, d_.heads, 3, d_.head_dim});
    const auto part = [&](std::int64_t place) {
      const TensorId one = g_.slice(split, 3, place, 1);
      const TensorId out = g_.view(one, Shape{batch, seq, d_.heads, d_.head_dim});
      g_.drop({one});
      return out;
    };
    const Split made{part(0), part(1), part(2)};
    g_.drop({split});
    return made;
  }

  // Behind the queries one key and one value, for all of them.
  Split split_shared(TensorId fused) {
    const Shape shape{g_.options().micro_batch, g_.options().seq, d_.heads + 2, d_.head_dim};
    const TensorId split = g_.view(fused, shape);
    const Split made{g_.slice(split, 2, 0, d_.heads), picked_row(split, -2), picked_row(split, -1)};
    g_.drop({split});
    return made;
  }

  // Likewise of each group; keys and values are repeated, and all three copied, unless a group is one head, or all.
  Split split_groups(TensorId fused) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    const std::int64_t of_group = d_.heads / d_.kv_heads;
    const TensorId split = g_.view(fused, Shape{batch, seq, d_.kv_heads, of_group + 2, d_.head_dim});
    const Split own{g_.slice(split, 3, 0, of_group), picked_row(split, -2), picked_row(split, -1)};
    const Shape whole = g_.shape(own.q);
    const TensorId k = g_.view(own.k, whole, Op::Expand);
    const TensorId v = g_.view(own.v, whole, Op::Expand);
    const bool copies = of_group > 1 && d_.kv_heads > 1;
    const auto flat = [&](TensorId x) {
      const TensorId copied = copies ? g_.copy(x) : g_.keep(x);
      const TensorId out = g_.view(copied, Shape{batch, seq, d_.heads, d_.head_dim});
      g_.drop({copied});
      return out;
    };
    const Split made{flat(own.q), flat(k), flat(v)};
    g_.drop({split, own.q, own.k, own.v, k, v});
    return made;
  }

  Split projected(TensorId fused) {
    if (p_.projections == Projections::FusedGroups) return split_groups(fused);
    return d_.kv_heads == 1 && p_.projections == Projections::Fused ? split_shared(fused) : split_heads(fused);
  }

  Attended attention(ModuleId module, TensorId hidden, const Given& given) {
    g_.enter(module);
    const std::int64_t width = (d_.heads + 2 * d_.kv_heads) * d_.head_dim;
    const TensorId fused = linear_module(g_, g_.child(module, "query_key_value"), hidden, width);
    const Split split = projected(fused);
    QueryKey x{heads_before_tokens(g_, split.q), heads_before_tokens(g_, split.k)};
    std::vector<TensorId> held;
    AttentionCall call;
    call.v = heads_before_tokens(g_, split.v);
    if (!p_.alibi) x = apply_rotary(g_, p_.rotary, x, given.waves, held);
    call.q = x.q;
    call.k = x.k;
    if (g_.options().use_cache) {
      keep_in_cache(g_, call.k, call.v, cache_, false);
      call.keys_by_head = call.values_by_head = true;
    }
    call.mask = given.mask;
    call.dropout = p_.alibi ? d_.attention_dropout : 0;
    const Attended attended = attend(g_, call);
    const TensorId out = linear_module(g_, g_.child(module, "dense"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v, fused});
    g_.exit(module);
    return {out, attended.weights};
  }

  TensorId mlp(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId wide = linear_module(g_, g_.child(module, "dense_h_to_4h"), hidden, d_.ffn);
    const TensorId active = activation_module(g_, g_.child(module, "act"), wide);
    g_.drop({wide});
    const TensorId out = linear_module(g_, g_.child(module, "dense_4h_to_h"), active, d_.hidden);
    g_.drop({active});
    g_.exit(module);
    return out;
  }

  // residual + dropout(x).
  TensorId joined(TensorId x, TensorId residual, double p) {
    const TensorId dropped = g_.dropout(x, p);
    const TensorId out = g_.binary(Op::Add, residual, dropped);
    g_.drop({dropped});
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden, const Given& given) {
    g_.enter(module);
    const bool two = g_.model().child(module, "ln_attn") != kNone;
    const bool serial = g_.model().child(module, "post_attention_layernorm") != kNone;
    const TensorId first = norm(module, two ? "ln_attn" : "input_layernorm", hidden);
    TensorId second = two ? norm(module, "ln_mlp", hidden) : g_.keep(first);
    const Attended attended = attention(g_.child(module, "self_attention"), first, given);
    TensorId residual = g_.keep(hidden);
    if (serial) {
      g_.drop({residual, second});
      residual = joined(attended.flat, hidden, d_.attention_dropout);
      second = norm(module, "post_attention_layernorm", residual);
    }
    TensorId fed = mlp(g_.child(module, "mlp"), second);
    if (!serial) {
      const TensorId sum = g_.in_place(Op::Add, fed, attended.flat);
      g_.drop({fed});
      fed = sum;
    }
    const TensorId out = joined(fed, residual, d_.residual_dropout);
    g_.drop({fed, residual, first, second, attended.flat});
    g_.exit(module);
    return out;
  }

  // arange(S) + 0, unsqueezed.
  TensorId positions() {
    const Shape row{g_.options().seq};
    const TensorId range = g_.make(Op::Arange, row, DType::Int64, {});
    const TensorId shifted = g_.make(Op::AddScalar, row, DType::Int64, {range});
    g_.drop({range});
    const TensorId out = g_.view(shifted, Shape{1, row.dims[0]});
    g_.drop({shifted});
    return out;
  }

  // The biases, but the lowest number where the mask hides a key.
  TensorId biased(TensorId flags, TensorId alibi) {
    const Shape& scores = g_.shape(flags);
    const Shape square{g_.options().micro_batch, 1, scores.dims[2], scores.dims[3]};
    const DType dtype = g_.options().dtype;
    const TensorId zero = g_.filled(Shape{}, dtype, 0);
    const TensorId lowest = g_.filled(Shape{}, dtype, lowest_number(dtype));
    const TensorId mask = g_.make(Op::MaskedFill, square, dtype, {zero, flags, lowest});
    g_.drop({zero, lowest, flags});
    const TensorId rows = g_.view(alibi, Shape{square.dims[0], d_.heads, 1, square.dims[3]});
    const TensorId scaled = g_.unary(Op::DivScalar, rows, std::sqrt(static_cast<double>(d_.head_dim)));
    const TensorId hidden = g_.make(Op::Less, square, DType::Bool, {mask}, false, -1);
    const Shape whole{square.dims[0], d_.heads, square.dims[2], square.dims[3]};
    const TensorId out = g_.make(Op::MaskedFill, whole, dtype, {scaled, hidden}, false, lowest_number(dtype));
    g_.drop({rows, scaled, hidden, mask});
    return out;
  }

  Given given_to_layers(TensorId ids) {
    Given given;
    if (p_.alibi) {
      given.ones = g_.filled(g_.shape(ids), DType::Int64, 1);
      given.alibi = alibi_biases(g_, given.ones, g_.options().dtype, true);
    }
    given.ids = positions();
    given.mask = materialised_mask(g_);
    if (p_.alibi) given.mask = biased(given.mask, given.alibi);
    given.waves = rotary_tables(g_, p_.rotary, g_.child(model_, "rotary_emb"), given.ids);
    return given;
  }

  TensorId body(TensorId ids) {
    g_.enter(model_);
    const TensorId words = words_module(g_, g_.child(model_, "word_embeddings"), ids);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const Given given = given_to_layers(ids);
    const TensorId hidden = run_layers(
        g_, g_.child(model_, "h"), g_.keep(words),
        [&](std::size_t) {
          return std::vector<TensorId>{given.mask, given.ids, given.alibi, given.waves.cos, given.waves.sin};
        },
        [&](ModuleId module, std::size_t, TensorId x) { return layer(module, x, given); });
    const TensorId normed = norm(model_, "ln_f", hidden);
    g_.drop({hidden, words, given.ids, given.mask, given.waves.cos, given.waves.sin});
    if (p_.alibi) g_.drop({given.ones, given.alibi});
    g_.exit(model_);
    return normed;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  const DecoderParts& p_;
  ModuleId model_;
  std::vector<TensorId> cache_;  // Keys and values, layer by layer.
};

}  // namespace

Graph build_falcon_graph(const ModelSpec& model, const GraphOptions& options) { return Falcon(model, options).build(); }

}  // namespace dsplan
