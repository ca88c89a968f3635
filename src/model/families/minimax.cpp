// minimax_m2: Mixtral's shape with norms over all heads of queries and keys together, part of each head turned, and
// experts that are chosen by a sigmoid and a bias of the block's; hy_v3.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_minimax_m2(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "MiniMaxM2",
                                 {.vocab = 200064,
                                  .hidden = 3072,
                                  .ffn = 1536,
                                  .layers = 62,
                                  .heads = 48,
                                  .kv_heads = 8,
                                  .head_dim = 128,
                                  .positions = 196608});
  decoder.dims.rotary_fraction = config.rotary_share("partial_rotary_factor", 1);
  DecoderParts& parts = decoder.parts;
  parts.views_behind = true;
  parts.head_norm = HeadNorm::Whole;
  parts.rotary.part = RotaryPart::JoinedLast;
  parts.experts.router = Router::Sigmoid;
  parts.experts.ffn = decoder.dims.ffn;
  decoder.experts.count = config.size("num_local_experts", 256, "num_experts");
  decoder.experts.per_token = config.size("num_experts_per_tok", 8);
  decoder.experts.router_class = "MiniMaxM2TopKRouter";
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_local_experts", decoder.experts.count);
  return finish_decoder(config, decoder);
}

// hy_v3: norms over each head of queries and keys, and the same choice of experts in fp32 behind the first layer, with
// an expert that sees every token.
ModelSpec build_hy_v3(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "HYV3",
      {.vocab = 120832, .ffn = 13312, .layers = 80, .heads = 64, .kv_heads = 8, .head_dim = 128, .positions = 131072});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  decoder.parts.head_norm = HeadNorm::ByHead;
  ExpertParts& experts = decoder.parts.experts;
  experts.router = Router::WideSigmoid;
  experts.ffn = config.size("moe_intermediate_size", 1536);
  experts.shared = SharedPlace::RowsNamed;
  experts.shared_module = "shared_experts";
  experts.shared_ffn = config.times(experts.ffn, config.size("num_shared_experts", 1));
  experts.wide_sum = config.flag("enable_moe_fp32_combine", true);
  experts.scale = config.maybe_number("router_scaling_factor", 2.826).value_or(1);
  decoder.experts.count = config.size("num_experts", 192, "num_local_experts");
  decoder.experts.per_token = config.size("num_experts_per_tok", 8);
  decoder.experts.router_class = "HYV3TopKRouter";
  decoder.experts.block_class = "MoE";
  decoder.experts.dense = read_mlp_types(config, decoder.dims.layers, 1, {});
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", decoder.experts.count);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
