// glm4 and glm4_moe. glm4: a norm on each side of attention and MLP, half of each head turned by pairs, gate and up in
// one product.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_glm4(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Glm4",
                   {.vocab = 151552, .ffn = 13696, .layers = 40, .kv_heads = 2, .head_dim = 128, .positions = 131072});
  decoder.dims.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.5);
  decoder.qkv_bias = config.flag("attention_bias", true);
  decoder.norms = {"input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.after_attention = "post_self_attn_layernorm";
  parts.after_mlp = "post_mlp_layernorm";
  parts.rotary.part = RotaryPart::JoinedLast;
  parts.rotary.pairs = parts.rotary.repeats_tables = true;
  parts.mlp = MlpKind::FusedGate;
  parts.up = "gate_up_proj";
  parts.activation = "activation_fn";
  return finish_decoder(config, decoder);
}

// glm4_moe: Llama's shape with half of each head turned, and deepseek_v3's experts behind the first layers.
ModelSpec build_glm4_moe(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "Glm4Moe",
      {.vocab = 151552, .hidden = 4096, .ffn = 10944, .layers = 46, .heads = 96, .kv_heads = 8, .positions = 131072});
  Dimensions& d = decoder.dims;
  d.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.5);
  decoder.qkv_bias = config.flag("attention_bias", false);
  DecoderParts& parts = decoder.parts;
  if (config.flag("use_qk_norm", false)) parts.head_norm = HeadNorm::BehindByToken;
  parts.rotary.part = RotaryPart::JoinedLast;
  ExpertParts& experts = parts.experts;
  experts.router = Router::Fp32Sigmoid;
  experts.ffn = config.size("moe_intermediate_size", 1408);
  experts.shared_plainly = true;
  experts.shared_ffn = config.times(experts.ffn, config.size("n_shared_experts", 1));
  experts.normalised = config.flag("norm_topk_prob", true);
  experts.scale = config.maybe_number("routed_scaling_factor", 1).value_or(1);
  experts.groups = config.size("n_group", 1);
  experts.kept_groups = config.size("topk_group", 1);
  decoder.experts.count = config.size("n_routed_experts", 128, "num_local_experts");
  decoder.experts.per_token = config.size("num_experts_per_tok", 8);
  decoder.experts.router_first = false;
  decoder.experts.router_class = "Glm4MoeTopkRouter";
  decoder.experts.block_class = "MoE";
  decoder.experts.wide_correction = true;
  const std::int64_t dense = config.count("first_k_dense_replace", 1);
  for (std::int64_t i = 0; i < d.layers; ++i) decoder.experts.dense.push_back(i < dense);
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "n_routed_experts", decoder.experts.count);
  config.require_at_most("topk_group", experts.kept_groups, "n_group", experts.groups);
  config.require_divides("n_group", experts.groups, "n_routed_experts", decoder.experts.count);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
