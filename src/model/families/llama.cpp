// llama (1 to 3.3), mistral, mixtral, qwen2, qwen3 and their mixtures of experts, arcee, ministral, ministral3 and cwm:
// each is a Decoder with its own defaults and its own choice of biases, norms and windows.
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

// qwen: the window applies only where use_sliding_window says so, to the layers that `slides` names by
// max_window_layers where the file does not.
using SlidingLayer = bool (*)(std::int64_t layer, std::int64_t bound);
void read_qwen_window(ConfigReader& config, Decoder& decoder, SlidingLayer slides) {
  const bool used = config.flag("use_sliding_window", false);
  // Where none is used, the classes of transformers 5 write null or 0 in the place of what the file had.
  if (!used) (void)config.find("sliding_window");
  const std::int64_t window = used ? config.maybe_size("sliding_window", 4096).value_or(0) : 0;
  const std::int64_t bound = config.count("max_window_layers", 28);
  decoder.dims.sliding_window = used ? window : 0;
  std::vector<LayerKind>& kinds = decoder.parts.kinds;
  kinds = read_layer_kinds(config, decoder.dims.layers, [&](std::int64_t layer) {
    return used && window > 0 && slides(layer, bound) ? LayerKind::Sliding : LayerKind::Full;
  });
  if (decoder.dims.sliding_window > 0) return;
  if (decoder.parts.some_slide()) {
    config.gaps.push_back(
        {config.find("layer_types"), "layer_types", "a window over layers, which the model has not,"});
  }
  if (!decoder.parts.both_masks) kinds.clear();
}

bool from_bound(std::int64_t layer, std::int64_t bound) { return layer >= bound; }
bool every_second_to_bound(std::int64_t layer, std::int64_t bound) { return layer % 2 == 0 && layer < bound; }

// Of the qwen families with experts; `shared` is the size of the expert that sees every token.
void read_qwen_experts(ConfigReader& config, Decoder& decoder, std::int64_t ffn, std::int64_t shared) {
  ExpertParts& parts = decoder.parts.experts;
  parts.router = Router::Softmax;
  parts.normalised = config.flag("norm_topk_prob", false);
  parts.ffn = config.size("moe_intermediate_size", ffn);
  if (shared > 0) parts.shared_ffn = config.size("shared_expert_intermediate_size", shared);
}

// layer_types of models that make both masks whatever they say, for which they need a window.
void read_both_kinds(ConfigReader& config, Decoder& decoder, std::int64_t window,
                     const std::function<LayerKind(std::int64_t)>& fallback) {
  config.refuse_null("sliding_window", "an integer");
  decoder.dims.sliding_window = config.size("sliding_window", window);
  decoder.parts.both_masks = true;
  decoder.parts.kinds = read_layer_kinds(config, decoder.dims.layers, fallback);
}

}  // namespace

ModelSpec build_llama(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Llama", {.kv_heads_may_be_null = true, .head_dim_may_be_null = true});
  if (config.find("head_dim") != nullptr) {
    // LlamaConfig insists on it even where head_dim makes it pointless.
    config.require_divides("num_attention_heads", decoder.dims.heads, "hidden_size", decoder.dims.hidden);
  }
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_mistral(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Mistral", {.ffn = 14336, .kv_heads = 8, .positions = 131072, .head_dim_may_be_null = true});
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_ministral(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Ministral",
                                 {.ffn = 14336, .kv_heads = 8, .positions = 131072, .head_dim_may_be_null = true});
  if (config.find("head_dim") == nullptr)
    config.fault("head_dim", "\"head_dim\" is missing, which this class reads as it is");
  read_both_kinds(config, decoder, 4096, [](std::int64_t) { return LayerKind::Sliding; });
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

// Mistral whose queries grow with the logarithm of how far they are on.
ModelSpec build_ministral3(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Ministral3",
                   {.vocab = 131072, .ffn = 14336, .layers = 34, .kv_heads = 8, .head_dim = 128, .positions = 262144});
  decoder.dims.sliding_window = config.maybe_size("sliding_window", std::nullopt).value_or(0);
  decoder.parts.tempered_behind = true;
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

// Every fourth layer sees all.
ModelSpec build_cwm(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Cwm",
                                 {.vocab = 128256,
                                  .hidden = 6144,
                                  .ffn = 21504,
                                  .layers = 64,
                                  .heads = 48,
                                  .kv_heads = 8,
                                  .head_dim = 128,
                                  .positions = 131072});
  decoder.mlp_bias = config.flag("mlp_bias", false);
  read_both_kinds(config, decoder, 8192,
                  [](std::int64_t layer) { return layer % 4 == 0 ? LayerKind::Full : LayerKind::Sliding; });
  return finish_decoder(config, decoder);
}

// Llama with a plain MLP.
ModelSpec build_arcee(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Arcee",
                                 {.hidden = 2560,
                                  .ffn = 18432,
                                  .positions = 4096,
                                  .activation = "relu2",
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  decoder.parts.mlp = MlpKind::Plain;
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

// Llama with dropout at the end of attention and MLP.
ModelSpec build_seed_oss(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "SeedOss",
                                 {.vocab = 155136,
                                  .hidden = 4096,
                                  .ffn = 27648,
                                  .layers = 64,
                                  .heads = 80,
                                  .kv_heads = 8,
                                  .head_dim = 128,
                                  .positions = 524288,
                                  .kv_heads_may_be_null = true,
                                  .head_dim_may_be_null = true});
  decoder.qkv_bias = config.flag("attention_bias", true);
  decoder.output_bias = config.flag("attention_out_bias", false);
  decoder.mlp_bias = config.flag("mlp_bias", false);
  decoder.dims.attention_dropout = config.probability("attention_dropout", 0.1);
  decoder.dims.residual_dropout = config.probability("residual_dropout", 0.1);
  decoder.parts.inner_dropout = true;
  read_head(config, decoder, 1);
  return finish_decoder(config, decoder);
}

ModelSpec build_mixtral(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Mixtral", {.ffn = 14336, .kv_heads = 8, .positions = 131072, .head_dim_may_be_null = true});
  decoder.dims.sliding_window = config.maybe_size("sliding_window").value_or(0);
  decoder.experts = {.count = config.size("num_local_experts", 8, "num_experts"),
                     .per_token = config.size("num_experts_per_tok", 2),
                     .router_first = true,
                     .router_class = "MixtralTopKRouter",
                     .dense = {}};
  decoder.parts.experts.ffn = decoder.dims.ffn;
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_local_experts", decoder.experts.count);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_qwen2(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Qwen2",
                   {.vocab = 151936, .ffn = 22016, .kv_heads = 32, .positions = 32768, .kv_heads_may_be_null = true});
  decoder.qkv_bias = true;
  read_qwen_window(config, decoder, from_bound);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_qwen2_moe(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "Qwen2Moe",
      {.vocab = 151936, .hidden = 2048, .ffn = 5632, .layers = 24, .heads = 16, .kv_heads = 16, .positions = 32768});
  decoder.qkv_bias = config.flag("qkv_bias", true);
  decoder.parts.both_masks = true;
  read_qwen_window(config, decoder, every_second_to_bound);
  decoder.parts.empty_window = decoder.dims.sliding_window == 0;
  read_qwen_experts(config, decoder, 1408, 5632);
  const std::int64_t experts = config.count("num_experts", 60);
  decoder.experts = {.count = experts,
                     .per_token = config.size("num_experts_per_tok", 4),
                     .router_first = true,
                     .router_class = "Qwen2MoeTopKRouter",
                     .dense = read_dense_layers(config, decoder.dims.layers, experts)};
  if (experts > 0) config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", experts);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_qwen3(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Qwen3",
                                 {.vocab = 151936,
                                  .ffn = 22016,
                                  .kv_heads = 32,
                                  .head_dim = 128,
                                  .positions = 32768,
                                  .kv_heads_may_be_null = true});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::ByToken;
  read_qwen_window(config, decoder, from_bound);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

ModelSpec build_qwen3_moe(ConfigReader& config) {
  Decoder decoder =
      read_decoder(config, "Qwen3Moe",
                   {.vocab = 151936, .hidden = 2048, .ffn = 6144, .layers = 24, .kv_heads = 4, .positions = 32768});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::ByToken;
  if (config.flag("use_sliding_window", false)) {
    decoder.dims.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  }
  read_qwen_experts(config, decoder, 768, 0);
  const std::int64_t experts = config.count("num_experts", 128, "num_local_experts");
  decoder.experts = {.count = experts,
                     .per_token = config.size("num_experts_per_tok", 8),
                     .router_first = false,
                     .router_class = "Qwen3MoeTopKRouter",
                     .dense = read_dense_layers(config, decoder.dims.layers, experts)};
  if (experts > 0) config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", experts);
  read_head(config, decoder);
  return finish_decoder(config, decoder);
}

// qwen3's attention and experts; windows and tables of rotary positions by kind of layer.
ModelSpec build_mellum(ConfigReader& config) {
  Decoder decoder = read_decoder(
      config, "Mellum",
      {.vocab = 98304, .hidden = 2304, .ffn = 7168, .layers = 28, .kv_heads = 4, .head_dim = 128, .positions = 131072});
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  DecoderParts& parts = decoder.parts;
  parts.head_norm = HeadNorm::ByToken;
  parts.tables_by_kind = true;
  decoder.dims.sliding_window = config.maybe_size("sliding_window", 1024).value_or(0);
  parts.kinds = read_layer_kinds(config, decoder.dims.layers, [](std::int64_t) { return LayerKind::Full; });
  if (!parts.some_see_all()) parts.kinds.clear();  // Then the others' mask and tables are not made.
  parts.experts.router = Router::Softmax;
  parts.experts.normalised = config.flag("norm_topk_prob", true);
  parts.experts.ffn = config.size("moe_intermediate_size", 896);
  decoder.experts = {.count = config.size("num_experts", 64, "num_local_experts"),
                     .per_token = config.size("num_experts_per_tok", 8),
                     .router_first = false,
                     .router_class = "MellumTopKRouter",
                     .dense = read_mlp_types(config, decoder.dims.layers, 0, {})};
  config.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", decoder.experts.count);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
