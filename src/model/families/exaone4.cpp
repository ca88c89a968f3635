// exaone4: norms behind attention and MLP only, and over each head of queries and keys; windows in three layers of
// four, and positions in those only.
#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {

namespace {

// Every how many layers one sees all. Published files say "LLLG" beside layer_types, which is what counts then; alone
// transformers divides by the word.
std::int64_t read_pattern(ConfigReader& config) {
  constexpr const char* kKey = "sliding_window_pattern";
  const Value* const said = config.find(kKey);
  if (said == nullptr || !said->is(Value::Kind::String)) return config.size(kKey, 4);
  if (config.find("layer_types") == nullptr) {
    config.fault(kKey,
                 formatted("\"{}\" is a word without \"layer_types\", which transformers itself cannot take", kKey),
                 "say layer_types, or a number");
  }
  return 1;
}

}  // namespace

ModelSpec build_exaone4(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Exaone4", {.vocab = 102400, .ffn = 16384, .kv_heads = 32});
  Dimensions& d = decoder.dims;
  d.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  const std::int64_t pattern = d.sliding_window > 0 ? read_pattern(config) : 1;
  decoder.norms = {"post_attention_layernorm", "post_feedforward_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.head_norm = HeadNorm::ByHead;
  parts.before_attention = parts.before_mlp = {};
  parts.after_attention = "post_attention_layernorm";
  parts.after_mlp = "post_feedforward_layernorm";
  parts.kinds = read_layer_kinds(config, d.layers, [&](std::int64_t layer) {
    return (layer + 1) % pattern != 0 ? LayerKind::Sliding : LayerKind::Full;
  });
  for (const LayerKind kind : parts.kinds) {
    parts.turned.push_back(d.sliding_window == 0 || kind == LayerKind::Sliding);
  }
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
