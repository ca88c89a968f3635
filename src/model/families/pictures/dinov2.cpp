// dinov2: vit's shape whose layers scale what they add by parameters of their own, under a classifier that reads the
// class token beside the mean of all patches.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct Dinov2 {
  Dimensions dims;
  std::int64_t patch = 0, channels = 0;
  bool qkv_bias = true, mask_token = true, gated = false, drops_paths = false;
};

Dinov2 read_dinov2(ConfigReader& config) {
  Dinov2 made;
  Dimensions& d = made.dims;
  d.hidden = config.size("hidden_size", 768);
  d.layers = config.layer_count("num_hidden_layers", 12);
  d.heads = d.kv_heads = config.size("num_attention_heads", 12);
  d.ffn = config.times(d.hidden, config.size("mlp_ratio", 4));
  d.activation = config.activation("hidden_act", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout_prob", 0);
  d.attention_dropout = config.probability("attention_probs_dropout_prob", 0);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-6);
  made.qkv_bias = config.flag("qkv_bias", true);
  made.mask_token = config.flag("use_mask_token", true);
  made.gated = config.flag("use_swiglu_ffn", false);
  if (made.gated) d.ffn = (d.ffn * 2 / 3 + 7) / 8 * 8;
  made.drops_paths = config.probability("drop_path_rate", 0) > 0;
  if (made.drops_paths) {
    config.gaps.push_back({config.find("drop_path_rate"), "drop_path_rate", "paths that are left out at random"});
  }
  made.patch = config.size("patch_size", 14);
  made.channels = config.size("num_channels", 3);
  d.labels = read_label_count(config);
  d.image = config.size("image_size", 224);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.require_at_most("patch_size", made.patch, "image_size", d.image);
  return made;
}

void register_attention(ModelBuilder& b, const Dinov2& made) {
  const Dimensions& d = made.dims;
  const auto outer = b.module("attention", "Dinov2Attention");
  {
    const auto attention = b.module("attention", "Dinov2SelfAttention");
    for (const std::string_view name : {"query", "key", "value"}) {
      b.linear(name, d.hidden, d.hidden, made.qkv_bias, Cut::Unknown);
    }
  }
  const auto output = b.module("output", "Dinov2SelfOutput");
  b.linear("dense", d.hidden, d.hidden, true, Cut::Unknown);
  b.leaf("dropout", "Dropout");
}

void register_mlp(ModelBuilder& b, const Dinov2& made) {
  const Dimensions& d = made.dims;
  const auto mlp = b.module("mlp", made.gated ? "Dinov2SwiGLUFFN" : "Dinov2MLP");
  if (made.gated) {
    b.linear("weights_in", b.times(2, d.ffn), d.hidden, true, Cut::Unknown);
    b.linear("weights_out", d.hidden, d.ffn, true, Cut::Unknown);
    return;
  }
  b.linear("fc1", d.ffn, d.hidden, true, Cut::Unknown);
  b.activation("activation", d.activation);
  b.linear("fc2", d.hidden, d.ffn, true, Cut::Unknown);
}

void register_scale(ModelBuilder& b, std::string_view name, std::int64_t hidden) {
  const auto scale = b.module(name, "Dinov2LayerScale");
  b.parameter("lambda1", {hidden}, Split::Replicated);
}

void register_layer(ModelBuilder& b, const Dinov2& made) {
  const std::int64_t hidden = made.dims.hidden;
  b.layer_norm("norm1", hidden);
  register_attention(b, made);
  register_scale(b, "layer_scale1", hidden);
  b.leaf("drop_path", made.drops_paths ? "Dinov2DropPath" : "Identity");
  b.layer_norm("norm2", hidden);
  register_mlp(b, made);
  register_scale(b, "layer_scale2", hidden);
}

void register_embeddings(ModelBuilder& b, const Dinov2& made) {
  const Dimensions& d = made.dims;
  const auto embeddings = b.module("embeddings", "Dinov2Embeddings");
  b.parameter("cls_token", {1, 1, d.hidden}, Split::Replicated);
  if (made.mask_token) b.parameter("mask_token", {1, d.hidden}, Split::Replicated);
  b.parameter("position_embeddings", {1, d.max_positions, d.hidden}, Split::Replicated);
  {
    const auto patches = b.module("patch_embeddings", "Dinov2PatchEmbeddings");
    const auto projection = b.module("projection", "Conv2d");
    b.parameter("weight", {d.hidden, made.channels, made.patch, made.patch}, Split::Replicated);
    b.parameter("bias", {d.hidden}, Split::Replicated);
  }
  b.leaf("dropout", "Dropout");
}

void register_body(ModelBuilder& b, const Dinov2& made, std::string_view layer_forward) {
  register_embeddings(b, made);
  {
    const auto encoder = b.module("encoder", "Dinov2Encoder");
    const auto list = b.module("layer", "ModuleList");
    for (std::int64_t i = 0; i < made.dims.layers; ++i) {
      const auto layer = b.layer(i, "Dinov2Layer", layer_forward);
      register_layer(b, made);
    }
  }
  b.layer_norm("layernorm", made.dims.hidden);
}

}  // namespace

ModelSpec build_dinov2(ConfigReader& config) {
  Dinov2 made = read_dinov2(config);
  const bool classifies = read_picture_classifier(config, "Dinov2");
  config.throw_if_any();
  Dimensions& d = made.dims;
  d.head_dim = d.hidden / d.heads;
  const std::int64_t side = d.image / made.patch;
  d.max_positions = config.plus(config.times(side, side), 1);
  const std::string layer = formatted(
      "norm1 attention(attention(key value query) output(dense dropout)) layer_scale1 drop_path norm2 mlp({}) "
      "layer_scale2 drop_path",
      made.gated ? "weights_in weights_out" : "fc1 activation fc2");
  ModelBuilder b(config, classifies ? "Dinov2ForImageClassification" : "Dinov2Model");
  constexpr std::string_view kBody = "embeddings(patch_embeddings(projection) dropout) encoder(layer*) layernorm";
  std::string forward(kBody);
  if (classifies) {
    {
      const auto body = b.module("dinov2", "Dinov2Model");
      register_body(b, made, layer);
    }
    if (d.labels > 0) {
      b.linear("classifier", d.labels, b.times(2, d.hidden), true, Cut::Whole);
    } else {
      b.leaf("classifier", "Identity");
    }
    forward = formatted("dinov2({}) classifier", kBody);
  } else {
    register_body(b, made, layer);
  }
  ModelSpec spec = b.finish(forward);
  spec.dims = d;
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.mlp = MlpKind::Plain;
  parts.full = true;
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation";
  parts.kinds = {LayerKind::Full};
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
