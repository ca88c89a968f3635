// granite: Llama's shape with factors on the embedding, on what joins the residual stream, and on the logits.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_granite(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Granite",
                                 {.vocab = 32000,
                                  .hidden = 4096,
                                  .ffn = 11008,
                                  .layers = 32,
                                  .heads = 32,
                                  .kv_heads = 0,
                                  .head_dim = 0,
                                  .positions = 2048,
                                  .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  decoder.parts.embedding_multiplier = config.maybe_number("embedding_multiplier", 1).value_or(1);
  decoder.parts.residual_multiplier = config.maybe_number("residual_multiplier", 1).value_or(1);
  decoder.parts.attention_scale = config.maybe_number("attention_multiplier", 1).value_or(1);
  decoder.parts.logits_divisor = config.maybe_number("logits_scaling", 1).value_or(1);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
