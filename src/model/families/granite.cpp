// granite: Llama's shape with factors on the embedding, on what joins the residual stream, and on the logits;
// granitemoe: the same with experts; granitemoeshared: and an MLP beside them; hyperclovax: granite with norms behind
// attention and MLP as well; granite_swa and granitemoe_swa: windows, and attention that a learned score scales.
#include <algorithm>
#include <utility>

#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_granite(ConfigReader& config, std::string_view prefix,
                     const DecoderDefaults& defaults = {.kv_heads_may_be_null = true}) {
  Decoder decoder = read_decoder(config, prefix, defaults);
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.embedding_multiplier = config.maybe_number("embedding_multiplier", 1).value_or(1);
  decoder.parts.residual_multiplier = config.maybe_number("residual_multiplier", 1).value_or(1);
  decoder.parts.attention_scale = config.maybe_number("attention_multiplier", 1).value_or(1);
  decoder.parts.logits_divisor = config.maybe_number("logits_scaling", 1).value_or(1);
  return decoder;
}

Decoder read_granitemoe(ConfigReader& config, std::string_view prefix, std::string_view router) {
  Decoder decoder = read_granite(config, prefix);
  decoder.norms_before_mlp = true;
  decoder.parts.multiplies_late = true;
  ExpertParts& experts = decoder.parts.experts;
  experts.router = Router::LateSoftmax;
  experts.logits_last = true;
  experts.block = "block_sparse_moe";
  experts.gate = "router";
  experts.ffn = decoder.dims.ffn;
  decoder.experts.count = config.size("num_local_experts", 8);
  decoder.experts.per_token = config.size("num_experts_per_tok", 2);
  decoder.experts.router_class = router;
  decoder.experts.block_class = "MoE";
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_local_experts", decoder.experts.count);
  return decoder;
}

}  // namespace

ModelSpec build_granite(ConfigReader& config) {
  Decoder decoder = read_granite(config, "Granite");
  decoder.mlp_bias = config.flag("mlp_bias", false);
  return finish_decoder(config, decoder);
}

ModelSpec build_hyperclovax(ConfigReader& config) {
  Decoder decoder = read_granite(config, "HyperCLOVAX");
  decoder.mlp_bias = config.flag("mlp_bias", false);
  DecoderParts& parts = decoder.parts;
  parts.attention_scale = config.maybe_number("attention_multiplier").value_or(0);
  parts.logits_multiplier = std::exchange(parts.logits_divisor, 0);
  decoder.idle_post_norms = !config.flag("use_post_norm", true);
  decoder.norms.insert(decoder.norms.end(), {"post_norm1", "post_norm2"});
  parts.after_attention = "post_norm1";
  parts.after_mlp = "post_norm2";
  return finish_decoder(config, decoder);
}

ModelSpec build_granitemoe(ConfigReader& config) {
  return finish_decoder(config, read_granitemoe(config, "GraniteMoe", "GraniteMoeTopKRouter"));
}

namespace {

void read_own_shared(ConfigReader& config, DecoderParts& parts) {
  parts.experts.shared_ffn = config.count("shared_intermediate_size", 0);
  give_shared_mlp(parts);
  parts.own_shared = parts.experts.shared_ffn > 0;
}

// Of each layer the base of its rotary positions, 0 for none; one module has the tables of each base, in order.
void read_bases(ConfigReader& config, Decoder& decoder) {
  constexpr std::string_view kKey = "layer_rope_theta";
  DecoderParts& parts = decoder.parts;
  const auto layers = static_cast<std::size_t>(decoder.dims.layers);
  const Value* const said = config.find(kKey);
  std::vector<double> bases(layers, decoder.dims.rotary_base);
  if (said != nullptr && !said->is(Value::Kind::Null)) {
    if (said->items.size() != layers) {
      return config.fault(*said, formatted("\"{}\" must be an array of {} numbers, one per layer", kKey, layers));
    }
    for (std::size_t i = 0; i < layers; ++i) bases[i] = said->items[i].real;
  }
  std::vector<double> apart = bases;
  std::sort(apart.begin(), apart.end());
  apart.erase(std::unique(apart.begin(), apart.end()), apart.end());
  std::erase(apart, 0.0);
  for (const double base : bases) {
    parts.turned.push_back(base != 0);
    parts.tables.push_back(base == 0 ? kNone : std::lower_bound(apart.begin(), apart.end(), base) - apart.begin());
  }
}

// Windows in three layers of four, and a learned score of each head that scales what its attention gives.
void read_swa(ConfigReader& config, Decoder& decoder) {
  DecoderParts& parts = decoder.parts;
  parts.sinks_scale = parts.both_masks = true;
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 128).value_or(0);
  parts.kinds = read_layer_kinds(config, decoder.dims.layers, [](std::int64_t layer) {
    return layer % 4 == 0 ? LayerKind::Full : LayerKind::Sliding;
  });
  read_bases(config, decoder);
}

}  // namespace

ModelSpec build_granitemoeshared(ConfigReader& config) {
  Decoder decoder = read_granitemoe(config, "GraniteMoeShared", "GraniteMoeSharedTopKRouter");
  read_own_shared(config, decoder.parts);
  return finish_decoder(config, decoder);
}

ModelSpec build_granite_swa(ConfigReader& config) {
  Decoder decoder = read_granite(config, "GraniteSWA",
                                 {.vocab = 100352,
                                  .hidden = 2560,
                                  .ffn = 8192,
                                  .layers = 24,
                                  .heads = 20,
                                  .kv_heads = 4,
                                  .positions = 8192,
                                  .tied = true,
                                  .kv_heads_may_be_null = true});
  decoder.mlp_bias = config.flag("mlp_bias", false);
  read_swa(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_granitemoe_swa(ConfigReader& config) {
  Decoder decoder = read_granitemoe(config, "GraniteMoeSWA", "GraniteMoeSWATopKRouter");
  decoder.parts.multiplies_late = decoder.parts.experts.logits_last = false;
  read_own_shared(config, decoder.parts);
  read_swa(config, decoder);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
