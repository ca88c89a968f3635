// granite: Llama's shape with factors on the embedding, on what joins the residual stream, and on the logits;
// granitemoe: the same with experts; granitemoeshared: and an MLP beside them; hyperclovax: granite with norms behind
// attention and MLP as well.
#include <utility>

#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_granite(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_decoder(config, prefix, {.kv_heads_may_be_null = true});
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

ModelSpec build_granitemoeshared(ConfigReader& config) {
  Decoder decoder = read_granitemoe(config, "GraniteMoeShared", "GraniteMoeSharedTopKRouter");
  DecoderParts& parts = decoder.parts;
  parts.experts.shared_ffn = config.count("shared_intermediate_size", 0);
  give_shared_mlp(parts);
  parts.own_shared = parts.experts.shared_ffn > 0;
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
