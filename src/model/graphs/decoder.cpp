// The Llama shape of decoder: llama, mistral, mixtral, qwen2, qwen3, gemma2. The functions follow transformers'
// modules one by one; a `drop` stands where a Python variable or frame lets go of a tensor.
#include "model/graphs/graphs.h"

#include "core/error.h"

namespace dsplan {
namespace {

class Decoder {
 public:
  Decoder(const ModelSpec& model, const GraphOptions& options)
      : g_(model, options), d_(model.dims), gemma_(model.family == "gemma2"), model_(g_.child(0, "model")) {}

  Graph build() {
    const TensorId ids = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    const TensorId labels = g_.batch_input(Shape{g_.options().micro_batch, g_.options().seq}, DType::Int64);
    g_.set_batch({ids, labels});
    g_.enter(0);
    const TensorId hidden = body(ids);
    TensorId logits = module_linear(g_.child(0, "lm_head"), hidden, d_.vocab);
    if (d_.final_softcap > 0) logits = softcap(logits);
    const TensorId loss = causal_loss(g_, logits, labels);
    g_.drop({hidden});
    g_.exit(0);
    return finish_model(g_, loss, logits);
  }

 private:
  TensorId module_linear(ModuleId module, TensorId x, std::int64_t features) {
    g_.enter(module);
    const TensorId weight = g_.parameter("weight");
    const TensorId out = g_.linear(x, weight, g_.parameter("bias"), features);
    g_.exit(module);
    return out;
  }

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
    const TensorId shifted = g_.unary(Op::AddScalar, mean);
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
    const TensorId factor = g_.unary(Op::AddScalar, wide_weight);
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
    const TensorId frequencies = g_.buffer("inv_freq");
    const std::int64_t half = g_.shape(frequencies).dims[0];
    const std::int64_t seq = g_.options().seq;
    const TensorId wide = g_.make(Op::Cast, Shape{1, 1, seq}, DType::Float32, {positions});
    const TensorId product = g_.make(Op::Matmul, Shape{1, half, seq}, DType::Float32, {frequencies, wide});
    const TensorId angles = g_.view(product, Shape{1, seq, half});
    g_.drop({product});
    const TensorId both = g_.cat_last(angles, angles);
    const TensorId cos = scaled_wave(Op::Cos, both);
    const TensorId sin = scaled_wave(Op::Sin, both);
    const TensorId narrow_cos = g_.cast(cos, g_.options().dtype);
    const TensorId narrow_sin = g_.cast(sin, g_.options().dtype);
    g_.drop({wide, angles, both, cos, sin});
    g_.set_autocast_enabled(true);
    g_.set_grad_enabled(true);
    g_.exit(module);
    return {narrow_cos, narrow_sin};
  }

  TensorId scaled_wave(Op op, TensorId angles) {
    const TensorId wave = g_.unary(op, angles);
    const TensorId scaled = g_.unary(Op::MulScalar, wave);
    g_.drop({wave});
    return scaled;
  }

  // (x * cos) + (rotate_half(x) * sin).
  TensorId rotate(TensorId x, TensorId cos, TensorId sin) {
    const TensorId direct = g_.binary(Op::Mul, x, cos);
    const TensorId first = g_.slice_last(x, d_.head_dim / 2);
    const TensorId second = g_.slice_last(x, d_.head_dim / 2);
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
  TensorId heads_of(ModuleId attention, const char* projection, const char* norm, TensorId x, std::int64_t heads) {
    const std::int64_t batch = g_.options().micro_batch;
    const std::int64_t seq = g_.options().seq;
    const TensorId flat = module_linear(g_.child(attention, projection), x, heads * d_.head_dim);
    const ModuleId head_norm = norm == nullptr ? kNone : g_.model().child(attention, norm);
    // Rotation's backward sums in fresh zeros, laid out head by head: what is not rotated (the values) keeps its
    // layout.
    const bool copied = norm != nullptr && heads > 1 && seq > 1;
    const Shape by_token{batch, seq, heads, d_.head_dim};
    TensorId split = copied && head_norm != kNone ? g_.view_copied_back(flat, by_token) : g_.view(flat, by_token);
    g_.drop({flat});
    if (head_norm != kNone) {
      const TensorId normed = rms_norm(head_norm, split);
      g_.drop({split});
      split = normed;
    }
    const Shape by_head{batch, heads, seq, d_.head_dim};
    const TensorId out = copied && head_norm == kNone ? g_.view_copied_back(split, by_head) : g_.view(split, by_head);
    g_.drop({split});
    return out;
  }

  TensorId attention(ModuleId module, TensorId hidden, TensorId cos, TensorId sin) {
    g_.enter(module);
    const TensorId q = heads_of(module, "q_proj", "q_norm", hidden, d_.heads);
    const TensorId k = heads_of(module, "k_proj", "k_norm", hidden, d_.kv_heads);
    const TensorId v = heads_of(module, "v_proj", nullptr, hidden, d_.kv_heads);
    const Shape wave{1, 1, g_.options().seq, d_.head_dim};
    const TensorId cos_by_head = g_.view(cos, wave);
    const TensorId sin_by_head = g_.view(sin, wave);
    const TensorId q_rotated = rotate(q, cos_by_head, sin_by_head);
    const TensorId k_rotated = rotate(k, cos_by_head, sin_by_head);
    g_.drop({cos_by_head, sin_by_head, q, k});
    const TensorId attended = g_.attention(q_rotated, k_rotated, v);
    // The kernel's output is already laid out as [B, S, H, D]: transpose and reshape are views.
    const TensorId flat = g_.view(attended, Shape{g_.options().micro_batch, g_.options().seq, d_.heads * d_.head_dim});
    g_.drop({attended});
    const TensorId out = module_linear(g_.child(module, "o_proj"), flat, d_.hidden);
    g_.drop({flat, q_rotated, k_rotated, v});
    g_.exit(module);
    return out;
  }

  TensorId activation(ModuleId mlp, TensorId x) {
    const ModuleId act = g_.child(mlp, "act_fn");
    g_.enter(act);
    const TensorId out = g_.unary(d_.activation == "silu" ? Op::Silu : Op::Gelu, x);
    g_.exit(act);
    return out;
  }

  TensorId mlp(ModuleId module, TensorId hidden) {
    if (d_.experts > 0) return moe_block(g_, module, hidden);
    g_.enter(module);
    const TensorId gate = module_linear(g_.child(module, "gate_proj"), hidden, d_.ffn);
    const TensorId active = activation(module, gate);
    g_.drop({gate});
    const TensorId up = module_linear(g_.child(module, "up_proj"), hidden, d_.ffn);
    const TensorId product = g_.binary(Op::Mul, active, up);
    g_.drop({active, up});
    const TensorId out = module_linear(g_.child(module, "down_proj"), product, d_.hidden);
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

  TensorId layer(ModuleId module, TensorId hidden, TensorId cos, TensorId sin) {
    g_.enter(module);
    const TensorId normed = rms_norm(g_.child(module, "input_layernorm"), hidden);
    const TensorId attended = attention(g_.child(module, "self_attn"), normed, cos, sin);
    g_.drop({normed});
    const TensorId middle = join(module, "post_attention_layernorm", hidden, attended);
    const TensorId second =
        rms_norm(g_.child(module, gemma_ ? "pre_feedforward_layernorm" : "post_attention_layernorm"), middle);
    const TensorId fed = mlp(g_.child(module, "mlp"), second);
    g_.drop({second});
    const TensorId out = join(module, "post_feedforward_layernorm", middle, fed);
    g_.drop({middle});
    g_.exit(module);
    return out;
  }

  TensorId embed(TensorId ids) {
    const ModuleId module = g_.child(model_, "embed_tokens");
    g_.enter(module);
    TensorId out = g_.embedding(g_.parameter("weight"), ids);
    if (gemma_) {
      const TensorId factor = g_.cast(g_.buffer("embed_scale"), g_.options().dtype);
      const TensorId scaled = g_.binary(Op::Mul, out, factor);
      g_.drop({out, factor});
      out = scaled;
    }
    g_.exit(module);
    return out;
  }

  // arange(seq) + 0, unsqueezed.
  TensorId positions() {
    const TensorId range = g_.make(Op::Arange, Shape{g_.options().seq}, DType::Int64, {});
    const TensorId shifted = g_.make(Op::AddScalar, Shape{g_.options().seq}, DType::Int64, {range});
    g_.drop({range});
    const TensorId row = g_.view(shifted, Shape{1, g_.options().seq});
    g_.drop({shifted});
    return row;
  }

  TensorId body(TensorId ids) {
    g_.enter(model_);
    const TensorId embedded = embed(ids);
    const TensorId position_ids = positions();
    look_for_packed_sequences(g_, position_ids);
    if (gemma_) look_for_packed_sequences(g_, position_ids);  // One mask for full, one for sliding attention.
    const auto [cos, sin] = rotary(g_.child(model_, "rotary_emb"), position_ids);
    const ModuleId layers = g_.child(model_, "layers");
    TensorId hidden = g_.keep(embedded);
    ModuleId next = layers + 1;
    for (std::int32_t at = 0; at < d_.layers; ++at) {
      while (g_.model().modules[static_cast<std::size_t>(next)].parent != layers) ++next;
      g_.begin_region(at, {hidden}, {cos, sin, position_ids});
      const TensorId out = layer(next, hidden, cos, sin);
      g_.end_region(at);
      g_.drop({hidden});
      hidden = out;
      ++next;
    }
    const TensorId normed = rms_norm(g_.child(model_, "norm"), hidden);
    g_.drop({hidden, embedded, position_ids, cos, sin});
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
  return Decoder(model, options).build();
}

}  // namespace dsplan
