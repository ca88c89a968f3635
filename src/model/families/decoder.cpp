#include "model/families/decoder.h"

#include "core/format.h"

namespace dsplan {
namespace {

std::string prefixed(std::string_view prefix, std::string_view rest) { return formatted("{}{}", prefix, rest); }

// The class names of one family, written once instead of once per layer.
struct Names {
  explicit Names(std::string_view prefix)
      : layer(prefixed(prefix, "DecoderLayer")),
        attention(prefixed(prefix, "Attention")),
        mlp(prefixed(prefix, "MLP")),
        block(prefixed(prefix, "SparseMoeBlock")),
        experts(prefixed(prefix, "Experts")),
        norm(prefixed(prefix, "RMSNorm")) {}
  std::string layer, attention, mlp, block, experts, norm;
};

void register_attention(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const Dimensions& d = decoder.dims;
  const auto scope = b.module("self_attn", names.attention);
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, decoder.qkv_bias, Cut::Column);
  b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::KeyValue);
  b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::KeyValue);
  b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Row);
  if (decoder.qk_norm != QueryKeyNorm::None) {
    b.rms_norm("q_norm", d.head_dim, names.norm);
    b.rms_norm("k_norm", d.head_dim, names.norm);
  }
}

void register_expert_block(ModelBuilder& b, const Decoder& decoder, const Names& names) {
  const Dimensions& d = decoder.dims;
  const Experts& experts = decoder.experts;
  const auto scope = b.module("mlp", names.block);
  const auto router = [&] {
    const auto gate = b.module("gate", experts.router_class);
    b.parameter("weight", {experts.count, d.hidden}, Split::Replicated);
  };
  if (experts.router_first) router();
  register_experts(b, names.experts, experts.count, experts.ffn, d.hidden, d.activation);
  if (!experts.router_first) router();
  if (experts.shared_ffn == 0) return;
  {
    const auto shared = b.module("shared_expert", names.mlp);
    register_gated_mlp(b, d.hidden, experts.shared_ffn, false, d.activation);
  }
  b.linear("shared_expert_gate", 1, d.hidden, false, Cut::Whole);
}

void register_layer(ModelBuilder& b, const Decoder& decoder, const Names& names, bool with_experts) {
  const Dimensions& d = decoder.dims;
  register_attention(b, decoder, names);
  if (with_experts) {
    register_expert_block(b, decoder, names);
  } else {
    const auto mlp = b.module("mlp", names.mlp);
    register_gated_mlp(b, d.hidden, d.ffn, decoder.mlp_bias, d.activation);
  }
  b.rms_norm("input_layernorm", d.hidden, names.norm);
  b.rms_norm("post_attention_layernorm", d.hidden, names.norm);
  if (decoder.sandwich_norms) {
    b.rms_norm("pre_feedforward_layernorm", d.hidden, names.norm);
    b.rms_norm("post_feedforward_layernorm", d.hidden, names.norm);
  }
}

std::string layer_forward(const Decoder& decoder, bool with_experts) {
  std::string_view attention = "self_attn(q_proj k_proj v_proj o_proj)";
  if (decoder.qk_norm == QueryKeyNorm::Interleaved) attention = "self_attn(q_proj q_norm k_proj k_norm v_proj o_proj)";
  if (decoder.qk_norm == QueryKeyNorm::Behind) attention = "self_attn(q_proj k_proj v_proj q_norm k_norm o_proj)";
  std::string_view mlp = kGatedMlpForward;
  if (with_experts) {
    mlp = decoder.experts.shared_ffn == 0 ? "mlp(gate experts(act_fn))"
                                          : "mlp(shared_expert(gate_proj act_fn up_proj down_proj) gate "
                                            "experts(act_fn) shared_expert_gate)";
  }
  if (decoder.sandwich_norms) {
    return formatted(
        "input_layernorm {} post_attention_layernorm pre_feedforward_layernorm {} post_feedforward_layernorm",
        attention, mlp);
  }
  return formatted("input_layernorm {} post_attention_layernorm {}", attention, mlp);
}

ParameterId register_embedding(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  if (!decoder.scaled_embedding) return b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
  const auto scope = b.module("embed_tokens", prefixed(decoder.prefix, "TextScaledWordEmbedding"));
  const ParameterId weight = b.parameter("weight", {d.vocab, d.hidden}, Split::Vocabulary);
  b.buffer("embed_scale", Shape(), DType::Float32, true);
  return weight;
}

void register_rotary(ModelBuilder& b, const Decoder& decoder) {
  const std::string type = prefixed(decoder.prefix, "RotaryEmbedding");
  if (decoder.rotary.empty()) {
    b.rotary("rotary_emb", type, decoder.dims.head_dim);
    return;
  }
  const auto scope = b.module("rotary_emb", type);
  const Shape frequencies{(decoder.dims.head_dim + 1) / 2};
  for (const std::string& kind : decoder.rotary) {
    b.buffer(kind + "_inv_freq", frequencies, DType::Float32, false);
    b.buffer(kind + "_original_inv_freq", frequencies, DType::Float32, false);
  }
}

}  // namespace

void register_gated_mlp(ModelBuilder& b, std::int64_t hidden, std::int64_t ffn, bool bias,
                        std::string_view activation) {
  b.linear("gate_proj", ffn, hidden, bias, Cut::Column);
  b.linear("up_proj", ffn, hidden, bias, Cut::Column);
  b.linear("down_proj", hidden, ffn, bias, Cut::Row);
  b.activation("act_fn", activation);
}

void register_experts(ModelBuilder& b, std::string_view type, std::int64_t experts, std::int64_t ffn,
                      std::int64_t hidden, std::string_view activation) {
  const auto scope = b.module("experts", type);
  b.parameter("gate_up_proj", {experts, b.times(2, ffn), hidden}, Split::Even, 1);
  b.parameter("down_proj", {experts, hidden, ffn}, Split::Even, 2);
  b.activation("act_fn", activation);
}

Decoder read_decoder(ConfigReader& config, std::string_view prefix, const DecoderDefaults& defaults) {
  Decoder decoder;
  decoder.prefix = prefix;
  decoder.tied = config.flag("tie_word_embeddings", defaults.tied);
  Dimensions& d = decoder.dims;
  d.vocab = config.size("vocab_size", defaults.vocab);
  d.hidden = config.size("hidden_size", defaults.hidden);
  d.ffn = config.size("intermediate_size", defaults.ffn);
  d.layers = config.layer_count("num_hidden_layers", defaults.layers);
  d.heads = config.size("num_attention_heads", defaults.heads);
  const auto maybe = [](std::int64_t fallback) {
    return fallback == 0 ? std::optional<std::int64_t>() : std::optional<std::int64_t>(fallback);
  };
  if (!defaults.kv_heads_may_be_null) config.refuse_null("num_key_value_heads", "an integer");
  d.kv_heads = config.maybe_size("num_key_value_heads", maybe(defaults.kv_heads)).value_or(d.heads);
  if (!defaults.head_dim_may_be_null) config.refuse_null("head_dim", "an integer");
  const std::optional<std::int64_t> head_dim = config.maybe_size("head_dim", maybe(defaults.head_dim));
  if (!head_dim) config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  if (config.sound("num_attention_heads")) {
    config.require_divides("num_key_value_heads", d.kv_heads, "num_attention_heads", d.heads);
  }
  d.head_dim = head_dim.value_or(d.hidden / d.heads);
  d.max_positions = config.size("max_position_embeddings", defaults.positions);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.activation = config.activation(defaults.activation_key, defaults.activation);
  d.norm_epsilon = config.maybe_number("rms_norm_eps").value_or(1e-6);
  d.rotary_base = config.rotary_base(10000);
  d.initial_deviation = config.maybe_number("initializer_range").value_or(0.02);
  return decoder;
}

std::vector<bool> read_dense_layers(ConfigReader& config, std::int64_t layers, std::int64_t experts) {
  const std::int64_t step = config.size("decoder_sparse_step", 1);
  std::vector<bool> dense(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) dense[static_cast<std::size_t>(i)] = experts == 0 || (i + 1) % step != 0;
  for (const std::int64_t i : config.indices("mlp_only_layers", layers)) dense[static_cast<std::size_t>(i)] = true;
  return dense;
}

ModelSpec build_decoder(const ConfigReader& config, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const Names names(decoder.prefix);
  const bool text_model = decoder.prefix == "Gemma3";  // Gemma3 is multimodal; its text model is named so.
  ModelBuilder b(config, prefixed(decoder.prefix, "ForCausalLM"));
  const std::string dense_forward = layer_forward(decoder, false);
  const std::string expert_forward = layer_forward(decoder, true);
  ParameterId embedding = kNone;
  {
    const auto model = b.module("model", prefixed(decoder.prefix, text_model ? "TextModel" : "Model"));
    embedding = register_embedding(b, decoder);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const std::vector<bool>& dense = decoder.experts.dense;
        const bool with_experts = decoder.experts.count > 0 && (dense.empty() || !dense[static_cast<std::size_t>(i)]);
        const auto layer = b.layer(i, names.layer, with_experts ? expert_forward : dense_forward);
        register_layer(b, decoder, names, with_experts);
      }
    }
    b.rms_norm("norm", d.hidden, names.norm);
    register_rotary(b, decoder);
  }
  const ParameterId head = b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (decoder.tied) b.tie(head, embedding);
  std::string tables = "rotary_emb";
  for (std::size_t i = 1; i < decoder.rotary.size(); ++i) tables += " rotary_emb";  // Called once per kind.
  ModelSpec spec = b.finish(formatted("model(embed_tokens {} layers* norm) lm_head", tables));
  spec.dims = d;
  spec.dims.experts = decoder.experts.count;
  spec.dims.experts_per_token = decoder.experts.per_token;
  return spec;
}

}  // namespace dsplan
