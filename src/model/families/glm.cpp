// glm4: a norm on each side of attention and MLP, half of each head turned by pairs, gate and up in one product.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_glm4(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Glm4",
                                 {.vocab = 151552,
                                  .hidden = 4096,
                                  .ffn = 13696,
                                  .layers = 40,
                                  .heads = 32,
                                  .kv_heads = 2,
                                  .head_dim = 128,
                                  .positions = 131072});
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

}  // namespace dsplan
