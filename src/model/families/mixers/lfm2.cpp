// lfm2: Llama's shape, of which most layers have a short convolution in the place of attention. lfm2_moe: all layers
// but the first have experts.
#include "core/format.h"
#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

// Two thirds of the width, rounded up to whole blocks.
std::int64_t adjusted_width(ConfigReader& config, std::int64_t ffn) {
  const std::int64_t block = config.size("block_multiple_of", 256);
  const double factor = config.maybe_number("block_ffn_dim_multiplier", 1).value_or(1);
  if (!config.flag("block_auto_adjust_ff_dim", true)) return ffn;
  const auto part = static_cast<std::int64_t>(factor * static_cast<double>(config.times(2, ffn) / 3));
  if (part < 1) config.fault("block_ffn_dim_multiplier", "a feed-forward of no width");
  return config.times(block, div_ceil(part, block));
}

void read_lfm2_experts(ConfigReader& config, Decoder& decoder) {
  Dimensions& d = decoder.dims;
  ExpertParts& experts = decoder.parts.experts;
  d.experts = decoder.experts.count = config.size("num_experts", 32);
  d.experts_per_token = config.size("num_experts_per_tok", 4);
  config.require_at_most("num_experts_per_tok", d.experts_per_token, "num_experts", d.experts);
  experts.ffn = config.size("moe_intermediate_size", 1792);
  experts.block = "feed_forward";
  experts.router = Router::NarrowSigmoid;
  experts.corrected = config.flag("use_expert_bias", true);
  experts.normalised = config.flag("norm_topk_prob", true);
  experts.scale = config.maybe_number("routed_scaling_factor", 1).value_or(1);
  decoder.experts.dense = read_first_dense(config, d.layers, 2, "num_dense_layers");
  decoder.parts.rotary_module = "pos_emb";
}

Decoder read_lfm2(ConfigReader& config, bool experts) {
  Decoder decoder = read_decoder(config, experts ? "Lfm2Moe" : "Lfm2",
                                 {.vocab = 65536,
                                  .hidden = experts ? 2048 : 2560,
                                  .ffn = experts ? 7168 : 12288,
                                  .kv_heads = 8,
                                  .positions = 128000,
                                  .epsilon_key = "norm_eps",
                                  .tied = true});
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  decoder.tied = config.flag("tie_embedding", decoder.tied);
  if (experts) {
    read_lfm2_experts(config, decoder);
  } else {
    d.ffn = adjusted_width(config, config.size("block_ff_dim", d.ffn));
  }
  d.attention_dropout = 0;
  parts.convolution.kernel = config.size("conv_L_cache", 3);
  parts.convolution.biases = config.flag("conv_bias", false);
  parts.head_norm = HeadNorm::ByToken;
  parts.query_norm = "q_layernorm";
  parts.key_norm = "k_layernorm";
  parts.output = "out_proj";
  parts.before_attention = "operator_norm";
  parts.before_mlp = "ffn_norm";
  parts.final_norm = "embedding_norm";
  parts.feed_forward = "feed_forward";
  parts.gate = "w1";
  parts.up = "w3";
  parts.down = "w2";
  parts.activation = "";
  const bool listed = !experts && config.find("full_attn_idxs") != nullptr;
  parts.recurrent.assign(static_cast<std::size_t>(d.layers), listed);
  for (const std::int64_t i : listed ? config.indices("full_attn_idxs", d.layers) : std::vector<std::int64_t>{}) {
    parts.recurrent[static_cast<std::size_t>(i)] = false;
  }
  if (experts && config.find("layer_types") == nullptr) {
    config.fault(config.root(), "\"layer_types\" is missing, and the class has no default for it");
  }
  const std::vector<bool> named = parts.recurrent;
  const std::vector<LayerKind> kinds = read_layer_kinds(
      config, d.layers,
      [&](std::int64_t i) { return named[static_cast<std::size_t>(i)] ? LayerKind::Sliding : LayerKind::Full; },
      "conv");
  for (std::size_t i = 0; i < kinds.size(); ++i) parts.recurrent[i] = kinds[i] == LayerKind::Sliding;
  return decoder;
}

void register_mixing(ModelBuilder& b, const Decoder& decoder, bool recurs) {
  const Dimensions& d = decoder.dims;
  if (recurs) {
    const ConvolutionParts& p = decoder.parts.convolution;
    const auto mixer = b.module(p.module, formatted("{}ShortConv", decoder.prefix));
    {
      const auto convolution = b.module("conv", "Conv1d");
      b.parameter("weight", {d.hidden, 1, p.kernel}, Split::Unknown);
      if (p.biases) b.parameter("bias", {d.hidden}, Split::Unknown);
    }
    b.linear("in_proj", b.times(3, d.hidden), d.hidden, p.biases, Cut::Unknown);
    b.linear("out_proj", d.hidden, d.hidden, p.biases, Cut::Unknown);
    return;
  }
  const auto attention = b.module("self_attn", formatted("{}Attention", decoder.prefix));
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, false, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("out_proj", d.hidden, query, false, Cut::Unknown);
  const std::string norm = formatted("{}RMSNorm", decoder.prefix);
  b.rms_norm("q_layernorm", d.head_dim, norm);
  b.rms_norm("k_layernorm", d.head_dim, norm);
}

void register_lfm2_experts(ModelBuilder& b, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const ExpertParts& parts = decoder.parts.experts;
  const auto block = b.module("feed_forward", "Lfm2MoeSparseMoeBlock");
  if (parts.corrected) b.buffer("expert_bias", {d.experts}, DType::Float32, false);
  {
    const auto experts = b.module("experts", "Lfm2MoeExperts");
    b.parameter("gate_up_proj", {d.experts, b.times(2, parts.ffn), d.hidden}, Split::Unknown);
    b.parameter("down_proj", {d.experts, d.hidden, parts.ffn}, Split::Unknown);
  }
  const auto gate = b.module("gate", "Lfm2MoeTopKRouter");
  b.parameter("weight", {d.experts, d.hidden}, Split::Unknown);
}

void register_lfm2_layer(ModelBuilder& b, const Decoder& decoder, bool recurs, bool mixes) {
  const Dimensions& d = decoder.dims;
  register_mixing(b, decoder, recurs);
  if (mixes) {
    register_lfm2_experts(b, decoder);
  } else {
    const auto mlp = b.module("feed_forward", formatted("{}MLP", decoder.prefix));
    b.linear("w1", d.ffn, d.hidden, false, Cut::Unknown);
    b.linear("w3", d.ffn, d.hidden, false, Cut::Unknown);
    b.linear("w2", d.hidden, d.ffn, false, Cut::Unknown);
  }
  const std::string norm = formatted("{}RMSNorm", decoder.prefix);
  b.rms_norm("operator_norm", d.hidden, norm);
  b.rms_norm("ffn_norm", d.hidden, norm);
}

ModelSpec build_layers(const ConfigReader& config, const Decoder& decoder) {
  const Dimensions& d = decoder.dims;
  const std::string_view prefix = decoder.prefix;
  const std::string_view attention = "self_attn(q_proj q_layernorm k_proj k_layernorm v_proj out_proj)";
  std::string forwards[2][2];
  for (const bool recurs : {false, true}) {
    for (const bool mixes : {false, true}) {
      forwards[recurs ? 1 : 0][mixes ? 1 : 0] =
          formatted("operator_norm {} ffn_norm feed_forward({})", recurs ? "conv(in_proj out_proj)" : attention,
                    mixes ? "gate experts" : "w1 w3 w2");
    }
  }
  ModelBuilder b(config, formatted("{}ForCausalLM", prefix));
  ParameterId words = kNone;
  {
    const auto model = b.module("model", formatted("{}Model", prefix));
    words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool recurs = decoder.parts.recurs(static_cast<std::size_t>(i));
        const bool mixes = decoder.experts.count > 0 && !decoder.experts.dense[static_cast<std::size_t>(i)];
        const auto layer = b.layer(i, formatted("{}DecoderLayer", prefix), forwards[recurs ? 1 : 0][mixes ? 1 : 0]);
        register_lfm2_layer(b, decoder, recurs, mixes);
      }
    }
    b.rotary(decoder.parts.rotary_module, formatted("{}RotaryEmbedding", prefix), d.head_dim);
    b.rms_norm("embedding_norm", d.hidden, formatted("{}RMSNorm", prefix));
  }
  return finish_with_head(b, d, decoder.tied, words,
                          formatted("model(embed_tokens {} layers* embedding_norm)", decoder.parts.rotary_module),
                          decoder.parts);
}

}  // namespace

ModelSpec build_lfm2(ConfigReader& config) {
  const Decoder decoder = read_lfm2(config, false);
  config.throw_if_any();
  return build_layers(config, decoder);
}

ModelSpec build_lfm2_moe(ConfigReader& config) {
  const Decoder decoder = read_lfm2(config, true);
  config.throw_if_any();
  return build_layers(config, decoder);
}

}  // namespace dsplan
