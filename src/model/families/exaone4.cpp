// exaone4: norms behind attention and MLP only, and over each head of queries and keys; windows in three layers of
// four, and positions in those only. exaone_moe: norms before them, and deepseek_v3's experts.
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

Decoder read_exaone(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_decoder(config, prefix, {.vocab = 102400, .ffn = 16384, .kv_heads = 32});
  Dimensions& d = decoder.dims;
  d.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  const std::int64_t pattern = d.sliding_window > 0 ? read_pattern(config) : 1;
  DecoderParts& parts = decoder.parts;
  parts.head_norm = HeadNorm::ByHead;
  parts.kinds = read_layer_kinds(config, d.layers, [&](std::int64_t layer) {
    return (layer + 1) % pattern != 0 ? LayerKind::Sliding : LayerKind::Full;
  });
  for (const LayerKind kind : parts.kinds) {
    parts.turned.push_back(d.sliding_window == 0 || kind == LayerKind::Sliding);
  }
  return decoder;
}

}  // namespace

ModelSpec build_exaone4(ConfigReader& config) {
  Decoder decoder = read_exaone(config, "Exaone4");
  decoder.norms = {"post_attention_layernorm", "post_feedforward_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.before_attention = parts.before_mlp = {};
  parts.after_attention = "post_attention_layernorm";
  parts.after_mlp = "post_feedforward_layernorm";
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_exaone_moe(ConfigReader& config) {
  Decoder decoder = read_exaone(config, "ExaoneMoe");
  read_routed_experts(
      config, decoder,
      {.ffn = 1024, .scale = 2.5, .count = 64, .key = "num_experts", .alias = {}, .shared_key = "num_shared_experts"});
  decoder.experts.router_class = "ExaoneMoeTopkRouter";
  decoder.experts.block_class = "SparseMoEBlock";
  decoder.experts.dense = read_mlp_types(config, decoder.dims.layers, 1);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
