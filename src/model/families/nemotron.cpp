// nemotron: norms with one plus their weight, half of each head turned, an MLP of two products. jais2: the same MLP in
// Llama's shape, with nn.LayerNorm and biases.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_nemotron(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Nemotron",
                                 {.vocab = 256000,
                                  .hidden = 6144,
                                  .ffn = 24576,
                                  .heads = 48,
                                  .positions = 4096,
                                  .activation = "relu2",
                                  .epsilon_key = "norm_eps",
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  decoder.dims.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.5);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  decoder.norm_class = "LayerNorm1P";
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::LayerPlusOne;
  parts.rotary.part = RotaryPart::JoinedAtOnce;
  parts.mlp = MlpKind::Plain;
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_jais2(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Jais2",
                                 {.vocab = 150272,
                                  .hidden = 3328,
                                  .ffn = 26624,
                                  .heads = 26,
                                  .positions = 8192,
                                  .activation = "relu2",
                                  .epsilon_key = "layer_norm_eps",
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", true);
  decoder.mlp_bias = config.flag("mlp_bias", true);
  decoder.parts.norm = NormKind::Layer;
  decoder.parts.mlp = MlpKind::Plain;
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
