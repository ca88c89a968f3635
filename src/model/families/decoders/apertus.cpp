// apertus: Llama's shape with norms of each head, and an MLP of two products around an activation with parameters.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_apertus(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "Apertus",
      {.vocab = 131072, .ffn = 14336, .positions = 65536, .activation = "xielu", .kv_heads_may_be_null = true});
  decoder.dims.norm_epsilon = config.maybe_number("rms_norm_eps").value_or(1e-5);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.norms = {"attention_layernorm", "feedforward_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.head_norm = HeadNorm::ByHead;
  parts.before_attention = "attention_layernorm";
  parts.before_mlp = "feedforward_layernorm";
  parts.mlp = MlpKind::Plain;
  read_head(config, decoder, 3);
  if (parts.head == TextHead::Text) parts.head = TextHead::LanguageModel;  // There is no such class, which is refused.
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
