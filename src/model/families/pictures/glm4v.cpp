// glm4v and glm4v_moe (GLM-4.1V, GLM-4.5V): a tower that sees pictures of all sizes, at whose end a convolution makes
// one place of several, and glm4 or glm4_moe with positions of three axes.
#include <algorithm>
#include <optional>
#include <string>

#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

TowerParts read_glm_tower(ConfigReader& vision) {
  (void)vision.find("model_type");
  (void)vision.dtype();
  TowerParts tower;
  Dimensions& d = tower.dims;
  d.layers = vision.layer_count("depth", 24);
  d.hidden = vision.size("hidden_size", 1536);
  d.heads = d.kv_heads = vision.size("num_heads", 12, "num_attention_heads");
  vision.require_divides("num_heads", d.heads, "hidden_size", d.hidden);
  d.activation = vision.activation("hidden_act", "silu");
  d.attention_dropout = vision.probability("attention_dropout", 0);
  d.norm_epsilon = vision.maybe_number("rms_norm_eps").value_or(1e-5);
  tower.channels = vision.size("in_channels", 3);
  tower.patch = vision.size("patch_size", 14);
  tower.merge = vision.size("spatial_merge_size", 2);
  tower.frames = vision.size("temporal_patch_size", 2);
  const std::int64_t side = vision.size("image_size", 336) / std::max<std::int64_t>(tower.patch, 1);
  d.ffn = tower.merged = vision.size("out_hidden_size", 4096);
  tower.merged_ffn = vision.size("intermediate_size", 13696);
  vision.throw_if_any();
  tower.table = vision.times(side, side);
  d.head_dim = d.hidden / d.heads;
  tower.projection = ProjectorKind::Merged;
  tower.module = "visual";
  tower.hears_checkpoints = false;
  tower.layers.full = true;
  tower.layers.kinds.assign(static_cast<std::size_t>(d.layers), LayerKind::Full);
  return tower;
}

struct GlmNames {
  std::string_view prefix;
  std::string_view mlp;
};

void register_glm_block(ModelBuilder& b, const GlmNames& names, const TowerParts& tower, bool bias) {
  const Dimensions& d = tower.dims;
  const std::string norm = formatted("{}RMSNorm", names.prefix);
  b.rms_norm("norm1", d.hidden, norm);
  b.rms_norm("norm2", d.hidden, norm);
  {
    const auto attention = b.module("attn", formatted("{}VisionAttention", names.prefix));
    b.linear("qkv", 3 * d.hidden, d.hidden, bias, Cut::Unknown);
    b.linear("proj", d.hidden, d.hidden, false, Cut::Unknown);
  }
  const auto mlp = b.module("mlp", names.mlp);
  register_gated_mlp(b, d.hidden, d.ffn, false, d.activation);
}

void register_glm_merger(ModelBuilder& b, const GlmNames& names, const TowerParts& tower) {
  const auto merger = b.module("merger", formatted("{}VisionPatchMerger", names.prefix));
  b.linear("proj", tower.merged, tower.merged, false, Cut::Unknown);
  b.layer_norm("post_projection_norm", tower.merged);
  b.linear("gate_proj", tower.merged_ffn, tower.merged, false, Cut::Unknown);
  b.linear("up_proj", tower.merged_ffn, tower.merged, false, Cut::Unknown);
  b.linear("down_proj", tower.merged, tower.merged_ffn, false, Cut::Unknown);
  b.leaf("act1", "GELU");
  b.activation("act_fn", tower.dims.activation);
}

ModelSpec build_glm_tower(const ConfigReader& config, const GlmNames& names, const TowerParts& tower, bool bias) {
  const Dimensions& d = tower.dims;
  const std::string norm = formatted("{}RMSNorm", names.prefix);
  ModelBuilder b(config, formatted("{}VisionModel", names.prefix));
  {
    const auto embeddings = b.module("embeddings", formatted("{}VisionEmbeddings", names.prefix));
    b.embedding("position_embedding", tower.table, d.hidden, Split::Unknown);
  }
  {
    const auto patches = b.module("patch_embed", formatted("{}VisionPatchEmbed", names.prefix));
    const auto convolution = b.module("proj", "Conv3d");
    b.parameter("weight", {d.hidden, tower.channels, tower.frames, tower.patch, tower.patch}, Split::Unknown);
    b.parameter("bias", {d.hidden}, Split::Unknown);
  }
  b.rotary("rotary_pos_emb", formatted("{}VisionRotaryEmbedding", names.prefix), d.head_dim / 2);
  {
    const auto list = b.module("blocks", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto block = b.layer(i, formatted("{}VisionBlock", names.prefix),
                                 "norm1 attn(qkv proj) norm2 mlp(gate_proj act_fn up_proj down_proj)");
      register_glm_block(b, names, tower, bias);
    }
  }
  register_glm_merger(b, names, tower);
  b.rms_norm("post_conv_layernorm", d.hidden, norm);
  {
    const auto convolution = b.module("downsample", "Conv2d");
    b.parameter("weight", {tower.merged, d.hidden, tower.merge, tower.merge}, Split::Unknown);
    b.parameter("bias", {tower.merged}, Split::Unknown);
  }
  b.rms_norm("post_layernorm", d.hidden, norm);
  return b.finish(
      "patch_embed(proj) post_conv_layernorm rotary_pos_emb embeddings blocks* post_layernorm downsample merger(proj "
      "post_projection_norm act1 gate_proj act_fn up_proj down_proj)");
}

// Positions of three axes turn a part of each head.
void turn_glm_part(ConfigReader& text, Decoder& decoder, double share) {
  decoder.dims.rotary_fraction = text.rotary_share("partial_rotary_factor", share);
  RotaryParts& rotary = decoder.parts.rotary;
  rotary.part = RotaryPart::JoinedLast;
  rotary.three_axes = true;
}

Decoder read_glm4v_text(ConfigReader& text) {
  Decoder decoder = read_decoder(
      text, "Glm4vText",
      {.vocab = 151552, .ffn = 13696, .layers = 40, .kv_heads = 2, .positions = 32768, .kv_heads_may_be_null = true});
  turn_glm_part(text, decoder, 1);
  decoder.qkv_bias = true;
  decoder.whole_norm_class = "Glm4vRMSNorm";
  decoder.norms = {"input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"};
  DecoderParts& parts = decoder.parts;
  parts.rotary.pairs = true;
  parts.mlp = MlpKind::FusedGate;
  parts.up = "gate_up_proj";
  parts.activation = "activation_fn";
  parts.views_behind = true;
  parts.after_attention = "post_self_attn_layernorm";
  parts.after_mlp = "post_mlp_layernorm";
  return decoder;
}

Decoder read_glm4v_moe_text(ConfigReader& text) {
  Decoder decoder =
      read_decoder(text, "Glm4vMoeText",
                   {.vocab = 151424, .ffn = 10944, .layers = 46, .heads = 96, .kv_heads = 8, .positions = 65536});
  turn_glm_part(text, decoder, 0.5);
  decoder.qkv_bias = text.flag("attention_bias", true);
  read_glm_mixture(text, decoder, "Glm4vMoeTextTopkRouter");
  return decoder;
}

// `whole`: the prefix of what holds both, where it has another.
ModelSpec build_glm_shown(ConfigReader& config, const GlmNames& names, Decoder (*read)(ConfigReader& text),
                          std::string_view family, std::int64_t image_token, std::string_view whole = {}) {
  ConfigReader vision(part_of(config, "vision_config"));
  TowerParts tower = read_glm_tower(vision);
  const bool bias = vision.flag("attention_bias", false);
  // The published file of GLM-4.1V has the text's keys beside the tower's part (Glm4vConfig.__post_init__).
  std::optional<ConfigReader> inner;
  if (config.find("text_config") != nullptr) {
    inner.emplace(part_of(config, "text_config"));
    (void)inner->find("model_type");
    (void)inner->dtype();
  }
  ConfigReader& text = inner ? *inner : config;
  const Decoder decoder = read(text);
  const bool tied = config.flag("tie_word_embeddings", false) || decoder.tied;
  tower.image_token = config.size("image_token_id", image_token);
  take_remarks(config, vision, family);
  if (inner) take_remarks(config, *inner, family);
  vision.throw_if_any();
  text.throw_if_any();
  config.throw_if_any();
  if (tower.merged != decoder.dims.hidden) {
    config.fault("vision_config", formatted("the tower's result is {} wide, the text's embedding {}", tower.merged,
                                            decoder.dims.hidden));
    config.throw_if_any();
  }
  const ModelSpec seen = build_glm_tower(vision, names, tower, bias);
  ModelSpec words = finish_decoder(text, decoder);
  const ModuleId last = words.child(words.child(0, "model"), "norm");  // Of the tower's class.
  words.module_at(last).type = formatted("{}RMSNorm", names.prefix);
  const std::string_view prefix = whole.empty() ? names.prefix : whole;
  const std::string root = formatted("{}ForConditionalGeneration", prefix);
  const std::string body = formatted("{}Model", prefix);
  return compose({root, body, "", tied}, seen, words, std::move(tower), nullptr);
}

constexpr GlmNames kGlm4v{"Glm4v", "Glm4VisionMlp"};
constexpr GlmNames kGlm4vMoe{"Glm4vMoe", "Glm4vMoeisionMlp"};

// What a part of glm46v says it is.
std::string_view type_of_part(ConfigReader& config, std::string_view part, std::string_view plain,
                              std::string_view mixture) {
  const Value* inside = config.find(part);
  const Value* type = inside == nullptr ? nullptr : inside->find("model_type");
  if (type == nullptr || type->string == plain) return plain;
  if (type->string == mixture) return mixture;
  config.fault(*type, formatted("\"{}\" of model_type \"{}\" is not modelled yet", part, type->string),
               formatted("here it is {} or {}", plain, mixture));
  return plain;
}

}  // namespace

ModelSpec build_glm4v(ConfigReader& config) {
  return build_glm_shown(config, kGlm4v, read_glm4v_text, "glm4v", 151343);
}

ModelSpec build_glm4v_moe(ConfigReader& config) {
  return build_glm_shown(config, kGlm4vMoe, read_glm4v_moe_text, "glm4v_moe", 151363);
}

// Either of the two, by what its parts are (GLM-4.6V, GLM-4.6V-Flash).
ModelSpec build_glm46v(ConfigReader& config) {
  const bool mixes = type_of_part(config, "text_config", "glm4v_text", "glm4v_moe_text") == "glm4v_moe_text";
  const bool other = type_of_part(config, "vision_config", "glm4v_vision", "glm4v_moe_vision") == "glm4v_moe_vision";
  if (mixes != other) {
    config.fault("vision_config",
                 "a tower of one of glm4v and glm4v_moe beside the text of the other is not modelled yet");
  }
  config.throw_if_any();
  if (mixes) return build_glm_shown(config, kGlm4vMoe, read_glm4v_moe_text, "glm4v_moe", 151343, "Glm46V");
  return build_glm_shown(config, kGlm4v, read_glm4v_text, "glm4v", 151343, "Glm46V");
}

}  // namespace dsplan
