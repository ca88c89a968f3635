// cohere and cohere2: attention and MLP side by side behind one norm, which is composed of operators; pairs of each
// head turn in fp32; the logits are scaled. cohere2 has windows, and positions in the layers with windows only.
// cohere2_moe: the same with experts behind the first layers, each of whose weights is of the largest logits alone.
#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

Decoder read_cohere(ConfigReader& config, std::string_view prefix, std::int64_t head_dim = 0) {
  Decoder decoder = read_decoder(config, prefix,
                                 {.vocab = 256000,
                                  .hidden = 8192,
                                  .ffn = 22528,
                                  .layers = 40,
                                  .heads = 64,
                                  .head_dim = head_dim,
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

namespace {

// Windows in all layers but every so many'th. `first`: so many layers, with a pattern of their own.
void read_windows(ConfigReader& config, Decoder& decoder, std::int64_t first, std::int64_t first_pattern) {
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  const std::int64_t pattern = config.size("sliding_window_pattern", 4);
  decoder.parts.both_masks = true;
  decoder.parts.kinds = read_layer_kinds(config, decoder.dims.layers, [&](std::int64_t layer) {
    const bool full = layer < first ? (layer + 1) % first_pattern == 0 : (layer - first + 1) % pattern == 0;
    return full ? LayerKind::Full : LayerKind::Sliding;
  });
}

}  // namespace

ModelSpec build_cohere2(ConfigReader& config) {
  Decoder decoder = read_cohere(config, "Cohere2");
  read_windows(config, decoder, 0, 1);
  DecoderParts& parts = decoder.parts;
  for (const LayerKind kind : parts.kinds) {
    parts.turned.push_back(kind == LayerKind::Sliding && decoder.dims.sliding_window > 0);
  }
  return finish_decoder(config, decoder);
}

namespace {

void read_cohere_mixture(ConfigReader& config, Decoder& decoder) {
  ExpertParts& experts = decoder.parts.experts;
  const std::string way = config.maybe_string("expert_selection_fn").value_or("softmax");
  if (way != "softmax" && way != "sigmoid") {
    config.fault("expert_selection_fn", formatted("\"{}\" is no way to choose experts that the class knows", way),
                 "it is softmax or sigmoid");
  }
  experts.router = way == "sigmoid" ? Router::TopSigmoid : Router::TopSoftmax;
  experts.normalised = config.flag("norm_topk_prob", true);
  experts.ffn = decoder.dims.ffn;
  experts.shared = SharedPlace::RowsBehind;
  experts.shared_module = "shared_experts";
  experts.shared_ffn = config.times(experts.ffn, config.count("num_shared_experts", 0));
  const std::string joined = config.maybe_string("shared_expert_combination_strategy").value_or("average");
  if (joined != "average" && joined != "sum") {
    config.fault("shared_expert_combination_strategy", formatted("\"{}\" is no way that the class knows", joined),
                 "it is average or sum");
  }
  experts.averaged = joined == "average";
  decoder.experts.count = config.size("num_experts", 8);
  decoder.experts.per_token = config.size("num_experts_per_tok", 2);
  decoder.experts.router_class = "Cohere2MoeTopKRouter";
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", decoder.experts.count);
  decoder.dims.ffn = config.maybe_size("prefix_dense_intermediate_size").value_or(decoder.dims.ffn);
}

}  // namespace

ModelSpec build_cohere2_moe(ConfigReader& config) {
  Decoder decoder = read_cohere(config, "Cohere2Moe", 128);
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  if (const std::optional<double> epsilon = config.maybe_number("rms_norm_eps")) {
    d.norm_epsilon = *epsilon;
    decoder.norm_class = "RMSNorm";
    parts.norm = NormKind::Rms;
  }
  read_cohere_mixture(config, decoder);
  const std::int64_t first = config.count("first_k_dense_replace", 0);
  const std::int64_t pattern = config.size("prefix_dense_sliding_window_pattern", 1);
  read_windows(config, decoder, first, pattern);
  decoder.experts.dense = read_mlp_types(config, d.layers, first);
  for (std::size_t i = 0; i < parts.kinds.size(); ++i) {
    const bool slides = parts.kinds[i] == LayerKind::Sliding && d.sliding_window > 0;
    parts.turned.push_back(slides || (decoder.experts.dense[i] && pattern == 1));
  }
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
