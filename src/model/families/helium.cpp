// helium: Llama's shape with pairs of each head turned, and norms whose weight is brought to fp32.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_helium(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Helium",
                                 {.vocab = 48000,
                                  .hidden = 2560,
                                  .ffn = 7040,
                                  .layers = 24,
                                  .heads = 20,
                                  .kv_heads = 20,
                                  .head_dim = 128,
                                  .positions = 4096});
  decoder.qkv_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  decoder.parts.norm = NormKind::RmsWideWeight;
  decoder.parts.rotary.pairs = decoder.parts.rotary.repeats_tables = true;
  read_head(config, decoder, 3);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
