// cohere and cohere2: attention and MLP side by side behind one norm, which is composed of operators; pairs of each
// head turn in fp32; the logits are scaled. cohere2 has windows, and positions in the layers with windows only.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_cohere(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_decoder(config, prefix,
                                 {.vocab = 256000,
                                  .hidden = 8192,
                                  .ffn = 22528,
                                  .layers = 40,
                                  .heads = 64,
                                  .positions = 8192,
                                  .epsilon_key = "layer_norm_eps",
                                  .tied = true,
                                  .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.norms = {"input_layernorm"};
  decoder.norm_class = "LayerNorm";
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::Centred;
  parts.residual = Residual::ParallelResidual;
  parts.rotary.pairs = parts.rotary.paired_tables = parts.rotary.wide_operands = true;
  parts.logits_multiplier = config.maybe_number("logit_scale", 0.0625).value_or(0.0625);
  return decoder;
}

}  // namespace

ModelSpec build_cohere(ConfigReader& config) {
  Decoder decoder = read_cohere(config, "Cohere");
  if (config.flag("use_qk_norm", false)) decoder.parts.head_norm = HeadNorm::BehindByToken;
  return finish_decoder(config, decoder);
}

ModelSpec build_cohere2(ConfigReader& config) {
  Decoder decoder = read_cohere(config, "Cohere2");
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  const std::int64_t pattern = config.size("sliding_window_pattern", 4);
  DecoderParts& parts = decoder.parts;
  parts.both_masks = true;
  parts.kinds = read_layer_kinds(config, decoder.dims.layers, [&](std::int64_t layer) {
    return (layer + 1) % pattern != 0 ? LayerKind::Sliding : LayerKind::Full;
  });
  for (const LayerKind kind : parts.kinds) {
    parts.turned.push_back(kind == LayerKind::Sliding && decoder.dims.sliding_window > 0);
  }
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
