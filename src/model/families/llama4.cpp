// llama4_text: a decoder whose layers, all or every second, let each expert see every token weighed by a sigmoid,
// beside one that sees all; attention in chunks where positions are rotary, and to all tokens where there are none.
#include <algorithm>

#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

struct Llama4 {
  Decoder decoder;
  std::vector<std::int64_t> mixed;  // Layers with experts.
  bool head_norms = true;
};

void read_llama4_experts(ConfigReader& config, Llama4& m) {
  Dimensions& d = m.decoder.dims;
  ExpertParts& experts = m.decoder.parts.experts;
  experts.ffn = experts.shared_ffn = d.ffn;
  d.ffn = config.size("intermediate_size_mlp", 16384);
  d.experts = config.size("num_local_experts", 16);
  d.experts_per_token = config.size("num_experts_per_tok", 1);
  config.require_at_most("num_experts_per_tok", d.experts_per_token, "num_local_experts", d.experts);
  const std::int64_t step = config.size("interleave_moe_layer_step", 1);
  m.mixed = config.indices("moe_layers", d.layers);
  if (config.find("moe_layers") != nullptr) return;
  for (std::int64_t i = step - 1; i < d.layers; i += step) m.mixed.push_back(i);
}

Llama4 read_llama4(ConfigReader& config) {
  Llama4 m;
  m.decoder = read_decoder(config, "Llama4Text",
                           {.vocab = 202048,
                            .hidden = 5120,
                            .ffn = 8192,
                            .layers = 48,
                            .heads = 40,
                            .kv_heads = 8,
                            .head_dim = 128,
                            .positions = 131072,
                            .kv_heads_may_be_null = true,
                            .head_dim_may_be_null = true});
  Dimensions& d = m.decoder.dims;
  DecoderParts& parts = m.decoder.parts;
  read_llama4_experts(config, m);
  m.decoder.qkv_bias = m.decoder.output_bias = config.flag("attention_bias", false);
  m.head_norms = config.flag("use_qk_norm", true);
  const std::int64_t interval = config.size("no_rope_layer_interval", 4);
  const auto turns = [&](std::int64_t layer) { return (layer + 1) % interval != 0; };
  const Value* const said = config.find("no_rope_layers");
  if (said != nullptr && said->is(Value::Kind::Array) && said->items.empty()) {  // As if it said nothing.
    for (std::int64_t layer = 0; layer < d.layers; ++layer) parts.turned.push_back(turns(layer));
  } else {
    parts.turned = read_layer_flags(config, "no_rope_layers", d.layers, turns);
  }
  config.refuse_null("attention_chunk_size", "an integer");
  d.sliding_window = config.size("attention_chunk_size", 8192);
  parts.kinds = read_layer_kinds(
      config, d.layers,
      [&](std::int64_t layer) {
        return parts.turns(static_cast<std::size_t>(layer)) ? LayerKind::Sliding : LayerKind::Full;
      },
      "chunked_attention");
  parts.norm = NormKind::RmsLast;
  parts.projections = Projections::ByToken;
  parts.residual = Residual::SerialNamed;
  parts.rotary.complex = parts.bare_softmax = parts.chunked = parts.both_masks = true;
  parts.activation = "activation_fn";
  parts.feed_forward = parts.experts.block = "feed_forward";
  parts.experts.router = Router::Scattered;
  parts.tempered = config.flag("attn_temperature_tuning", true);
  parts.temperature_floor = config.maybe_number("floor_scale").value_or(parts.temperature_floor);
  parts.temperature_scale = config.maybe_number("attn_scale").value_or(parts.temperature_scale);
  return m;
}

void register_llama4_mlp(ModelBuilder& b, const Dimensions& d, std::string_view name, std::int64_t ffn) {
  const auto mlp = b.module(name, "Llama4TextMLP");
  b.linear("gate_proj", ffn, d.hidden, false, Cut::Column);
  b.linear("up_proj", ffn, d.hidden, false, Cut::Column);
  b.linear("down_proj", d.hidden, ffn, false, Cut::Row);
  b.activation("activation_fn", d.activation);
}

void register_llama4_experts(ModelBuilder& b, const Llama4& m) {
  const Dimensions& d = m.decoder.dims;
  const std::int64_t ffn = m.decoder.parts.experts.ffn;
  const auto block = b.module("feed_forward", "Llama4TextMoe");
  {
    const auto experts = b.module("experts", "Llama4TextExperts");
    b.parameter("gate_up_proj", {d.experts, d.hidden, b.times(2, ffn)}, Split::Even, 2);
    b.parameter("down_proj", {d.experts, ffn, d.hidden}, Split::Even, 1);
    b.activation("act_fn", d.activation);
  }
  b.linear("router", d.experts, d.hidden, false, Cut::Whole, "Llama4Router");
  register_llama4_mlp(b, d, "shared_expert", ffn);
}

void register_llama4_norm(ModelBuilder& b, std::string_view name, std::int64_t size) {
  b.rms_norm(name, size, "Llama4TextRMSNorm");
}

void register_llama4_layer(ModelBuilder& b, const Llama4& m, bool normed, bool mixed) {
  const Decoder& decoder = m.decoder;
  const Dimensions& d = decoder.dims;
  {
    const auto attention = b.module("self_attn", "Llama4TextAttention");
    const std::int64_t query = b.times(d.heads, d.head_dim);
    const std::int64_t key = b.times(d.kv_heads, d.head_dim);
    b.linear("q_proj", query, d.hidden, decoder.qkv_bias, Cut::Column);
    b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::KeyValue);
    b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::KeyValue);
    b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Row);
    if (normed) b.leaf("qk_norm", "Llama4TextL2Norm");
  }
  if (mixed) {
    register_llama4_experts(b, m);
  } else {
    register_llama4_mlp(b, d, "feed_forward", d.ffn);
  }
  register_llama4_norm(b, "input_layernorm", d.hidden);
  register_llama4_norm(b, "post_attention_layernorm", d.hidden);
}

// By whether heads are normed, and whether there are experts.
constexpr std::string_view kLlama4Forward[2][2] = {
    {"input_layernorm self_attn(q_proj k_proj v_proj o_proj) post_attention_layernorm "
     "feed_forward(gate_proj activation_fn up_proj down_proj)",
     "input_layernorm self_attn(q_proj k_proj v_proj o_proj) post_attention_layernorm "
     "feed_forward(router experts(act_fn) shared_expert(gate_proj activation_fn up_proj down_proj))"},
    {"input_layernorm self_attn(q_proj k_proj v_proj qk_norm qk_norm o_proj) post_attention_layernorm "
     "feed_forward(gate_proj activation_fn up_proj down_proj)",
     "input_layernorm self_attn(q_proj k_proj v_proj qk_norm qk_norm o_proj) post_attention_layernorm "
     "feed_forward(router experts(act_fn) shared_expert(gate_proj activation_fn up_proj down_proj))"}};

}  // namespace

ModelSpec build_llama4_text(ConfigReader& config) {
  const Llama4 m = read_llama4(config);
  config.throw_if_any();
  const Dimensions& d = m.decoder.dims;
  ModelBuilder b(config, "Llama4ForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "Llama4TextModel");
    words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool normed = m.head_norms && m.decoder.parts.turns(static_cast<std::size_t>(i));
        const bool mixed = std::find(m.mixed.begin(), m.mixed.end(), i) != m.mixed.end();
        const auto layer = b.layer(i, "Llama4TextDecoderLayer", kLlama4Forward[normed ? 1 : 0][mixed ? 1 : 0]);
        register_llama4_layer(b, m, normed, mixed);
      }
    }
    register_llama4_norm(b, "norm", d.hidden);
    b.rotary("rotary_emb", "Llama4TextRotaryEmbedding", d.head_dim);
  }
  const ParameterId head = b.linear("lm_head", d.vocab, d.hidden, false, Cut::Vocabulary);
  if (m.decoder.tied) b.tie(head, words);
  ModelSpec spec = b.finish("model(embed_tokens rotary_emb layers* norm) lm_head");
  spec.dims = d;
  spec.parts = std::make_shared<const DecoderParts>(m.decoder.parts);
  return spec;
}

}  // namespace dsplan
