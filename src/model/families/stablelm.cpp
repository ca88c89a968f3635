// stablelm: LayerNorms, a quarter of each head turned, attention and MLP one behind the other or side by side.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_stablelm(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "StableLm",
                                 {.vocab = 50304,
                                  .hidden = 2560,
                                  .ffn = 6912,
                                  .kv_heads = 32,
                                  .positions = 4096,
                                  .epsilon_key = "layer_norm_eps"});
  decoder.dims.rotary_fraction = config.rotary_share("partial_rotary_factor", 0.25);
  decoder.dims.residual_dropout = config.probability("hidden_dropout", 0);
  decoder.qkv_bias = config.flag("use_qkv_bias", false);
  if (config.flag("qk_layernorm", false)) {
    config.fault("qk_layernorm", "\"qk_layernorm\" is not modelled: a norm of its own for each head", "false");
  }
  const bool parallel = config.flag("use_parallel_residual", false);
  if (parallel) decoder.norms = {"input_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::Layer;
  parts.views_behind = true;
  parts.residual = parallel ? Residual::ParallelResidual : Residual::SerialHeld;
  parts.rotary.part = RotaryPart::Held;
  parts.mlp_dropout = "dropout";
  parts.rebinds_dropout = true;
  read_head(config, decoder);
  // Where a head over tokens is told none of its own, it has the layers' dropout (modeling_layers.py).
  if (parts.head == TextHead::Token && !config.maybe_number("classifier_dropout")) {
    decoder.dims.classifier_dropout = decoder.dims.residual_dropout;
  }
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
