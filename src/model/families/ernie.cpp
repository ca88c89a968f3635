// ernie4_5: Llama's shape; pairs of each head turn, with tables and products in fp32.
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

}  // namespace dsplan
