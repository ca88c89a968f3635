// GPT-2 and gpt_bigcode: transformers' GPT2LMHeadModel and GPTBigCodeForCausalLM, module by module.
#include "core/error.h"
#include "model/graphs/attention.h"
#include "model/graphs/by_family.h"
#include "model/graphs/linear.h"
#include "model/graphs/loss.h"
#include "model/graphs/masks.h"
#include "model/graphs/pieces.h"

namespace dsplan {
namespace {

class Gpt2 {
 public:
  Gpt2(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options),
        d_(model.dims),
        shared_(model.family == "gpt_bigcode"),
        model_(g_.child(g_.causal(), "transformer")) {}

  Graph build() {
    return language_model(
        g_, [&](TensorId ids) { return body(ids); }, cache_);
  }

 private:
  // The kernels give gradients in the layout of [B, S, H, D], products and padded copies head by head; the one of the
  // transposed keys comes token by token again.
  TensorId heads_of(TensorId part, bool transposed, bool cached) {
    const bool composed = g_.options().eager_attention || g_.options().math_attention;
    const bool by_head = composed ? !transposed : pads_heads(g_.options(), d_.head_dim, false);
    return by_heads(g_, part, d_.heads, d_.head_dim, by_head || (cached && !composed));
  }

  // gpt_bigcode: queries behind each other, and one key and one value; or all three of each head side by side.
  void split_shared(TensorId fused, AttentionCall& call) {
    const std::int64_t rows = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    if (d_.kv_heads > 1) {
      const TensorId by_head = by_heads(g_, fused, d_.heads, 3 * d_.head_dim, true);
      const std::vector<TensorId> parts = split_last(g_, by_head, equal_widths(g_, by_head, 3));
      g_.drop({by_head});
      call.q = parts[0];
      call.k = parts[1];
      call.v = parts[2];
      return;
    }
    const TensorId apart = g_.view(fused, Shape{rows, 1, seq, d_.hidden + 2 * d_.head_dim});
    g_.drop({fused});
    const std::vector<TensorId> parts = split_last(g_, apart, {d_.hidden, d_.head_dim, d_.head_dim});
    g_.drop({apart});
    const bool copied = queries_come_back_by_head(g_.options(), d_, call.mask != kNone);
    call.q = by_heads(g_, parts[0], d_.heads, d_.head_dim, copied);
    call.k = parts[1];
    call.v = parts[2];
  }

  // The layer's output, and the weights of eager attention, which the block holds.
  Attended attention(ModuleId module, TensorId hidden, TensorId mask) {
    g_.enter(module);
    const TensorId whole = copy_to_parallel(g_, hidden);
    const std::int64_t width = (d_.heads + 2 * d_.kv_heads) * d_.head_dim;
    const TensorId fused = linear_module(g_, g_.child(module, "c_attn"), whole, width);
    g_.drop({whole});
    AttentionCall call;
    call.mask = mask;
    if (shared_) {
      split_shared(fused, call);
    } else {
      const std::vector<TensorId> parts = split_last(g_, fused, equal_widths(g_, fused, 3));
      g_.drop({fused});
      call.k = heads_of(parts[1], true, g_.options().use_cache);
      call.v = heads_of(parts[2], false, g_.options().use_cache);
      call.q = heads_of(parts[0], false, false);
      call.softmax = SoftmaxKind::Values;
    }
    if (g_.options().use_cache) {
      keep_in_cache(g_, call.k, call.v, cache_, false);
      call.keys_by_head = call.values_by_head = true;
    }
    call.dropout = d_.attention_dropout;
    const Attended attended = attend(g_, call);
    const TensorId projected = row_linear_module(g_, g_.child(module, "c_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat});
    const TensorId out = dropout_module(g_, g_.child(module, "resid_dropout"), projected, d_.residual_dropout);
    g_.drop({projected, call.q, call.k, call.v});
    g_.exit(module);
    return {out, attended.weights};
  }

  TensorId mlp(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId whole = copy_to_parallel(g_, hidden);
    const TensorId wide = linear_module(g_, g_.child(module, "c_fc"), whole, d_.ffn);
    g_.drop({whole});
    const TensorId active = activation_module(g_, g_.child(module, "act"), wide);
    g_.drop({wide});
    const TensorId narrow = row_linear_module(g_, g_.child(module, "c_proj"), active, d_.hidden);
    g_.drop({active});
    const TensorId out = dropout_module(g_, g_.child(module, "dropout"), narrow, d_.residual_dropout);
    g_.drop({narrow});
    g_.exit(module);
    return out;
  }

  // `attn_output` and `feed_forward_hidden_states` are locals of the block and live until it returns.
  TensorId block(ModuleId module, TensorId hidden, TensorId mask) {
    g_.enter(module);
    const TensorId normed = norm_module(g_, NormKind::Layer, g_.child(module, "ln_1"), hidden);
    const Attended attended = attention(g_.child(module, "attn"), normed, mask);
    const TensorId middle = g_.binary(Op::Add, attended.flat, hidden);
    g_.drop({normed});
    const TensorId second = norm_module(g_, NormKind::Layer, g_.child(module, "ln_2"), middle);
    const TensorId fed = mlp(g_.child(module, "mlp"), second);
    const TensorId out = g_.binary(Op::Add, middle, fed);
    g_.drop({second, middle, attended.flat, fed});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  TensorId embed(const char* table, TensorId ids) {
    const ModuleId module = g_.child(model_, table);
    const bool words = std::string_view(table) == "wte";  // Positions are on every rank.
    return words ? words_module(g_, module, ids) : table_module(g_, module, ids);
  }

  TensorId body(TensorId ids) {
    g_.enter(model_);
    const TensorId words = embed("wte", ids);
    if (g_.options().inputs_require_grad) g_.require_grad(words);
    const TensorId range = arange(g_, g_.options().seq);
    const TensorId shifted = g_.make(Op::AddScalar, Shape{g_.options().seq}, DType::Int64, {range});
    g_.drop({range});
    const TensorId position_ids = g_.view(shifted, Shape{1, g_.options().seq});
    g_.drop({shifted});
    TensorId mask = shared_ ? attention_mask(g_, position_ids, kNone) : kNone;
    const TensorId places = embed("wpe", position_ids);
    const TensorId sum = g_.binary(Op::Add, words, places);
    if (!shared_) mask = attention_mask(g_, position_ids, kNone);
    TensorId hidden = dropout_module(g_, g_.child(model_, "drop"), sum, d_.embedding_dropout);
    g_.drop({sum});
    hidden = run_layers(
        g_, g_.child(model_, "h"), hidden,
        [&](std::size_t) {
          return std::vector<TensorId>{shared_ ? kNone : position_ids, mask};
        },
        [&](ModuleId module, std::size_t, TensorId x) { return block(module, x, mask); });
    const TensorId normed = norm_module(g_, NormKind::Layer, g_.child(model_, "ln_f"), hidden);
    g_.drop({hidden});
    const TensorId out = g_.view(normed, g_.shape(normed));
    g_.drop({normed, words, position_ids, places});
    if (mask != kNone) g_.drop({mask});
    g_.exit(model_);
    return out;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  bool shared_;  // Of heads: gpt_bigcode.
  ModuleId model_;
  std::vector<TensorId> cache_;  // Keys and values, layer by layer.
};

}  // namespace

Graph build_gpt2_graph(const ModelSpec& model, const GraphOptions& options) { return Gpt2(model, options).build(); }

}  // namespace dsplan
