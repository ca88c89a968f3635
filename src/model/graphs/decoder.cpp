// The Llama shape of decoder: llama, mistral, mixtral, qwen2, qwen3, gemma2. The functions follow transformers'
// modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/graphs.h"

#include <tuple>

#include "core/error.h"
#include "model/graphs/attention.h"
#include "model/graphs/loss.h"

namespace dsplan {
namespace {

class DecoderGraph {
 public:
  DecoderGraph(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), gemma_(model.family == "gemma2"), model_(g_.child(g_.causal(), "model")) {}

  Graph build() {
    const TensorId ids = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const TensorId labels = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const bool masked = batch_has_mask(g_.options().transformers);
    const TensorId ones = masked ? g_.batch_input(g_.shape(ids), DType::Int64) : kNone;
    g_.set_batch(masked ? std::vector<TensorId>{ids, labels, ones} : std::vector<TensorId>{ids, labels});
    g_.enter_model();
    const TensorId hidden = body(ids, ones);
    return g_.finish(causal_loss(g_, hidden, labels, [&](TensorId x) {
      const TensorId logits = vocabulary_head(g_, g_.child(g_.causal(), "lm_head"), x);
      return d_.final_softcap > 0 ? softcap(logits) : logits;
    }));
  }

 private:
  // What every layer is told of the tokens' places.
  struct Positions {
    TensorId ids = kNone;
    TensorId cos = kNone;
    TensorId sin = kNone;
  };

  // logits / cap, tanh, * cap: each statement rebinds the variable.
  TensorId softcap(TensorId logits) {
    const TensorId scaled = g_.unary(Op::DivScalar, logits, d_.final_softcap);
    g_.drop({logits});
    const TensorId squashed = g_.unary(Op::Tanh, scaled);
    g_.drop({scaled});
    const TensorId capped = g_.unary(Op::MulScalar, squashed, d_.final_softcap);
    g_.drop({squashed});
    return capped;
  }

  // x * rsqrt(mean(x^2) + eps); `x` is fp32. Llama's code names the mean, so that it lives as long as the frame; in
  // gemma2's expression it is a temporary.
  TensorId normalised(TensorId x, TensorId* variance) {
    const TensorId squared = g_.unary(Op::PowScalar, x, 2);
    const TensorId mean = g_.mean_last(squared);
    g_.drop({squared});
    const TensorId shifted = g_.unary(Op::AddScalar, mean, d_.norm_epsilon);
    if (variance == nullptr) {
      g_.drop({mean});
    } else {
      *variance = mean;
    }
    const TensorId scale = g_.unary(Op::Rsqrt, shifted);
    g_.drop({shifted});
    const TensorId result = g_.binary(Op::Mul, x, scale);
    g_.drop({scale});
    return result;
  }

  TensorId rms_norm(ModuleId module, TensorId hidden) {
    g_.enter(module);
    const TensorId weight = g_.parameter("weight");
    const TensorId out = gemma_ ? gemma_norm(weight, hidden) : llama_norm(weight, hidden);
    g_.exit(module);
    return out;
  }

  TensorId llama_norm(TensorId weight, TensorId hidden) {
    const TensorId wide = g_.cast(hidden, DType::Float32);
    TensorId variance = kNone;
    const TensorId norm = normalised(wide, &variance);
    g_.drop({wide});
    const TensorId narrow = g_.cast(norm, g_.dtype(hidden));
    const TensorId out = g_.binary(Op::Mul, weight, narrow);
    g_.drop({narrow, norm, variance});
    return out;
  }

  TensorId gemma_norm(TensorId weight, TensorId hidden) {
    const TensorId wide = g_.cast(hidden, DType::Float32);
    const TensorId norm = normalised(wide, nullptr);
    g_.drop({wide});
    const TensorId wide_weight = g_.cast(weight, DType::Float32);
    const TensorId factor = g_.unary(Op::AddScalar, wide_weight, 1);
    g_.drop({wide_weight});
    const TensorId scaled = g_.binary(Op::Mul, norm, factor);
    g_.drop({factor, norm});
    const TensorId out = g_.cast(scaled, g_.dtype(hidden));
    g_.drop({scaled});
    return out;
  }

  // cos and sin of the positions, in fp32 under no_grad, then in the model's dtype.
  std::pair<TensorId, TensorId> rotary(ModuleId module, TensorId positions) {
    g_.enter(module);
    g_.set_grad_enabled(false);
    g_.set_autocast_enabled(false);
    // A table in fp32 already is not copied.
    const TensorId table = g_.buffer("inv_freq");
    const TensorId frequencies = g_.dtype(table) == DType::Float32 ? table : g_.cast(table, DType::Float32);
    const std::int64_t half = g_.shape(table).dims[0];
    const std::int64_t seq = g_.options().seq;
    const TensorId row = g_.view(positions, Shape{1, 1, seq});
    const TensorId wide = g_.make(Op::Cast, Shape{1, 1, seq}, DType::Float32, {row});
    g_.drop({row});
    const TensorId column = g_.view(frequencies, Shape{1, half, 1});
    const TensorId product = g_.make(Op::Matmul, Shape{1, half, seq}, DType::Float32, {column, wide});
    g_.drop({column});
    const TensorId angles = g_.view(product, Shape{1, seq, half}, {step_swap(1, 2)});
    g_.drop({product});
    const TensorId both = g_.cat_last(angles, angles);
    const TensorId cos = scaled_wave(Op::Cos, both);
    const TensorId sin = scaled_wave(Op::Sin, both);
    const TensorId narrow_cos = g_.cast(cos, g_.options().dtype);
    const TensorId narrow_sin = g_.cast(sin, g_.options().dtype);
    g_.drop({wide, angles, both, cos, sin});
    if (frequencies != table) g_.drop({frequencies});
    g_.set_autocast_enabled(true);
    g_.set_grad_enabled(true);
    g_.exit(module);
    return {narrow_cos, narrow_sin};
  }

  TensorId scaled_wave(Op op, TensorId angles) {
    const TensorId wave = g_.unary(op, angles);
    const TensorId scaled = g_.unary(Op::MulScalar, wave, 1);
    g_.drop({wave});
    return scaled;
  }

  // (x * cos) + (rotate_half(x) * sin).
  TensorId rotate(TensorId x, TensorId cos, TensorId sin) {
    const TensorId direct = g_.binary(Op::Mul, x, cos);
    const std::int64_t half = d_.head_dim / 2;
    const TensorId first = g_.slice(x, 3, 0, half);
    const TensorId second = g_.slice(x, 3, half, half);
    const TensorId negated = g_.unary(Op::Neg, second);
    const TensorId rotated = g_.cat_last(negated, first);
    g_.drop({negated, first, second});
    const TensorId crossed = g_.binary(Op::Mul, rotated, sin);
    g_.drop({rotated});
    const TensorId out = g_.binary(Op::Add, direct, crossed);
    g_.drop({direct, crossed});
    return out;
  }

  // proj(x).view(B, S, heads, D), with qwen3's norm over each head, .transpose(1, 2).
  TensorId heads_of(ModuleId attention, const char* projection, const char* norm, TensorId x, std::int64_t heads,
                    bool masked) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    const TensorId flat = linear_module(g_, g_.child(attention, projection), x, heads * d_.head_dim);
    const ModuleId head_norm = norm == nullptr ? kNone : g_.model().child(attention, norm);
    // Rotation's backward sums in fresh zeros, laid out head by head: what is not rotated (the values) keeps its
    // layout.
    const bool rotated = norm != nullptr;
    const bool by_head = rotated || values_come_back_by_head(g_.options(), d_, masked);
    const bool copied = by_head && heads > 1 && seq > 1;
    const Shape by_token{batch, seq, heads, d_.head_dim};
    TensorId split = copied && head_norm != kNone ? g_.view_copied_back(flat, by_token) : g_.view(flat, by_token);
    g_.drop({flat});
    if (head_norm != kNone) {
      const TensorId normed = rms_norm(head_norm, split);
      g_.drop({split});
      split = normed;
    }
    const Shape swapped{batch, heads, seq, d_.head_dim};
    const ViewStep swap = step_swap(1, 2);
    const TensorId out =
        copied && head_norm == kNone ? g_.view_copied_back(split, swapped, {swap}) : g_.view(split, swapped, {swap});
    g_.drop({split});
    return out;
  }

  // The layer's output, and the weights of eager attention, which the layer holds.
  Attended attention(ModuleId module, TensorId hidden, const Positions& at, TensorId mask) {
    g_.enter(module);
    AttentionCall call;
    const TensorId whole = g_.copy_to_parallel(hidden);
    const TensorId q = heads_of(module, "q_proj", "q_norm", whole, d_.heads, mask != kNone);
    const TensorId k = heads_of(module, "k_proj", "k_norm", whole, d_.kv_heads, mask != kNone);
    call.v = heads_of(module, "v_proj", nullptr, whole, d_.kv_heads, mask != kNone);
    g_.drop({whole});
    const Shape wave{1, 1, g_.options().seq, d_.head_dim};
    const TensorId cos_by_head = g_.view(at.cos, wave);
    const TensorId sin_by_head = g_.view(at.sin, wave);
    call.q = rotate(q, cos_by_head, sin_by_head);
    call.k = rotate(k, cos_by_head, sin_by_head);
    g_.drop({cos_by_head, sin_by_head, q, k});
    call.mask = mask;
    call.softcap = gemma_ ? d_.attention_softcap : 0;
    call.dropout = d_.attention_dropout;
    const Attended attended = attend(g_, call);
    const TensorId out = row_linear_module(g_, g_.child(module, "o_proj"), attended.flat, d_.hidden);
    g_.drop({attended.flat, call.q, call.k, call.v});
    g_.exit(module);
    return {out, attended.weights};
  }

  TensorId activation(ModuleId mlp, TensorId x) {
    const ModuleId act = g_.child(mlp, "act_fn");
    g_.enter(act);
    const TensorId out = activated(g_, d_.activation, x);
    g_.exit(act);
    return out;
  }

  TensorId mlp(ModuleId module, TensorId hidden) {
    if (d_.experts > 0) return moe_block(g_, module, hidden);
    g_.enter(module);
    const TensorId whole = g_.copy_to_parallel(hidden);
    const TensorId gate = linear_module(g_, g_.child(module, "gate_proj"), whole, d_.ffn);
    const TensorId active = activation(module, gate);
    g_.drop({gate});
    const TensorId up = linear_module(g_, g_.child(module, "up_proj"), whole, d_.ffn);
    g_.drop({whole});
    const TensorId product = g_.binary(Op::Mul, active, up);
    g_.drop({active, up});
    const TensorId out = row_linear_module(g_, g_.child(module, "down_proj"), product, d_.hidden);
    g_.drop({product});
    g_.exit(module);
    return out;
  }

  // Adds a sublayer's output to the residual stream; gemma2 norms it first.
  TensorId join(ModuleId layer, const char* post_norm, TensorId residual, TensorId branch) {
    if (gemma_) {
      const TensorId normed = rms_norm(g_.child(layer, post_norm), branch);
      g_.drop({branch});
      branch = normed;
    }
    const TensorId out = g_.binary(Op::Add, residual, branch);
    g_.drop({branch});
    return out;
  }

  TensorId layer(ModuleId module, TensorId hidden, const Positions& at, TensorId mask) {
    g_.enter(module);
    const TensorId normed = rms_norm(g_.child(module, "input_layernorm"), hidden);
    const Attended attended = attention(g_.child(module, "self_attn"), normed, at, mask);
    g_.drop({normed});
    const TensorId middle = join(module, "post_attention_layernorm", hidden, attended.flat);
    const TensorId second =
        rms_norm(g_.child(module, gemma_ ? "pre_feedforward_layernorm" : "post_attention_layernorm"), middle);
    const TensorId fed = mlp(g_.child(module, "mlp"), second);
    g_.drop({second});
    const TensorId out = join(module, "post_feedforward_layernorm", middle, fed);
    g_.drop({middle});
    if (attended.weights != kNone) g_.drop({attended.weights});
    g_.exit(module);
    return out;
  }

  TensorId embed(TensorId ids) {
    const ModuleId module = g_.child(model_, "embed_tokens");
    g_.enter(module);
    TensorId out = vocabulary_embedding(g_, g_.parameter("weight"), ids);
    if (gemma_) {
      const TensorId factor = g_.cast(g_.buffer("embed_scale"), g_.options().dtype);
      const TensorId scaled = g_.binary(Op::Mul, out, factor);
      g_.drop({out, factor});
      out = scaled;
    }
    g_.exit(module);
    if (g_.options().inputs_require_grad) g_.require_grad(out);
    return out;
  }

  // arange(seq), since 5.0 plus the length of a cache, unsqueezed.
  TensorId positions() {
    TensorId range = g_.make(Op::Arange, Shape{g_.options().seq}, DType::Int64, {});
    if (g_.options().transformers >= Version{5, 0, 0}) {
      const TensorId shifted = g_.make(Op::AddScalar, Shape{g_.options().seq}, DType::Int64, {range});
      g_.drop({range});
      range = shifted;
    }
    const TensorId row = g_.view(range, Shape{1, g_.options().seq});
    g_.drop({range});
    return row;
  }

  // By kind of layer: one mask for full attention, one for a sliding window. kNone where there is none of the kind.
  struct Masks {
    TensorId full = kNone;
    TensorId sliding = kNone;
  };
  Masks masks(TensorId position_ids, TensorId ones) {
    Masks made;
    const bool slides = d_.sliding_window > 0;
    if (gemma_ || !slides) made.full = attention_mask(g_, position_ids, ones, 0);
    if (slides) made.sliding = attention_mask(g_, position_ids, ones, d_.sliding_window);
    return made;
  }

  TensorId body(TensorId ids, TensorId ones) {
    g_.enter(model_);
    const TensorId embedded = embed(ids);
    Positions at;
    at.ids = positions();
    const Masks masked = masks(at.ids, ones);
    std::tie(at.cos, at.sin) = rotary(g_.child(model_, "rotary_emb"), at.ids);
    const ModuleId layers = g_.child(model_, "layers");
    TensorId hidden = g_.keep(embedded);
    ModuleId next = layers + 1;
    for (std::int32_t index = 0; index < d_.layers; ++index) {
      while (g_.model().modules[static_cast<std::size_t>(next)].parent != layers) ++next;
      const bool slides = d_.sliding_window > 0 && (!gemma_ || index % 2 == 0);
      const TensorId mask = slides ? masked.sliding : masked.full;
      std::vector<TensorId> keywords{at.cos, at.sin, at.ids};
      if (mask != kNone) keywords.push_back(mask);
      g_.begin_region(index, {hidden}, std::move(keywords));
      const TensorId out = layer(next, hidden, at, mask);
      g_.end_region(index);
      g_.drop({hidden});
      hidden = out;
      ++next;
    }
    const TensorId normed = rms_norm(g_.child(model_, "norm"), hidden);
    g_.drop({hidden, embedded, at.ids, at.cos, at.sin});
    for (TensorId mask : {masked.full, masked.sliding}) {
      if (mask != kNone) g_.drop({mask});
    }
    g_.exit(model_);
    return normed;
  }

  GraphBuilder g_;
  const Dimensions& d_;
  bool gemma_;
  ModuleId model_;
};

}  // namespace

Graph build_decoder_graph(const ModelSpec& model, const GraphOptions& options) {
  return DecoderGraph(model, options).build();
}

}  // namespace dsplan
