// olmo2 and olmo3: norms behind attention and MLP only, and over all heads of queries and keys together; positions stay
// in fp32. olmo3 has windows in three layers of four, with tables by kind of layer.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_olmo(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_decoder(config, prefix, {.vocab = 50304, .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.norms = {"post_attention_layernorm", "post_feedforward_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.norm = NormKind::RmsWide;
  parts.views_behind = true;
  parts.head_norm = HeadNorm::Whole;
  parts.rotary.wide_tables = true;
  parts.before_attention = parts.before_mlp = {};
  parts.after_attention = "post_attention_layernorm";
  parts.after_mlp = "post_feedforward_layernorm";
  return decoder;
}

}  // namespace

ModelSpec build_olmo2(ConfigReader& config) { return finish_decoder(config, read_olmo(config, "Olmo2")); }

ModelSpec build_olmo3(ConfigReader& config) {
  Decoder decoder = read_olmo(config, "Olmo3");
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  decoder.parts.tables_by_kind = decoder.parts.both_masks = true;
  decoder.parts.kinds = read_layer_kinds(config, decoder.dims.layers, [](std::int64_t layer) {
    return (layer + 1) % 4 != 0 ? LayerKind::Sliding : LayerKind::Full;
  });
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
