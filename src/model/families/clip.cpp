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

// A tower of texts: what `d` says of its layers, and how its end is found and projected.
struct Texts {
  Dimensions dims;
  std::int64_t end_token = -1;  // -1: the highest number of each text stands there.
  std::int64_t projected = 0;   // Of siglip's.
};

Texts read_texts(ConfigReader& config, bool siglip) {
  Texts texts;
  Dimensions& d = texts.dims;
  read_layers(config, siglip ? kSiglip : kClip, siglip ? 768 : 512, siglip ? 3072 : 2048, siglip ? 12 : 8, d);
  d.vocab = config.size("vocab_size", siglip ? 32000 : 49408);
  d.max_positions = config.size("max_position_embeddings", siglip ? 64 : 77);
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  if (siglip) {
    texts.projected = config.maybe_size("projection_size").value_or(d.hidden);
    return texts;
  }
  const Value* end = config.find("eos_token_id");
  if (end != nullptr && !end->is(Value::Kind::Integer)) {
    config.fault(*end, "\"eos_token_id\" is one number: it is looked for in each text");
    config.throw_if_any();
  }
  // 2 stands for what transformers had before it looked.
  const std::int64_t token = end == nullptr ? 49407 : end->integer;
  texts.end_token = token == 2 ? -1 : token;
  return texts;
}

// Returns its forward.
std::string register_texts(ModelBuilder& b, const TowerDefaults& defaults, const Texts& texts) {
  const Dimensions& d = texts.dims;
  {
    const auto embeddings = b.module("embeddings", formatted("{}TextEmbeddings", defaults.prefix));
    b.buffer("position_ids", {1, d.max_positions}, DType::Int64, false);
    b.embedding("token_embedding", d.vocab, d.hidden, Split::Unknown);
    b.embedding("position_embedding", d.max_positions, d.hidden, Split::Unknown);
  }
  register_layers(b, defaults, d);
  b.layer_norm("final_layer_norm", d.hidden);
  if (defaults.siglip) b.linear("head", texts.projected, d.hidden, true, Cut::Unknown);
  return formatted("embeddings(token_embedding position_embedding) encoder(layers*) final_layer_norm{}",
                   defaults.siglip ? " head" : "");
}

// A tower of texts alone.
ModelSpec build_texts(ConfigReader& config, const TowerDefaults& defaults) {
  const Texts texts = read_texts(config, defaults.siglip);
  ModelBuilder b(config, formatted("{}TextModel", defaults.prefix));
  ModelSpec spec = b.finish(register_texts(b, defaults, texts));
  spec.dims = texts.dims;
  return spec;
}

// What is called first, pictures, is registered behind the texts: layers are counted as they are called.
void count_as_called(ModelSpec& spec, std::int64_t of_texts, std::int64_t of_pictures) {
  for (Module& module : spec.modules) {
    if (module.layer == kNone) continue;
    const bool text = module.layer < of_texts;
    module.layer += static_cast<std::int32_t>(text ? of_pictures : -of_texts);
  }
}

// CLIPConfig: a part of that older name goes before the other.
std::string part_name(ConfigReader& config, std::string_view part) {
  const std::string older = formatted("{}_dict", part);
  const Value* said = config.find(older);
  return said != nullptr && !said->is(Value::Kind::Null) ? older : std::string(part);
}

// What CLIPModel and SiglipModel are made of.
struct BothTowers {
  TowerParts pictures;
  Texts texts;
  std::int64_t projected = 0;  // What CLIP projects both to.
};

// The object that CLIPConfig or SiglipConfig describes a tower by.
const Document& tower_config(ConfigReader& config, std::string_view part, bool siglip) {
  (void)config.find(part);  // Where the older name goes before it.
  return part_of(config, siglip ? std::string(part) : part_name(config, part));
}

BothTowers read_both(ConfigReader& config, const TowerDefaults& defaults) {
  const bool siglip = defaults.siglip;
  ConfigReader seen(tower_config(config, "vision_config", siglip));
  ConfigReader read(tower_config(config, "text_config", siglip));
  for (ConfigReader* part : {&seen, &read}) {
    (void)part->find("model_type");
    (void)part->dtype();
  }
  BothTowers both{read_tower(seen, defaults), read_texts(read, siglip), 0};
  take_remarks(config, seen, siglip ? "siglip_vision_model" : "clip_vision_model");
  take_remarks(config, read, siglip ? "siglip_text_model" : "clip_text_model");
  if (!siglip) both.projected = config.size("projection_dim", 512);
  const std::int64_t width = both.pictures.dims.hidden;
  if (siglip && (!both.pictures.pools || both.texts.projected != width)) {
    config.fault(config.root(),
                 formatted("texts are {} wide and pictures {}: they cannot be compared", both.texts.projected,
                           both.pictures.pools ? std::to_string(width) : "have no head (\"vision_use_head\")"));
  }
  config.throw_if_any();
  return both;
}

// Layers are counted as they are called: pictures come first.
ModelSpec register_both(ModelBuilder& b, const TowerDefaults& defaults, const BothTowers& both) {
  const bool siglip = defaults.siglip;
  b.parameter("logit_scale", siglip ? Shape{1} : Shape(), Split::Unknown);
  if (siglip) b.parameter("logit_bias", {1}, Split::Unknown);
  std::string of_texts;
  std::string of_pictures;
  {
    const auto body = b.module("text_model", formatted("{}TextModel", defaults.prefix));
    of_texts = register_texts(b, defaults, both.texts);
  }
  {
    const auto body = b.module("vision_model", formatted("{}VisionModel", defaults.prefix));
    of_pictures = register_tower(b, defaults, both.pictures);
  }
  if (!siglip) {
    b.linear("visual_projection", both.projected, both.pictures.dims.hidden, false, Cut::Unknown);
    b.linear("text_projection", both.projected, both.texts.dims.hidden, false, Cut::Unknown);
  }
  const auto behind = [&](std::string_view projection) { return siglip ? std::string_view() : projection; };
  ModelSpec spec = b.finish(formatted("vision_model({}){} text_model({}){}", of_pictures, behind(" visual_projection"),
                                      of_texts, behind(" text_projection")));
  count_as_called(spec, both.texts.dims.layers, both.pictures.dims.layers);
  return spec;
}

// CLIPModel, SiglipModel.
ModelSpec build_both(ConfigReader& config, const TowerDefaults& defaults) {
  BothTowers both = read_both(config, defaults);
  ModelBuilder b(config, formatted("{}Model", defaults.prefix));
  ModelSpec spec = register_both(b, defaults, both);
  spec.dims = both.texts.dims;
  spec.dims.layers += both.pictures.dims.layers;
  both.pictures.module = "vision_model";
  both.pictures.projection = ProjectorKind::Contrasted;
  both.pictures.end_token = both.texts.end_token;
  DecoderParts parts = layer_parts(defaults.siglip);
  parts.full = defaults.siglip;
  parts.body = "text_model";
  parts.kinds.assign(static_cast<std::size_t>(both.texts.dims.layers), LayerKind::Full);
  parts.tower = std::make_shared<const TowerParts>(std::move(both.pictures));
  spec.parts = std::make_shared<const DecoderParts>(std::move(parts));
  return spec;
}

// Without `architectures` it is the class of both towers.
ModelSpec build_named(ConfigReader& config, const TowerDefaults& defaults) {
  const std::string classifier = formatted("{}ForImageClassification", defaults.prefix);
  const std::string both = formatted("{}Model", defaults.prefix);
  const Value* classes = config.find("architectures");
  const bool says = classes != nullptr && classes->is(Value::Kind::Array) && !classes->items.empty();
  const std::string named = says ? classes->items.front().string : both;
  if (named == both) return build_both(config, defaults);
  if (named != classifier) {
    config.fault(classes->items.front(),
                 formatted("\"{}\" is not modelled yet; {} and {} are, and {}_vision_model alone", named, both,
                           classifier, defaults.siglip ? "siglip" : "clip"));
    config.throw_if_any();
  }
  return build_classifier(config, defaults);
}

}  // namespace

ModelSpec build_clip_vision_model(ConfigReader& config) { return build_tower(config, kClip); }
ModelSpec build_siglip_vision_model(ConfigReader& config) { return build_tower(config, kSiglip); }
ModelSpec build_clip_text_model(ConfigReader& config) { return build_texts(config, kClip); }
ModelSpec build_siglip_text_model(ConfigReader& config) { return build_texts(config, kSiglip); }
ModelSpec build_idefics3_tower(ConfigReader& config, bool smolvlm) {
  return build_tower(config, smolvlm ? kSmolVlm : kIdefics3);
}

ModelSpec build_clip(ConfigReader& config) { return build_named(config, kClip); }
ModelSpec build_siglip(ConfigReader& config) { return build_named(config, kSiglip); }

}  // namespace dsplan
