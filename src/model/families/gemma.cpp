// gemma, gemma2, vaultgemma and the text part of gemma3: Decoders with a scaled embedding; gemma2 and gemma3 with norms
// on both sides of attention and MLP, the last with one rotary table per kind of layer.
#include <cmath>

#include "model/families/decoder.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

// gemma2 and gemma3: a norm on each side of attention and MLP.
void norm_both_sides(Decoder& decoder) {
  decoder.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                   "post_feedforward_layernorm"};
  decoder.parts.after_attention = "post_attention_layernorm";
  decoder.parts.before_mlp = "pre_feedforward_layernorm";
  decoder.parts.after_mlp = "post_feedforward_layernorm";
}

// Of the scores: by a number of the config, not by the width of a head.
void read_scale(ConfigReader& config, Decoder& decoder) {
  decoder.parts.attention_scale = 1 / std::sqrt(config.maybe_number("query_pre_attn_scalar", 256).value_or(256));
}

// All of them.
void read_gemma(ConfigReader& config, Decoder& decoder) {
  decoder.qkv_bias = decoder.output_bias = config.flag("attention_bias", false);
  decoder.parts.norm = NormKind::RmsPlusOne;
  decoder.parts.scaled_embedding = true;
}

}  // namespace

DecoderDefaults gemma2_defaults(std::int64_t vocab, std::int64_t layers, std::int64_t positions) {
  return {.vocab = vocab,
          .hidden = 2304,
          .ffn = 9216,
          .layers = layers,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 256,
          .positions = positions,
          .activation = "gelu_pytorch_tanh",
          .activation_key = "hidden_activation",
          .tied = true};
}

namespace {

Decoder read_gemma2(ConfigReader& config, std::string_view prefix) {
  Decoder decoder = read_decoder(config, prefix, gemma2_defaults(256000, 26, 8192));
  Dimensions& d = decoder.dims;
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  read_gemma(config, decoder);
  read_scale(config, decoder);
  decoder.parts.both_masks = true;
  decoder.parts.kinds = read_layer_kinds(
      config, d.layers, [](std::int64_t layer) { return layer % 2 == 0 ? LayerKind::Sliding : LayerKind::Full; });
  d.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  d.attention_softcap = config.maybe_number("attn_logit_softcapping", 50).value_or(0);
  d.final_softcap = config.maybe_number("final_logit_softcapping", 30).value_or(0);
  return decoder;
}

}  // namespace

ModelSpec build_gemma(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Gemma",
                                 {.vocab = 256000,
                                  .hidden = 3072,
                                  .ffn = 24576,
                                  .layers = 28,
                                  .heads = 16,
                                  .kv_heads = 16,
                                  .head_dim = 256,
                                  .positions = 8192,
                                  .activation = "gelu_pytorch_tanh",
                                  .tied = true});
  read_gemma(config, decoder);
  read_head(config, decoder, 0);
  return finish_decoder(config, decoder);
}

ModelSpec build_gemma2(ConfigReader& config) {
  Decoder decoder = read_gemma2(config, "Gemma2");
  norm_both_sides(decoder);
  read_head(config, decoder, 0);
  return finish_decoder(config, decoder);
}

// gemma2 without norms behind attention and MLP.
ModelSpec build_vaultgemma(ConfigReader& config) {
  Decoder decoder = read_gemma2(config, "VaultGemma");
  decoder.parts.before_mlp = "pre_feedforward_layernorm";
  decoder.norms = {"input_layernorm", decoder.parts.before_mlp};
  return finish_decoder(config, decoder);
}

ModelSpec build_gemma3_text(ConfigReader& config) {
  Decoder decoder = read_decoder(config, "Gemma3", gemma2_defaults(262208, 26, 131072));
  Dimensions& d = decoder.dims;
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  read_gemma(config, decoder);
  norm_both_sides(decoder);
  read_scale(config, decoder);
  decoder.body_class = "TextModel";
  decoder.parts.head_norm = HeadNorm::ByHead;
  decoder.parts.tables_by_kind = decoder.parts.both_masks = true;
  const std::int64_t pattern = config.size("sliding_window_pattern", 6);
  decoder.parts.kinds = read_layer_kinds(config, d.layers, [&](std::int64_t layer) {
    return (layer + 1) % pattern == 0 ? LayerKind::Full : LayerKind::Sliding;
  });
  d.sliding_window = config.maybe_size("sliding_window", 4096).value_or(0);
  d.attention_softcap = config.maybe_number("attn_logit_softcapping").value_or(0);
  d.final_softcap = config.maybe_number("final_logit_softcapping").value_or(0);
  decoder.headed_prefix = "Gemma3Text";
  read_head(config, decoder, 0, false);
  return finish_decoder(config, decoder);
}

}  // namespace dsplan
