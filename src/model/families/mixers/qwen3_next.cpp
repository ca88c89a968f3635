// qwen3_next, qwen3_5 and qwen3_5_moe: layers of a gated delta net, and every fourth of attention with a gate; experts
// beside one that sees all. Of qwen3_5 the text alone; with pictures it stands in qwen_vl.cpp.
#include "model/families/mixers/qwen3_next.h"

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/families/mixers/mamba.h"

namespace dsplan {
namespace {

void read_delta(ConfigReader& config, DeltaParts& p) {
  p.kernel = config.size("linear_conv_kernel_dim", 4);
  p.key_dim = config.size("linear_key_head_dim", 128);
  p.value_dim = config.size("linear_value_head_dim", 128);
  p.key_heads = config.size("linear_num_key_heads", 16);
  p.heads = config.size("linear_num_value_heads", 32);
  config.require_divides("linear_num_key_heads", p.key_heads, "linear_num_value_heads", p.heads);
}

struct ExpertDefaults {
  std::int64_t count = 512;
  std::int64_t per_token = 10;
};

void read_experts(ConfigReader& config, Decoder& decoder, const ExpertDefaults& defaults) {
  Dimensions& d = decoder.dims;
  ExpertParts& experts = decoder.parts.experts;
  d.experts = config.count("num_experts", defaults.count);
  d.experts_per_token = config.size("num_experts_per_tok", defaults.per_token);
  if (d.experts > 0) config.require_at_most("num_experts_per_tok", d.experts_per_token, "num_experts", d.experts);
  experts.router = Router::Softmax;
  experts.ffn = config.size("moe_intermediate_size", 512);
  experts.shared_ffn = config.size("shared_expert_intermediate_size", 512);
}

// What all of them have but for their MLPs.
Decoder read_layers(ConfigReader& config, std::string_view prefix, const DecoderDefaults& defaults) {
  Decoder decoder = read_decoder(config, prefix, defaults);
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  d.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.25);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  parts.norm = NormKind::RmsPlusOne;
  parts.head_norm = HeadNorm::ByToken;
  parts.rotary.part = d.rotary_fraction < 1 ? RotaryPart::JoinedLast : RotaryPart::Whole;
  parts.gates_queries = true;
  const std::int64_t interval = config.size("full_attention_interval", 4);
  parts.recurrent = read_recurrent(config, d.layers, [&](std::int64_t layer) { return (layer + 1) % interval != 0; });
  read_delta(config, parts.delta);
  return decoder;
}

Decoder read_next(ConfigReader& config) {
  Decoder decoder = read_layers(config, "Qwen3Next",
                                {.vocab = 151936,
                                 .hidden = 2048,
                                 .ffn = 5632,
                                 .layers = 48,
                                 .heads = 16,
                                 .kv_heads = 2,
                                 .head_dim = 256,
                                 .positions = 32768});
  read_experts(config, decoder, {});
  decoder.parts.experts.normalised = config.flag("norm_topk_prob", true);
  decoder.experts.dense = read_dense_layers(config, decoder.dims.layers, decoder.dims.experts);
  return decoder;
}

std::string named(const Decoder& decoder, std::string_view what) { return formatted("{}{}", decoder.prefix, what); }

void register_delta(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const DeltaParts& p = decoder.parts.delta;
  const auto mixer = b.module("linear_attn", named(decoder, "GatedDeltaNet"));
  const std::int64_t keys = b.times(p.key_heads, p.key_dim);
  const std::int64_t values = b.times(p.heads, p.value_dim);
  b.parameter("dt_bias", {p.heads}, Split::Unknown);
  b.parameter("A_log", {p.heads}, Split::Unknown);
  {
    const auto convolution = b.module("conv1d", "Conv1d");
    b.parameter("weight", {b.plus(b.times(2, keys), values), 1, p.kernel}, Split::Unknown);
  }
  if (!p.apart) {
    b.linear("in_proj_qkvz", b.times(2, b.plus(keys, values)), d.hidden, false, Cut::Unknown);
    b.linear("in_proj_ba", b.times(2, p.heads), d.hidden, false, Cut::Unknown);
  }
  b.rms_norm("norm", p.value_dim, named(decoder, "RMSNormGated"));
  b.linear("out_proj", d.hidden, values, false, Cut::Unknown);
  if (!p.apart) return;
  b.linear("in_proj_qkv", b.plus(b.times(2, keys), values), d.hidden, false, Cut::Unknown);
  b.linear("in_proj_z", values, d.hidden, false, Cut::Unknown);
  b.linear("in_proj_b", p.heads, d.hidden, false, Cut::Unknown);
  b.linear("in_proj_a", p.heads, d.hidden, false, Cut::Unknown);
}

void register_next_attention(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const auto attention = b.module("self_attn", named(decoder, "Attention"));
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", b.times(2, query), d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, decoder.qkv_bias, Cut::Unknown);
  b.linear("o_proj", d.hidden, query, decoder.output_bias, Cut::Unknown);
  b.rms_norm("q_norm", d.head_dim, named(decoder, "RMSNorm"));
  b.rms_norm("k_norm", d.head_dim, named(decoder, "RMSNorm"));
}

void register_next_experts(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const ExpertParts& parts = decoder.parts.experts;
  const auto block = b.module("mlp", named(decoder, "SparseMoeBlock"));
  {
    const auto gate = b.module("gate", named(decoder, "TopKRouter"));
    b.parameter("weight", {d.experts, d.hidden}, Split::Replicated);
  }
  register_experts(b, named(decoder, "Experts"), d.experts, parts.ffn, d.hidden, d.activation);
  {
    const auto shared = b.module("shared_expert", named(decoder, "MLP"));
    register_gated_mlp(b, d.hidden, parts.shared_ffn, false, d.activation);
  }
  b.linear("shared_expert_gate", 1, d.hidden, false, Cut::Whole);
}

void register_next_layer(ModelBuilder& b, const Decoder& decoder, bool recurs, bool mixes) {
  const Dimensions& d = decoder.dims;
  if (recurs) {
    register_delta(b, decoder);
  } else {
    register_next_attention(b, decoder);
  }
  if (mixes) {
    register_next_experts(b, decoder);
  } else {
    const auto mlp = b.module("mlp", named(decoder, "MLP"));
    register_gated_mlp(b, d.hidden, d.ffn, false, d.activation);
  }
  b.rms_norm("input_layernorm", d.hidden, named(decoder, "RMSNorm"));
  b.rms_norm("post_attention_layernorm", d.hidden, named(decoder, "RMSNorm"));
}

std::string next_forward(const Decoder& decoder, bool recurs, bool mixes) {
  const std::string_view mixer = decoder.parts.delta.apart
                                     ? "linear_attn(in_proj_qkv in_proj_z in_proj_b in_proj_a norm out_proj)"
                                     : "linear_attn(in_proj_qkvz in_proj_ba norm out_proj)";
  return formatted(
      "input_layernorm {} post_attention_layernorm {}",
      recurs ? mixer : "self_attn(q_proj q_norm k_proj k_norm v_proj o_proj)",
      mixes ? "mlp(shared_expert(gate_proj act_fn up_proj down_proj) gate experts(act_fn) shared_expert_gate)"
            : kGatedMlpForward);
}

}  // namespace

ModelSpec finish_hybrid(const ConfigReader& config, const Decoder& decoder) {
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  // By whether it recurs, and whether it has experts.
  const std::string forwards[2][2] = {{next_forward(decoder, false, false), next_forward(decoder, false, true)},
                                      {next_forward(decoder, true, false), next_forward(decoder, true, true)}};
  const std::string layer_class = named(decoder, "DecoderLayer");
  const std::string norm_class = named(decoder, "RMSNorm");
  const std::string body = named(decoder, decoder.body_class);
  ModelBuilder b(config, class_of(decoder));
  ParameterId words = kNone;
  {
    const auto model = b.module("model", body);
    words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool recurs = decoder.parts.recurs(static_cast<std::size_t>(i));
        const bool mixes = d.experts > 0 && !decoder.experts.dense[static_cast<std::size_t>(i)];
        const auto layer = b.layer(i, layer_class, forwards[recurs ? 1 : 0][mixes ? 1 : 0]);
        register_next_layer(b, decoder, recurs, mixes);
      }
    }
    b.rms_norm("norm", d.hidden, norm_class);
    const std::string_view of_text = decoder.body_class == "TextModel" ? "TextRotaryEmbedding" : "RotaryEmbedding";
    b.rotary("rotary_emb", named(decoder, of_text), rotated(d));
  }
  return finish_with_head(b, d, decoder.tied, words, "model(embed_tokens rotary_emb layers* norm)", decoder.parts);
}

namespace {

// A product for each of what the delta net reads, and positions along three axes.
void of_today(Decoder& decoder) {
  decoder.body_class = "TextModel";
  decoder.parts.delta.apart = true;
  decoder.parts.rotary.three_axes = decoder.parts.rotary.mixed_axes = true;
}

}  // namespace

void take_axes(ConfigReader& config) {
  std::erase_if(config.gaps, [](const ConfigGap& gap) { return gap.what == "mrope RoPE"; });
}

Decoder read_qwen3_5(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_layers(
      config, prefix, {.vocab = 248320, .ffn = 12288, .heads = 16, .kv_heads = 4, .head_dim = 256, .positions = 32768});
  of_today(decoder);
  return decoder;
}

Decoder read_qwen3_5_moe(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_layers(config, prefix,
                                {.vocab = 248320,
                                 .hidden = 2048,
                                 .ffn = 0,
                                 .layers = 40,
                                 .heads = 16,
                                 .kv_heads = 2,
                                 .head_dim = 256,
                                 .positions = 32768});
  of_today(decoder);
  read_experts(config, decoder, {256, 8});
  decoder.parts.experts.normalised = true;
  decoder.experts.dense.assign(static_cast<std::size_t>(decoder.dims.layers), false);
  return decoder;
}

ModelSpec build_qwen3_next(ConfigReader& config) {
  Decoder decoder = read_next(config);
  read_head(config, decoder);
  return finish_hybrid(config, decoder);
}

ModelSpec build_qwen3_5_text(ConfigReader& config) {
  take_axes(config);
  Decoder decoder = read_qwen3_5(config, "Qwen3_5");
  decoder.headed_prefix = "Qwen3_5Text";
  read_head(config, decoder, {}, false);
  return finish_hybrid(config, decoder);
}

ModelSpec build_qwen3_5_moe_text(ConfigReader& config) {
  take_axes(config);
  return finish_hybrid(config, read_qwen3_5_moe(config, "Qwen3_5Moe"));
}

}  // namespace dsplan
