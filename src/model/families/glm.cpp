// glm, glm4, glm4_moe, and solar_open and dots1, which have its experts. glm4: a norm on each side of attention and
// MLP, half of each head turned by pairs, gate and up in one product.
#include "model/families/builder.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_glm(ConfigReader& config, std::string_view prefix, bool null_heads) {
  Decoder decoder = read_decoder(config, prefix,
                                 {.vocab = 151552,
                                  .ffn = 13696,
                                  .layers = 40,
                                  .kv_heads = 2,
                                  .head_dim = 128,
                                  .positions = 131072,
                                  .kv_heads_may_be_null = null_heads,
                                  .head_dim_may_be_null = null_heads});
  decoder.dims.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.5);
  decoder.qkv_bias = config.flag("attention_bias", true);
  DecoderParts& parts = decoder.parts;
  parts.rotary.part = RotaryPart::JoinedLast;
  parts.rotary.pairs = parts.rotary.repeats_tables = true;
  parts.mlp = MlpKind::FusedGate;
  parts.up = "gate_up_proj";
  parts.activation = "activation_fn";
  return decoder;
}

}  // namespace

void read_routed_experts(ConfigReader& config, Decoder& decoder, const RoutedDefaults& defaults) {
  ExpertParts& experts = decoder.parts.experts;
  experts.router = Router::Fp32Sigmoid;
  experts.ffn = config.size("moe_intermediate_size", defaults.ffn);
  experts.shared = SharedPlace::Behind;
  experts.shared_module = "shared_experts";
  experts.shared_ffn = config.times(experts.ffn, config.size(defaults.shared_key, 1));
  experts.normalised = config.flag("norm_topk_prob", defaults.normalised);
  experts.scale = config.maybe_number("routed_scaling_factor", defaults.scale).value_or(1);
  experts.groups = config.size("n_group", 1);
  experts.kept_groups = config.size("topk_group", 1);
  decoder.experts.count = config.size(defaults.key, defaults.count, defaults.alias);
  decoder.experts.per_token = config.size("num_experts_per_tok", 8);
  decoder.experts.router_first = false;
  decoder.experts.block_class = "MoE";
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, defaults.key, decoder.experts.count);
  config.require_at_most("topk_group", experts.kept_groups, "n_group", experts.groups);
  config.require_divides("n_group", experts.groups, defaults.key, decoder.experts.count);
}

void read_glm_mixture(ConfigReader& config, Decoder& decoder, std::string_view router) {
  read_routed_experts(config, decoder, {.ffn = 1408});
  decoder.experts.router_class = router;
  decoder.experts.wide_correction = true;
  decoder.experts.dense = read_first_dense(config, decoder.dims.layers, 1);
}

ModelSpec build_glm(ConfigReader& config) {
  Decoder decoder = read_glm(config, "Glm", true);
  read_head(config, decoder, 151329);
  return finish_decoder(config, decoder);
}

ModelSpec build_glm4(ConfigReader& config) {
  Decoder decoder = read_glm(config, "Glm4", false);
  decoder.norms = {"input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"};
  decoder.parts.after_attention = "post_self_attn_layernorm";
  decoder.parts.after_mlp = "post_mlp_layernorm";
  read_head(config, decoder, 151329);
  return finish_decoder(config, decoder);
}

// glm4_moe: Llama's shape with half of each head turned, and deepseek_v3's experts behind the first layers.
ModelSpec build_glm4_moe(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Glm4Moe",
                                 {.vocab = 151552,
                                  .hidden = 4096,
                                  .ffn = 10944,
                                  .layers = 46,
                                  .heads = 96,
                                  .kv_heads = 8,
                                  .positions = 131072,
                                  .heads_divide = false});
  Dimensions& d = decoder.dims;
  d.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.5);
  // The tables are of pairs: as wide as twice their number, which is what forward turns.
  if (const std::int64_t turned = rotated(d); turned % 2 == 1) {
    d.rotary_fraction = (static_cast<double>(turned) + 1.5) / static_cast<double>(d.head_dim);
  }
  decoder.qkv_bias = config.flag("attention_bias", false);
  DecoderParts& parts = decoder.parts;
  if (config.flag("use_qk_norm", false)) parts.head_norm = HeadNorm::BehindByToken;
  parts.rotary.part = RotaryPart::JoinedLast;
  read_glm_mixture(config, decoder, "Glm4MoeTopkRouter");
  return finish_decoder(config, decoder);
}

// Llama's attention, experts in all layers.
ModelSpec build_solar_open(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "SolarOpen",
                   {.vocab = 196608, .layers = 48, .heads = 64, .kv_heads = 8, .head_dim = 128, .positions = 131072});
  decoder.qkv_bias = config.flag("attention_bias", false);
  read_routed_experts(config, decoder, {.ffn = 1280});
  decoder.experts.router_class = "SolarOpenTopkRouter";
  decoder.experts.wide_correction = true;
  return finish_decoder(config, decoder);
}

// qwen3's attention.
ModelSpec build_dots1(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "Dots1",
      {.vocab = 152064, .hidden = 4608, .ffn = 10944, .layers = 62, .kv_heads = 32, .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::ByToken;
  const std::int64_t window = config.maybe_size("sliding_window", 4096).value_or(0);
  const std::int64_t bound = config.count("max_window_layers", 62);
  decoder.parts.kinds = read_layer_kinds(config, decoder.dims.layers, [&](std::int64_t layer) {
    return window > 0 && layer >= bound ? LayerKind::Sliding : LayerKind::Full;
  });
  if (decoder.parts.some_slide()) {
    decoder.dims.sliding_window = window;
  } else {
    decoder.parts.kinds.clear();
  }
  read_routed_experts(config, decoder, {.ffn = 1408, .normalised = false});
  decoder.experts.router_class = "Dots1TopkRouter";
  decoder.experts.dense = read_first_dense(config, decoder.dims.layers, 0);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
