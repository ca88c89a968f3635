// lfm2: Llama's shape, of which most layers have a short convolution in the place of attention.
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
  return config.times(block, (part + block - 1) / block);
}

Decoder read_lfm2(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Lfm2",
                                 {.vocab = 65536,
                                  .hidden = 2560,
                                  .ffn = 12288,
                                  .kv_heads = 8,
                                  .positions = 128000,
                                  .epsilon_key = "norm_eps",
                                  .tied = true});
  Dimensions& d = decoder.dims;
  DecoderParts& parts = decoder.parts;
  decoder.tied = config.flag("tie_embedding", decoder.tied);
  d.ffn = adjusted_width(config, config.size("block_ff_dim", d.ffn));
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
  const bool listed = config.find("full_attn_idxs") != nullptr;
  parts.recurrent.assign(static_cast<std::size_t>(d.layers), listed);
  for (const std::int64_t i : config.indices("full_attn_idxs", d.layers)) {
    parts.recurrent[static_cast<std::size_t>(i)] = false;
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
    const auto mixer = b.module(p.module, "Lfm2ShortConv");
    {
      const auto convolution = b.module("conv", "Conv1d");
      b.parameter("weight", {d.hidden, 1, p.kernel}, Split::Unknown);
      if (p.biases) b.parameter("bias", {d.hidden}, Split::Unknown);
    }
    b.linear("in_proj", b.times(3, d.hidden), d.hidden, p.biases, Cut::Unknown);
    b.linear("out_proj", d.hidden, d.hidden, p.biases, Cut::Unknown);
    return;
  }
  const auto attention = b.module("self_attn", "Lfm2Attention");
  const std::int64_t query = b.times(d.heads, d.head_dim);
  const std::int64_t key = b.times(d.kv_heads, d.head_dim);
  b.linear("q_proj", query, d.hidden, false, Cut::Unknown);
  b.linear("k_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("v_proj", key, d.hidden, false, Cut::Unknown);
  b.linear("out_proj", d.hidden, query, false, Cut::Unknown);
  b.rms_norm("q_layernorm", d.head_dim, "Lfm2RMSNorm");
  b.rms_norm("k_layernorm", d.head_dim, "Lfm2RMSNorm");
}

void register_lfm2_layer(ModelBuilder& b, const Decoder& decoder, bool recurs) {
  const Dimensions& d = decoder.dims;
  register_mixing(b, decoder, recurs);
  {
    const auto mlp = b.module("feed_forward", "Lfm2MLP");
    b.linear("w1", d.ffn, d.hidden, false, Cut::Unknown);
    b.linear("w3", d.ffn, d.hidden, false, Cut::Unknown);
    b.linear("w2", d.hidden, d.ffn, false, Cut::Unknown);
  }
  b.rms_norm("operator_norm", d.hidden, "Lfm2RMSNorm");
  b.rms_norm("ffn_norm", d.hidden, "Lfm2RMSNorm");
}

}  // namespace

ModelSpec build_lfm2(ConfigReader& config) {
  const Decoder decoder = read_lfm2(config);
  config.throw_if_any();
  const Dimensions& d = decoder.dims;
  constexpr std::string_view kForwards[2] = {
      "operator_norm self_attn(q_proj q_layernorm k_proj k_layernorm v_proj out_proj) ffn_norm feed_forward(w1 w3 w2)",
      "operator_norm conv(in_proj out_proj) ffn_norm feed_forward(w1 w3 w2)"};
  ModelBuilder b(config, "Lfm2ForCausalLM");
  ParameterId words = kNone;
  {
    const auto model = b.module("model", "Lfm2Model");
    words = b.embedding("embed_tokens", d.vocab, d.hidden, Split::Vocabulary);
    {
      const auto list = b.module("layers", "ModuleList");
      for (std::int64_t i = 0; i < d.layers; ++i) {
        const bool recurs = decoder.parts.recurs(static_cast<std::size_t>(i));
        const auto layer = b.layer(i, "Lfm2DecoderLayer", kForwards[recurs ? 1 : 0]);
        register_lfm2_layer(b, decoder, recurs);
      }
    }
    b.rotary("rotary_emb", "Lfm2RotaryEmbedding", d.head_dim);
    b.rms_norm("embedding_norm", d.hidden, "Lfm2RMSNorm");
  }
  return finish_with_head(b, d, decoder.tied, words, "model(embed_tokens rotary_emb layers* embedding_norm) lm_head",
                          decoder.parts);
}

}  // namespace dsplan
