// vit: patches through a convolution, a class token, learned positions, pre-norm layers; a classifier, or (where
// `architectures` names ViTModel) a pooler.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct Vit {
  Dimensions dims;
  std::int64_t patch = 0, channels = 0, pooler = 0;
  std::string pooler_activation;
  bool qkv_bias = true;
  bool classifier = true;
};

Vit read_vit(ConfigReader& config) {
  Vit vit;
  Dimensions& d = vit.dims;
  d.hidden = config.size("hidden_size", 768);
  d.ffn = config.size("intermediate_size", 3072);
  d.layers = config.layer_count("num_hidden_layers", 12);
  d.heads = d.kv_heads = config.size("num_attention_heads", 12);
  d.activation = config.activation("hidden_act", "gelu");
  d.residual_dropout = d.embedding_dropout = config.probability("hidden_dropout_prob", 0);
  d.attention_dropout = config.probability("attention_probs_dropout_prob", 0);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-12);
  vit.qkv_bias = config.flag("qkv_bias", true);
  vit.patch = config.size("patch_size", 16);
  vit.channels = config.size("num_channels", 3);
  vit.pooler = config.maybe_size("pooler_output_size").value_or(d.hidden);
  vit.pooler_activation = config.activation("pooler_act", "tanh");
  vit.classifier = read_picture_classifier(config, "ViT");
  d.labels = read_label_count(config);
  d.image = config.size("image_size", 224);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  config.require_at_most("patch_size", vit.patch, "image_size", d.image);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  const std::int64_t side = d.image / vit.patch;
  d.max_positions = config.plus(config.times(side, side), 1);
  return vit;
}

void register_body(ModelBuilder& b, const Vit& vit) {
  const Dimensions& d = vit.dims;
  {
    const auto embeddings = b.module("embeddings", "ViTEmbeddings");
    b.parameter("cls_token", {1, 1, d.hidden}, Split::Replicated);
    b.parameter("position_embeddings", {1, d.max_positions, d.hidden}, Split::Replicated);
    {
      const auto patches = b.module("patch_embeddings", "ViTPatchEmbeddings");
      const auto projection = b.module("projection", "Conv2d");
      b.parameter("weight", {d.hidden, vit.channels, vit.patch, vit.patch}, Split::Replicated);
      b.parameter("bias", {d.hidden}, Split::Replicated);
    }
    b.leaf("dropout", "Dropout");
  }
  {
    const auto list = b.module("layers", "ModuleList");
    for (std::int64_t i = 0; i < d.layers; ++i) {
      const auto layer = b.layer(i, "ViTLayer",
                                 "layernorm_before attention(q_proj k_proj v_proj o_proj) dropout layernorm_after "
                                 "mlp(fc1 activation_fn fc2) dropout");
      {
        const auto attention = b.module("attention", "ViTAttention");
        b.linear("q_proj", d.hidden, d.hidden, vit.qkv_bias, Cut::Column);
        b.linear("k_proj", d.hidden, d.hidden, vit.qkv_bias, Cut::KeyValue);
        b.linear("v_proj", d.hidden, d.hidden, vit.qkv_bias, Cut::KeyValue);
        b.linear("o_proj", d.hidden, d.hidden, true, Cut::Row);
      }
      b.layer_norm("layernorm_before", d.hidden);
      b.layer_norm("layernorm_after", d.hidden);
      {
        const auto mlp = b.module("mlp", "ViTMLP");
        b.activation("activation_fn", d.activation);
        b.linear("fc1", d.ffn, d.hidden, true, Cut::Column);
        b.linear("fc2", d.hidden, d.ffn, true, Cut::Row);
      }
      b.leaf("dropout", "Dropout");
    }
  }
  b.layer_norm("layernorm", d.hidden);
}

constexpr std::string_view kBodyForward = "embeddings(patch_embeddings(projection) dropout) layers* layernorm";

}  // namespace

ModelSpec build_vit(ConfigReader& config) {
  const Vit vit = read_vit(config);
  const Dimensions& d = vit.dims;
  ModelBuilder b(config, vit.classifier ? "ViTForImageClassification" : "ViTModel");
  std::string forward;
  if (vit.classifier) {
    {
      const auto body = b.module("vit", "ViTModel");
      register_body(b, vit);
    }
    if (d.labels > 0) {
      b.linear("classifier", d.labels, d.hidden, true, Cut::Whole);
    } else {
      b.leaf("classifier", "Identity");
    }
    forward = formatted("vit({}) classifier", kBodyForward);
  } else {
    register_body(b, vit);
    const auto pooler = b.module("pooler", "ViTPooler");
    b.linear("dense", vit.pooler, d.hidden, true, Cut::Whole);
    b.activation("activation", vit.pooler_activation);
    forward = formatted("{} pooler(dense activation)", kBodyForward);
  }
  ModelSpec spec = b.finish(forward);
  spec.dims = d;
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.mlp = MlpKind::Plain;
  parts.full = true;
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  parts.kinds = {LayerKind::Full};
  spec.parts = std::make_shared<const DecoderParts>(parts);
  return spec;
}

}  // namespace dsplan
