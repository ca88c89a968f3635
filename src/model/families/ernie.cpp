// ernie4_5 and ernie4_5_moe: Llama's shape; pairs of each head turn, with tables and products in fp32.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_ernie4_5(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Ernie4_5",
                                 {.vocab = 103424,
                                  .hidden = 1024,
                                  .ffn = 3072,
                                  .layers = 18,
                                  .heads = 16,
                                  .kv_heads = 2,
                                  .head_dim = 128,
                                  .positions = 131072,
                                  .tied = true,
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = decoder.mlp_bias = config.flag("use_bias", false);
  decoder.dims.attention_dropout = 0;  // The attention does not ask.
  RotaryParts& rotary = decoder.parts.rotary;
  rotary.pairs = rotary.repeats_tables = rotary.wide_tables = rotary.wide_products = true;
  return finish_decoder(config, decoder);
}

// Experts in all layers but the first, chosen with a bias in fp32 that no gradient trains.
ModelSpec build_ernie4_5_moe(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Ernie4_5_Moe",
                                 {.vocab = 103424,
                                  .hidden = 2560,
                                  .ffn = 12288,
                                  .layers = 28,
                                  .heads = 20,
                                  .kv_heads = 4,
                                  .positions = 131072,
                                  .tied = true,
                                  .kv_heads_may_be_null = true});
  Dimensions& d = decoder.dims;
  decoder.qkv_bias = decoder.output_bias = decoder.mlp_bias = config.flag("use_bias", false);
  decoder.head_bias = decoder.mlp_bias;
  d.attention_dropout = 0;  // The attention does not ask.
  RotaryParts& rotary = decoder.parts.rotary;
  rotary.pairs = rotary.repeats_tables = rotary.wide_tables = rotary.wide_products = true;
  ExpertParts& parts = decoder.parts.experts;
  parts.router = Router::Fp32Biased;
  parts.ffn = config.size("moe_intermediate_size", 1536);
  parts.shared = SharedPlace::Rows;
  parts.shared_module = "shared_experts";
  parts.shared_ffn = config.times(parts.ffn, config.count("moe_num_shared_experts", 2));
  decoder.experts.count = config.size("moe_num_experts", 64, "num_experts");
  decoder.experts.per_token = config.size("moe_k", 6, "num_experts_per_tok");
  decoder.experts.router_class = "Ernie4_5_MoeTopKRouter";
  config.require_at_most("moe_k", decoder.experts.per_token, "moe_num_experts", decoder.experts.count);
  const std::int64_t first = config.count("moe_layer_start_index", 1);
  const std::int64_t step = config.size("moe_layer_interval", 1);
  const double last = config.maybe_number("moe_layer_end_index", -1).value_or(-1);
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const bool among = i >= first && (last == -1 || static_cast<double>(i) <= last);
    decoder.experts.dense.push_back(!among || (i + 1) % step != 0);
  }
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
