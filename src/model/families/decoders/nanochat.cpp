// nanochat: Llama's shape without a weight in any norm, one of them ahead of the first layer; heads are turned the
// other way and normed behind that, the MLP has two products, logits are bounded.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_nanochat(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "NanoChat",
                                 {.vocab = 50304,
                                  .hidden = 768,
                                  .ffn = 8192,
                                  .layers = 12,
                                  .heads = 6,
                                  .activation = "relu2",
                                  .kv_heads_may_be_null = true});
  decoder.dims.final_softcap = config.maybe_number("final_logit_softcapping", 15).value_or(0);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.activation_first = true;
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::RmsBare;
  parts.head_norm = HeadNorm::AfterRotary;
  parts.rotary.flips = true;
  parts.norms_embedding = true;
  parts.mlp = MlpKind::Plain;
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
