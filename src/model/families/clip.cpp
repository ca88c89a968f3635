// clip and siglip: towers that see pictures, alone (clip_vision_model, siglip_vision_model), under a classifier, or
// beside one of texts (CLIPModel, SiglipModel), as `architectures` says.
#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

struct TowerDefaults {
  std::string_view prefix;  // Of the class names: "CLIP".
  std::string_view inner;   // Of those of attention and MLP.
  std::int64_t hidden = 768;
  std::int64_t heads = 12;
  std::int64_t patch = 0;
  std::string_view activation;
  double epsilon = 1e-5;
  bool siglip = false;
  bool asks = false;  // It is told which patches are a picture's.
};
constexpr TowerDefaults kClip{"CLIP", "CLIP", 768, 12, 32, "quick_gelu", 1e-5, false};
constexpr TowerDefaults kSiglip{"Siglip", "Siglip", 768, 12, 16, "gelu_pytorch_tanh", 1e-6, true};
constexpr TowerDefaults kIdefics3{"Idefics3", "Idefics3Vision", 1152, 16, 32, "gelu_pytorch_tanh", 1e-6, true, true};
constexpr TowerDefaults kSmolVlm{"SmolVLM", "SmolVLMVision", 1152, 16, 32, "gelu_pytorch_tanh", 1e-6, true, true};

DecoderParts layer_parts(bool siglip) {
  DecoderParts parts;
  parts.norm = NormKind::Layer;
  parts.mlp = MlpKind::Plain;
  parts.full = true;
  parts.views_behind = !siglip;
  parts.output = "out_proj";
  parts.before_attention = "layer_norm1";
  parts.before_mlp = "layer_norm2";
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  parts.kinds = {LayerKind::Full};
  return parts;
}

// What both of pictures and of texts have.
void read_layers(ConfigReader& config, const TowerDefaults& defaults, std::int64_t hidden, std::int64_t ffn,
                 std::int64_t heads, Dimensions& d) {
  d.hidden = config.size("hidden_size", hidden);
  d.ffn = config.size("intermediate_size", ffn);
  d.layers = config.layer_count("num_hidden_layers", 12);
  d.heads = d.kv_heads = config.size("num_attention_heads", heads);
  d.activation = config.activation("hidden_act", defaults.activation);
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(defaults.epsilon);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
}

TowerParts read_tower(ConfigReader& config, const TowerDefaults& defaults) {
  TowerParts tower;
  Dimensions& d = tower.dims;
  read_layers(config, defaults, defaults.hidden, 3072, defaults.heads, d);
  d.image = config.size("image_size", 224);
  tower.patch = config.size("patch_size", defaults.patch);
  tower.channels = config.size("num_channels", 3);
  tower.pools = defaults.siglip && !defaults.asks && config.flag("vision_use_head", true);
  config.require_at_most("patch_size", tower.patch, "image_size", d.image);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  const std::int64_t side = d.image / tower.patch;
  tower.class_token = tower.norms_patches = !defaults.siglip;
  tower.norms_result = defaults.siglip;
  d.max_positions = config.plus(config.times(side, side), tower.class_token ? 1 : 0);
  tower.layers = layer_parts(defaults.siglip);
  tower.layers.kinds.assign(static_cast<std::size_t>(d.layers), LayerKind::Full);
  return tower;
}

void register_mlp(ModelBuilder& b, const TowerDefaults& defaults, const Dimensions& d, std::string& type) {
  type = formatted("{}MLP", defaults.inner);
  const auto mlp = b.module("mlp", type);
  b.activation("activation_fn", d.activation);
  b.linear("fc1", d.ffn, d.hidden, true, Cut::Unknown);
  b.linear("fc2", d.hidden, d.ffn, true, Cut::Unknown);
}

void register_layers(ModelBuilder& b, const TowerDefaults& defaults, const Dimensions& d) {
  const auto encoder = b.module("encoder", formatted("{}Encoder", defaults.prefix));
  const auto list = b.module("layers", "ModuleList");
  const std::string type = formatted("{}EncoderLayer", defaults.prefix);
  const std::string attention_type = formatted("{}Attention", defaults.inner);
  std::string mlp_type;
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const auto layer =
        b.layer(i, type, "layer_norm1 self_attn(q_proj k_proj v_proj out_proj) layer_norm2 mlp(fc1 activation_fn fc2)");
    const bool norms_first = defaults.siglip && !defaults.asks;
    if (norms_first) b.layer_norm("layer_norm1", d.hidden);
    {
      const auto attention = b.module("self_attn", attention_type);
      for (const std::string_view name : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
        b.linear(name, d.hidden, d.hidden, true, Cut::Unknown);
      }
    }
    if (norms_first) {
      b.layer_norm("layer_norm2", d.hidden);
      register_mlp(b, defaults, d, mlp_type);
    } else {
      b.layer_norm("layer_norm1", d.hidden);
      register_mlp(b, defaults, d, mlp_type);
      b.layer_norm("layer_norm2", d.hidden);
    }
  }
}

// SiglipMultiheadAttentionPoolingHead. nn.MultiheadAttention reads its own projection without calling it.
void register_pooling(ModelBuilder& b, const TowerDefaults& defaults, const Dimensions& d) {
  const auto head = b.module("head", "SiglipMultiheadAttentionPoolingHead");
  b.parameter("probe", {1, 1, d.hidden}, Split::Unknown);
  {
    const auto attention = b.module("attention", "MultiheadAttention");
    b.parameter("in_proj_weight", {3 * d.hidden, d.hidden}, Split::Unknown);
    b.parameter("in_proj_bias", {3 * d.hidden}, Split::Unknown);
    b.linear("out_proj", d.hidden, d.hidden, true, Cut::Unknown, "NonDynamicallyQuantizableLinear");
  }
  b.layer_norm("layernorm", d.hidden);
  std::string type;
  register_mlp(b, defaults, d, type);
}

// Returns its forward.
std::string register_tower(ModelBuilder& b, const TowerDefaults& defaults, const TowerParts& tower) {
  const Dimensions& d = tower.dims;
  {
    const auto embeddings = b.module("embeddings", formatted("{}VisionEmbeddings", defaults.prefix));
    if (tower.class_token) b.parameter("class_embedding", {d.hidden}, Split::Unknown);
    if (!defaults.asks) b.buffer("position_ids", {1, d.max_positions}, DType::Int64, false);
    {
      const auto patches = b.module("patch_embedding", "Conv2d");
      b.parameter("weight", {d.hidden, tower.channels, tower.patch, tower.patch}, Split::Unknown);
      if (defaults.siglip) b.parameter("bias", {d.hidden}, Split::Unknown);
    }
    b.embedding("position_embedding", d.max_positions, d.hidden, Split::Unknown);
  }
  if (tower.norms_patches) b.layer_norm("pre_layrnorm", d.hidden);
  register_layers(b, defaults, d);
  b.layer_norm("post_layernorm", d.hidden);
  if (tower.pools) register_pooling(b, defaults, d);
  return formatted("embeddings(patch_embedding position_embedding) {}encoder(layers*) post_layernorm{}",
                   tower.norms_patches ? "pre_layrnorm " : "",
                   tower.pools ? " head(attention layernorm mlp(fc1 activation_fn fc2))" : "");
}

ModelSpec with_tower(ModelSpec spec, TowerParts tower) {
  spec.dims = tower.dims;
  DecoderParts parts = tower.layers;
  parts.tower = std::make_shared<const TowerParts>(std::move(tower));
  spec.parts = std::make_shared<const DecoderParts>(std::move(parts));
  return spec;
}

ModelSpec build_tower(ConfigReader& config, const TowerDefaults& defaults) {
  TowerParts tower = read_tower(config, defaults);
  ModelBuilder b(config, formatted("{}Vision{}", defaults.prefix, defaults.asks ? "Transformer" : "Model"));
  const std::string forward = register_tower(b, defaults, tower);
  return with_tower(b.finish(forward), std::move(tower));
}

// The tower's class, not what holds it: its parameters lie under `vision_model` either way.
ModelSpec build_classifier(ConfigReader& config, const TowerDefaults& defaults) {
  ConfigReader inner(part_of(config, "vision_config"));
  (void)inner.find("model_type");
  (void)inner.dtype();
  TowerParts tower = read_tower(inner, defaults);
  const std::string family = defaults.siglip ? "siglip_vision_model" : "clip_vision_model";
  take_remarks(config, inner, family);
  (void)config.find("text_config");
  const std::int64_t labels = read_label_count(config);
  config.throw_if_any();
  ModelBuilder b(config, formatted("{}ForImageClassification", defaults.prefix));
  std::string forward;
  {
    const auto body = b.module("vision_model", formatted("{}VisionModel", defaults.prefix));
    forward = register_tower(b, defaults, tower);
  }
  if (labels > 0) {
    b.linear("classifier", labels, tower.dims.hidden, true, Cut::Unknown);
  } else {
    b.leaf("classifier", "Identity");
  }
  tower.module = "vision_model";
  tower.hears_checkpoints = !defaults.siglip;
  if (!tower.norms_result) tower.unreached = {"vision_model.post_layernorm."};
  tower.dims.labels = labels;
  return with_tower(b.finish(formatted("vision_model({}) classifier", forward)), std::move(tower));
}

// Without `architectures` it is the class of both towers.
void require_classifier(ConfigReader& config, const TowerDefaults& defaults) {
  const std::string built = formatted("{}ForImageClassification", defaults.prefix);
  const Value* classes = config.find("architectures");
  const bool says = classes != nullptr && classes->is(Value::Kind::Array) && !classes->items.empty();
  const std::string named = says ? classes->items.front().string : formatted("{}Model", defaults.prefix);
  if (named == built) return;
  config.fault(says ? classes->items.front() : config.root(),
               formatted("\"{}\" is not modelled yet; {} is, and {}_vision_model alone", named, built,
                         defaults.siglip ? "siglip" : "clip"));
  config.throw_if_any();
}

}  // namespace

ModelSpec build_clip_vision_model(ConfigReader& config) { return build_tower(config, kClip); }
ModelSpec build_siglip_vision_model(ConfigReader& config) { return build_tower(config, kSiglip); }
ModelSpec build_idefics3_tower(ConfigReader& config, bool smolvlm) {
  return build_tower(config, smolvlm ? kSmolVlm : kIdefics3);
}

ModelSpec build_clip(ConfigReader& config) {
  require_classifier(config, kClip);
  return build_classifier(config, kClip);
}

ModelSpec build_siglip(ConfigReader& config) {
  require_classifier(config, kSiglip);
  return build_classifier(config, kSiglip);
}

}  // namespace dsplan
