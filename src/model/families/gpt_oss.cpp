// gpt_oss: windows in every other layer, a learned score beside those of the keys, and experts with biases. Published
// weights are MXFP4; they are brought to the training's dtype before it.
#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_gpt_oss(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "GptOss",
                                 {.vocab = 201088,
                                  .hidden = 2880,
                                  .ffn = 2880,
                                  .layers = 36,
                                  .heads = 64,
                                  .kv_heads = 8,
                                  .head_dim = 64,
                                  .positions = 131072,
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  Dimensions& d = decoder.dims;
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", true);
  d.sliding_window = config.maybe_size("sliding_window", 128).value_or(0);
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::RmsWide;
  parts.sinks = parts.both_masks = true;
  parts.rotary.half_tables = true;
  parts.kinds = read_layer_kinds(
      config, d.layers, [](std::int64_t layer) { return layer % 2 == 0 ? LayerKind::Sliding : LayerKind::Full; });
  parts.experts.router = Router::BareSoftmax;
  parts.experts.gate = "router";
  parts.experts.ffn = d.ffn;
  parts.experts.biased = true;
  decoder.experts.count = config.size("num_local_experts", 128, "num_experts");
  decoder.experts.per_token = config.size("num_experts_per_tok", 4, "experts_per_token");
  decoder.experts.router_class = "GptOssTopKRouter";
  decoder.experts.block_class = "MLP";
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_local_experts", decoder.experts.count);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
