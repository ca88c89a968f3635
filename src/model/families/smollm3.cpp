// smollm3: Llama's shape; every fourth layer has no rotary positions, and may have a window.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

ModelSpec build_smollm3(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "SmolLM3",
                                 {.vocab = 128256,
                                  .hidden = 2048,
                                  .layers = 36,
                                  .heads = 16,
                                  .kv_heads = 4,
                                  .positions = 32768,
                                  .tied = true,
                                  .kv_heads_may_be_null = true});
  Dimensions& d = decoder.dims;
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  const std::int64_t interval = config.size("no_rope_layer_interval", 4);
  decoder.parts.turned = read_layer_flags(config, "no_rope_layers", d.layers,
                                          [&](std::int64_t layer) { return (layer + 1) % interval != 0; });
  const bool used = config.flag("use_sliding_window", false);
  d.sliding_window = config.maybe_size("sliding_window").value_or(0);
  const bool slides = used && d.sliding_window > 0;
  decoder.parts.kinds = read_layer_kinds(config, d.layers, [&](std::int64_t layer) {
    return slides && !decoder.parts.turns(static_cast<std::size_t>(layer)) ? LayerKind::Sliding : LayerKind::Full;
  });
  read_head(config, decoder, 128004);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
