// qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_5 and their mixtures: a tower that sees pictures of all sizes, patch by patch,
// and a language model whose positions have three axes. Files of today hold the text's keys in "text_config", older
// ones beside the tower's.
#include <algorithm>

#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/decoder.h"
#include "model/families/family.h"
#include "model/families/mixers/qwen3_next.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct VisionNames {
  std::string_view tower;
  std::string_view patches;
  std::string_view rotary;
  std::string_view block;
  std::string_view attention;
  std::string_view mlp;
  std::string_view norm;  // Empty: LayerNorm.
  std::string_view merger;
};
constexpr VisionNames kQwen2{"Qwen2VisionTransformerPretrainedModel",
                             "PatchEmbed",
                             "Qwen2VLVisionRotaryEmbedding",
                             "Qwen2VLVisionBlock",
                             "VisionAttention",
                             "VisionMlp",
                             "",
                             "PatchMerger"};
constexpr VisionNames kQwen25{"Qwen2_5_VisionTransformerPretrainedModel",
                              "Qwen2_5_VisionPatchEmbed",
                              "Qwen2_5_VLVisionRotaryEmbedding",
                              "Qwen2_5_VLVisionBlock",
                              "Qwen2_5_VLVisionAttention",
                              "Qwen2_5_VLMLP",
                              "Qwen2_5_VLRMSNorm",
                              "Qwen2_5_VLPatchMerger"};
constexpr VisionNames kQwen3{"Qwen3VLVisionModel",
                             "Qwen3VLVisionPatchEmbed",
                             "Qwen3VLVisionRotaryEmbedding",
                             "Qwen3VLVisionBlock",
                             "Qwen3VLVisionAttention",
                             "Qwen3VLVisionMLP",
                             "",
                             "Qwen3VLVisionPatchMerger"};
constexpr VisionNames kQwen3Moe{"Qwen3VLMoeVisionModel",
                                "Qwen3VLMoeVisionPatchEmbed",
                                "Qwen3VLMoeVisionRotaryEmbedding",
                                "Qwen3VLMoeVisionBlock",
                                "Qwen3VLMoeVisionAttention",
                                "Qwen3VLMoeVisionMLP",
                                "",
                                "Qwen3VLMoeVisionPatchMerger"};

constexpr VisionNames kQwen35{"Qwen3_5VisionModel",
                              "Qwen3_5VisionPatchEmbed",
                              "Qwen3_5VisionRotaryEmbedding",
                              "Qwen3_5VisionBlock",
                              "Qwen3_5VisionAttention",
                              "Qwen3_5VisionMLP",
                              "",
                              "Qwen3_5VisionPatchMerger"};
constexpr VisionNames kQwen35Moe{"Qwen3_5MoeVisionModel",
                                 "Qwen3_5MoeVisionPatchEmbed",
                                 "Qwen3_5MoeVisionRotaryEmbedding",
                                 "Qwen3_5MoeVisionBlock",
                                 "Qwen3_5MoeVisionAttention",
                                 "Qwen3_5MoeVisionMLP",
                                 "",
                                 "Qwen3_5MoeVisionPatchMerger"};

void register_norm(ModelBuilder& b, const VisionNames& names, std::string_view name, std::int64_t width) {
  if (names.norm.empty()) return b.layer_norm(name, width);
  b.rms_norm(name, width, names.norm);
}

void register_mlp(ModelBuilder& b, const VisionNames& names, const TowerParts& tower) {
  const Dimensions& d = tower.dims;
  const auto mlp = b.module("mlp", names.mlp);
  if (tower.layers.mlp == MlpKind::Gated) return register_gated_mlp(b, d.hidden, d.ffn, true, d.activation);
  b.linear(tower.layers.up, d.ffn, d.hidden, true, Cut::Unknown);
  if (tower.table == 0) b.activation(tower.layers.activation, d.activation);
  b.linear(tower.layers.down, d.hidden, d.ffn, true, Cut::Unknown);
  if (tower.table > 0) b.activation(tower.layers.activation, d.activation);
}

std::string_view block_forward(const TowerParts& tower) {
  if (tower.layers.mlp == MlpKind::Gated) return "norm1 attn(qkv proj) norm2 mlp(gate_proj act_fn up_proj down_proj)";
  return tower.table > 0 ? "norm1 attn(qkv proj) norm2 mlp(linear_fc1 act_fn linear_fc2)"
                         : "norm1 attn(qkv proj) norm2 mlp(fc1 act fc2)";
}

void register_blocks(ModelBuilder& b, const VisionNames& names, const TowerParts& tower) {
  const Dimensions& d = tower.dims;
  const auto list = b.module("blocks", "ModuleList");
  const std::string_view forward = block_forward(tower);
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const auto block = b.layer(i, names.block, forward);
    register_norm(b, names, "norm1", d.hidden);
    register_norm(b, names, "norm2", d.hidden);
    {
      const auto attention = b.module("attn", names.attention);
      b.linear("qkv", 3 * d.hidden, d.hidden, true, Cut::Unknown);
      b.linear("proj", d.hidden, d.hidden, true, Cut::Unknown);
    }
    register_mlp(b, names, tower);
  }
}

void register_patches(ModelBuilder& b, const VisionNames& names, const TowerParts& tower, bool bias) {
  const std::int64_t width = tower.dims.hidden;
  const auto patches = b.module("patch_embed", names.patches);
  const auto convolution = b.module("proj", "Conv3d");
  b.parameter("weight", {width, tower.channels, tower.frames, tower.patch, tower.patch}, Split::Unknown);
  if (bias) b.parameter("bias", {width}, Split::Unknown);
}

// Of qwen3_vl: `of_token` says that the norm is of a token's patches together.
void register_merger(ModelBuilder& b, const VisionNames& names, const TowerParts& tower, std::int64_t width,
                     std::string_view name, bool of_token) {
  const auto merger = b.module(name, names.merger);
  const std::int64_t wide = b.times(tower.dims.hidden, tower.merge * tower.merge);
  b.layer_norm("norm", of_token ? wide : tower.dims.hidden);
  b.linear("linear_fc1", wide, wide, true, Cut::Unknown);
  b.leaf("act_fn", "GELU");
  b.linear("linear_fc2", width, wide, true, Cut::Unknown);
}

ModelSpec build_deep_vision(const ConfigReader& config, const VisionNames& names, const TowerParts& tower,
                            std::int64_t width) {
  const Dimensions& d = tower.dims;
  ModelBuilder b(config, names.tower);
  register_patches(b, names, tower, true);
  b.embedding("pos_embed", tower.table, d.hidden, Split::Unknown);
  b.rotary("rotary_pos_emb", names.rotary, d.head_dim / 2);
  register_blocks(b, names, tower);
  register_merger(b, names, tower, width, "merger", false);
  if (!tower.deep_layers.empty()) {
    const auto list = b.module("deepstack_merger_list", "ModuleList");
    for (std::size_t i = 0; i < tower.deep_layers.size(); ++i) {
      register_merger(b, names, tower, width, std::to_string(i), true);
    }
  }
  constexpr std::string_view kMerger = "(norm linear_fc1 act_fn linear_fc2)";
  std::string forward = "patch_embed(proj) pos_embed rotary_pos_emb";
  for (std::int64_t layer = 0; layer < d.layers; ++layer) {
    forward += formatted(" blocks.{}({})", layer, block_forward(tower));
    const auto at = std::find(tower.deep_layers.begin(), tower.deep_layers.end(), layer);
    if (at == tower.deep_layers.end()) continue;
    forward += formatted(" deepstack_merger_list.{}{}", at - tower.deep_layers.begin(), kMerger);
  }
  return b.finish(formatted("{} merger{}", forward, kMerger));
}

ModelSpec build_vision(const ConfigReader& config, const VisionNames& names, const TowerParts& tower,
                       std::int64_t width) {
  const Dimensions& d = tower.dims;
  ModelBuilder b(config, names.tower);
  register_patches(b, names, tower, false);
  b.rotary("rotary_pos_emb", names.rotary, d.head_dim / 2);
  register_blocks(b, names, tower);
  {
    const auto merger = b.module("merger", names.merger);
    const std::int64_t wide = b.times(d.hidden, tower.merge * tower.merge);
    register_norm(b, names, "ln_q", d.hidden);
    const auto mlp = b.module("mlp", "Sequential");
    b.linear("0", wide, wide, true, Cut::Unknown);
    b.leaf("1", "GELU");
    b.linear("2", width, wide, true, Cut::Unknown);
  }
  return b.finish("patch_embed(proj) rotary_pos_emb blocks* merger(ln_q mlp(0 1 2))");
}

// What both towers have.
TowerParts read_tower(ConfigReader& vision, std::string_view width_key, std::int64_t width, std::int64_t layers = 32,
                      std::int64_t patch = 14) {
  TowerParts tower;
  Dimensions& d = tower.dims;
  d.layers = vision.layer_count("depth", layers);
  d.hidden = vision.size(width_key, width);
  d.heads = d.kv_heads = vision.size("num_heads", 16, "num_attention_heads");
  vision.require_divides("num_heads", d.heads, width_key, d.hidden);
  d.norm_epsilon = 1e-6;
  tower.channels = vision.size("in_channels", 3);
  tower.patch = vision.size("patch_size", patch);
  tower.merge = vision.size("spatial_merge_size", 2);
  tower.frames = vision.size("temporal_patch_size", 2);
  tower.projection = ProjectorKind::Merged;
  tower.module = "visual";
  tower.layers.full = true;
  tower.layers.kinds.assign(static_cast<std::size_t>(d.layers), LayerKind::Full);
  return tower;
}

// The reader of the text's keys: that of "text_config", or the file's own where the text's keys stand beside.
ConfigReader& text_reader(ConfigReader& config, std::optional<ConfigReader>& inner) {
  take_axes(config);
  if (config.find("text_config") == nullptr) return config;
  inner.emplace(part_of(config, "text_config"));
  // What stands beside it as well, as transformers 4.5x saved it, transformers leaves alone (__post_init__).
  for (const Member& member : inner->root().members) (void)config.find(member.key);
  (void)inner->find("model_type");
  (void)inner->dtype();
  return *inner;
}

Decoder read_text(ConfigReader& text, std::string_view prefix, const DecoderDefaults& defaults) {
  Decoder decoder = read_decoder(text, prefix, defaults);
  decoder.parts.rotary.three_axes = true;
  (void)text.find("sliding_window");
  (void)text.find("max_window_layers");
  if (text.flag("use_sliding_window", false)) {
    text.gaps.push_back({text.find("use_sliding_window"), "use_sliding_window", "a window beside pictures"});
  }
  return decoder;
}

Decoder read_qwen2_text(ConfigReader& text, std::string_view prefix) {
  Decoder decoder = read_text(text, prefix,
                              {.vocab = 152064,
                               .hidden = 8192,
                               .ffn = 29568,
                               .layers = 80,
                               .heads = 64,
                               .kv_heads = 8,
                               .positions = 32768,
                               .kv_heads_may_be_null = true});
  decoder.qkv_bias = true;
  decoder.body_class = "TextModel";
  decoder.mlp_class = "Qwen2MLP";
  decoder.parts.views_behind = true;
  return decoder;
}

Decoder read_qwen3_text(ConfigReader& text, std::string_view prefix, const DecoderDefaults& defaults) {
  Decoder decoder = read_text(text, prefix, defaults);
  decoder.qkv_bias = decoder.output_bias = text.flag("attention_bias", false);
  decoder.parts.head_norm = HeadNorm::ByToken;
  decoder.parts.rotary.mixed_axes = true;
  decoder.tied = false;  // The key beside text_config says it.
  return decoder;
}

Decoder read_qwen3_vl_text(ConfigReader& text, std::string_view prefix) {
  return read_qwen3_text(text, prefix,
                         {.vocab = 151936,
                          .ffn = 22016,
                          .kv_heads = 32,
                          .head_dim = 128,
                          .positions = 128000,
                          .kv_heads_may_be_null = true});
}

Decoder read_qwen3_vl_moe_text(ConfigReader& text, std::string_view prefix) {
  Decoder decoder = read_qwen3_text(text, prefix,
                                    {.vocab = 151936,
                                     .hidden = 2048,
                                     .ffn = 5632,
                                     .layers = 24,
                                     .heads = 16,
                                     .kv_heads = 16,
                                     .positions = 128000,
                                     .tied = true,
                                     .kv_heads_may_be_null = true,
                                     .head_dim_may_be_null = true});
  const std::int64_t experts = text.count("num_experts", 60, "num_local_experts");
  decoder.parts.experts.router = Router::Softmax;
  decoder.parts.experts.ffn = text.size("moe_intermediate_size", 1408);
  decoder.experts = {.count = experts,
                     .per_token = text.size("num_experts_per_tok", 4),
                     .router_first = false,
                     .router_class = "Qwen3VLMoeTextTopKRouter",
                     .dense = read_dense_layers(text, decoder.dims.layers, experts)};
  if (experts > 0) text.require_at_most("num_experts_per_tok", decoder.experts.per_token, "num_experts", experts);
  return decoder;
}

struct VisionLanguage {
  std::string_view prefix;  // Of the classes of the whole: "Qwen2_5_VL".
  std::string_view text_prefix;
  Decoder (*read)(ConfigReader& text, std::string_view prefix);
  const VisionNames& names;
  std::string_view tower_family;
  ModelSpec (*finish)(const ConfigReader& text, const Decoder& decoder) = finish_decoder;
  std::int64_t image_token = 151655;
};

ModelSpec build_both(ConfigReader& config, const VisionLanguage& kind, ConfigReader& vision, TowerParts tower,
                     std::optional<std::int64_t> width) {
  std::optional<ConfigReader> inner;
  ConfigReader& text = text_reader(config, inner);
  const Decoder decoder = kind.read(text, kind.text_prefix);
  const bool tied = config.flag("tie_word_embeddings", false) || decoder.tied;
  tower.image_token = config.size("image_token_id", kind.image_token);
  take_remarks(config, vision, kind.tower_family);
  if (inner) take_remarks(config, *inner, kind.tower_family.starts_with("qwen3") ? kind.tower_family : "qwen2_vl");
  vision.throw_if_any();
  text.throw_if_any();
  config.throw_if_any();
  tower.dims.head_dim = tower.dims.hidden / tower.dims.heads;
  if (width.value_or(decoder.dims.hidden) != decoder.dims.hidden) {
    config.fault("vision_config",
                 formatted("the tower's result is {} wide, the text's embedding {}", *width, decoder.dims.hidden));
    config.throw_if_any();
  }
  const std::int64_t text_width = decoder.dims.hidden;
  const ModelSpec seen = tower.table > 0 ? build_deep_vision(vision, kind.names, tower, text_width)
                                         : build_vision(vision, kind.names, tower, text_width);
  const ModelSpec words = kind.finish(text, decoder);
  const std::string root = formatted("{}ForConditionalGeneration", kind.prefix);
  const std::string body = formatted("{}Model", kind.prefix);
  return compose({root, body, "", tied}, seen, words, std::move(tower), nullptr);
}

}  // namespace

ModelSpec build_qwen2_vl(ConfigReader& config) {
  ConfigReader vision(part_of(config, "vision_config"));
  (void)vision.find("model_type");
  TowerParts tower = read_tower(vision, "embed_dim", 1280);
  tower.dims.ffn = tower.dims.hidden * vision.size("mlp_ratio", 4);
  tower.dims.activation = vision.activation("hidden_act", "quick_gelu");
  tower.layers.norm = NormKind::Layer;
  tower.layers.mlp = MlpKind::Plain;
  tower.layers.up = "fc1";
  tower.layers.down = "fc2";
  tower.layers.activation = "act";
  const std::int64_t width = vision.size("hidden_size", 3584);
  return build_both(config, {"Qwen2VL", "Qwen2VL", read_qwen2_text, kQwen2, "qwen2_vl"}, vision, std::move(tower),
                    width);
}

ModelSpec build_qwen2_5_vl(ConfigReader& config) {
  ConfigReader vision(part_of(config, "vision_config"));
  (void)vision.find("model_type");
  TowerParts tower = read_tower(vision, "hidden_size", 3584);
  tower.dims.ffn = vision.size("intermediate_size", 3420);
  tower.dims.activation = vision.activation("hidden_act", "silu");
  tower.window = vision.size("window_size", 112) / tower.merge / std::max<std::int64_t>(tower.patch, 1);
  tower.whole_layers = {7, 15, 23, 31};
  if (is_present(vision, "fullatt_block_indexes")) {
    tower.whole_layers = vision.indices("fullatt_block_indexes", tower.dims.layers);
  }
  const std::int64_t width = vision.size("out_hidden_size", 3584);
  return build_both(config, {"Qwen2_5_VL", "Qwen2_5_VL", read_qwen2_text, kQwen25, "qwen2_5_vl"}, vision,
                    std::move(tower), width);
}

namespace {

ModelSpec build_deep(ConfigReader& config, const VisionLanguage& kind, bool deep = true) {
  ConfigReader vision(part_of(config, "vision_config"));
  (void)vision.find("model_type");
  TowerParts tower = read_tower(vision, "hidden_size", 1152, 27, 16);
  tower.dims.ffn = vision.size("intermediate_size", 4304);
  tower.dims.activation = vision.activation("hidden_act", "gelu_pytorch_tanh");
  tower.layers.norm = NormKind::Layer;
  tower.layers.mlp = MlpKind::Plain;
  tower.layers.up = "linear_fc1";
  tower.layers.down = "linear_fc2";
  tower.layers.activation = "act_fn";
  tower.table = vision.size("num_position_embeddings", 2304);
  if (deep) tower.deep_layers = {8, 16, 24};
  if (deep && is_present(vision, "deepstack_visual_indexes")) {
    tower.deep_layers = vision.indices("deepstack_visual_indexes", tower.dims.layers);
  }
  tower.held = true;
  tower.hears_checkpoints = false;
  const std::int64_t width = vision.size("out_hidden_size", 3584);
  return build_both(config, kind, vision, std::move(tower), width);
}

}  // namespace

ModelSpec build_qwen3_vl(ConfigReader& config) {
  return build_deep(config, {"Qwen3VL", "Qwen3VLText", read_qwen3_vl_text, kQwen3, "qwen3_vl"});
}

ModelSpec build_qwen3_vl_moe(ConfigReader& config) {
  return build_deep(config, {"Qwen3VLMoe", "Qwen3VLMoeText", read_qwen3_vl_moe_text, kQwen3Moe, "qwen3_vl_moe"});
}

ModelSpec build_qwen3_5(ConfigReader& config) {
  return build_deep(config, {"Qwen3_5", "Qwen3_5", read_qwen3_5, kQwen35, "qwen3_5", finish_hybrid, 248056}, false);
}

ModelSpec build_qwen3_5_moe(ConfigReader& config) {
  return build_deep(
      config, {"Qwen3_5Moe", "Qwen3_5Moe", read_qwen3_5_moe, kQwen35Moe, "qwen3_5_moe", finish_hybrid, 248056}, false);
}

}  // namespace dsplan
