// olmo, olmoe, olmo2, olmo3 and flex_olmo, which is olmo2 with experts. The last three: norms behind attention and MLP
// only, and over all heads of queries and keys together; positions stay in fp32. olmo3 has windows in three layers of
// four, with tables by kind of layer.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_olmo(ConfigReader& config, std::string_view prefix,
                  const DecoderDefaults& usual = {.vocab = 50304, .kv_heads_may_be_null = true}) {
  Decoder decoder = read_decoder(config, prefix, usual);
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

void read_olmo_experts(ConfigReader& config, Decoder& decoder, std::int64_t count, std::int64_t per_token) {
  ExpertParts& parts = decoder.parts.experts;
  parts.router = Router::Softmax;
  parts.normalised = config.flag("norm_topk_prob", false);
  parts.ffn = decoder.dims.ffn;
  decoder.experts.count = config.size("num_experts", count, "num_local_experts");
  decoder.experts.per_token = config.size("num_experts_per_tok", per_token);
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", decoder.experts.count);
}

void judge_clipping(ConfigReader& config) {
  const Value* clip = config.find("clip_qkv");
  if (clip != nullptr) config.gaps.push_back({clip, "clip_qkv", "queries, keys and values clamped in place"});
}

}  // namespace

// The first: Llama's shape with norms that have no weights.
ModelSpec build_olmo(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Olmo", {.vocab = 50304, .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.norm_class = "LayerNorm";
  decoder.parts.norm = NormKind::LayerBare;
  decoder.parts.views_behind = true;
  decoder.parts.rotary.wide_tables = true;
  decoder.dims.norm_epsilon = 1e-5;
  judge_clipping(config);
  read_head(config, decoder, 1);
  return finish_decoder(config, decoder);
}

ModelSpec build_olmoe(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Olmoe",
                                 {.vocab = 50304,
                                  .hidden = 2048,
                                  .ffn = 2048,
                                  .layers = 16,
                                  .heads = 16,
                                  .positions = 4096,
                                  .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.views_behind = true;
  decoder.parts.head_norm = HeadNorm::Whole;
  read_olmo_experts(config, decoder, 64, 8);
  decoder.experts.router_class = "OlmoeTopKRouter";
  judge_clipping(config);
  return finish_decoder(config, decoder);
}

ModelSpec build_flex_olmo(ConfigReader& config) {
  Decoder decoder = read_olmo(config, "FlexOlmo", {.vocab = 100352, .positions = 4096, .kv_heads_may_be_null = true});
  read_olmo_experts(config, decoder, 7, 5);
  decoder.experts.router_class = "FlexOlmoTopKRouter";
  return finish_decoder(config, decoder);
}

ModelSpec build_olmo2(ConfigReader& config) {
  Decoder decoder = read_olmo(config, "Olmo2");
  read_head(config, decoder, 1);
  return finish_decoder(config, decoder);
}

ModelSpec build_olmo3(ConfigReader& config) {
  Decoder decoder = read_olmo(config, "Olmo3");
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  decoder.parts.tables_by_kind = decoder.parts.both_masks = true;
  decoder.parts.kinds = read_layer_kinds(config, decoder.dims.layers, [](std::int64_t layer) {
    return (layer + 1) % 4 != 0 ? LayerKind::Sliding : LayerKind::Full;
  });
  read_head(config, decoder, 1);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
