// Language models that are shown pictures: llava, a tower of clip or siglip and two linear layers before it; gemma3,
// siglip's tower, whose places are averaged to fewer; internvl, a tower of its own, of whose places four become one.
#include <algorithm>

#include "core/format.h"
#include "model/families/builder.h"
#include "model/families/composed.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

// Behind how many layers of the tower the projector reads: hidden_states[vision_feature_layer], of which the first goes
// into the first layer.
std::int64_t read_feature_layer(ConfigReader& config, std::int64_t layers) {
  const Value* said = config.find("vision_feature_layer");
  if (said == nullptr) return layers - 1;
  if (said->is(Value::Kind::Array)) {
    config.fault(*said, "\"vision_feature_layer\": several layers joined are not modelled yet");
  } else if (!said->is(Value::Kind::Integer) || said->integer > layers || said->integer < -layers - 1) {
    config.fault(*said, formatted("\"vision_feature_layer\" must be from -{} to {}", layers + 1, layers));
  } else {
    return said->integer < 0 ? said->integer + layers + 1 : said->integer;
  }
  return layers - 1;
}

// "default" leaves out the first place, clip's class token; "full" takes all.
bool read_drops_first(ConfigReader& config) {
  const std::string strategy = config.maybe_string("vision_feature_select_strategy").value_or("default");
  if (strategy != "default" && strategy != "full") {
    config.fault("vision_feature_select_strategy",
                 formatted("\"vision_feature_select_strategy\" is \"default\" or \"full\", not \"{}\"", strategy));
  }
  return strategy == "default";
}

TowerParts read_shown(ConfigReader& config, const ModelSpec& vision) {
  TowerParts tower = *vision.parts->tower;
  tower.projector_activation = config.activation("projector_hidden_act", "gelu");
  tower.read_layers = read_feature_layer(config, tower.dims.layers);
  tower.drops_first = read_drops_first(config);
  tower.tokens = tower.dims.max_positions - (tower.drops_first ? 1 : 0);
  tower.image_token = config.size("image_token_index", 32000, "image_token_id");
  tower.unreached = {"model.vision_tower.post_layernorm.", "model.vision_tower.head."};
  for (std::int64_t layer = tower.read_layers; layer < tower.dims.layers; ++layer) {
    tower.unreached.push_back(formatted("model.vision_tower.encoder.layers.{}.", layer));
  }
  return tower;
}

// image_grid_pinpoints: what pictures are made to fit. Places of squares come to lie side by side.
void read_cuts(ConfigReader& config, TowerParts& tower) {
  const std::int64_t side = tower.dims.image;
  tower.cuts = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
  const Value* said = config.find("image_grid_pinpoints");
  if (said != nullptr && !said->is(Value::Kind::Null)) {
    tower.cuts.clear();
    for (const Value& one : said->items) {
      const bool two =
          one.items.size() == 2 && one.items[0].is(Value::Kind::Integer) && one.items[1].is(Value::Kind::Integer);
      if (two) tower.cuts.push_back({one.items[0].integer, one.items[1].integer});
      if (!two) config.fault(one, "\"image_grid_pinpoints\" lists heights and widths, two numbers each");
    }
    if (said->items.empty()) config.fault(*said, "\"image_grid_pinpoints\" lists heights and widths, and has none");
  }
  for (const std::array<std::int64_t, 2>& one : tower.cuts) {
    if (one[0] > 0 && one[1] > 0 && one[0] % side == 0 && one[1] % side == 0) continue;
    config.fault("image_grid_pinpoints",
                 formatted("{} by {} pixels are no squares of {} pixels a side", one[0], one[1], side));
  }
  if (tower.class_token != tower.drops_first) {
    config.fault(
        "vision_feature_select_strategy",
        "places of squares come to lie side by side: \"default\" leaves out clip's class token, and \"full\" is "
        "of a tower without one");
  }
}

// As many tokens as a square has that divides the patches' own.
std::int64_t read_tokens(ConfigReader& config, const TowerParts& tower) {
  const std::int64_t tokens = config.size("mm_tokens_per_image", 256);
  const std::int64_t side = tower.dims.image / tower.patch;
  for (std::int64_t few = 1; few <= side; ++few) {
    if (few * few == tokens && side % few == 0) return tokens;
  }
  config.fault(
      "mm_tokens_per_image",
      formatted("\"mm_tokens_per_image\" is {}: {} by {} patches cannot be averaged to so many", tokens, side, side));
  return tokens;
}

ModelSpec build_two_linears(ConfigReader& config, bool cuts) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower");
  }
  const ModelSpec vision =
      build_part(config, "vision_config", "clip_vision_model", {"clip_vision_model", "siglip_vision_model"});
  const ModelSpec text = build_part(config, "text_config", "llama", {"llama", "mistral", "qwen2"});
  TowerParts tower = read_shown(config, vision);
  if (cuts) read_cuts(config, tower);
  const bool bias = config.flag("multimodal_projector_bias", true);
  // LlavaConfig takes over what older files have in the text's part; LlavaNextConfig does not.
  const bool within = std::any_of(text.parameters.begin(), text.parameters.end(),
                                  [](const Parameter& one) { return one.tied_to != kNone; });
  const bool tied = config.flag("tie_word_embeddings", false) || (within && !cuts);
  config.throw_if_any();

  const std::int64_t width = text.dims.hidden;
  const auto projector = [&](Composition& whole, ModuleId outer) {
    const ModuleId first = whole.linear(outer, "linear_1", width, vision.dims.hidden, bias);
    const ModuleId act = whole.module(outer, "act", activation_class(tower.projector_activation));
    const ModuleId second = whole.linear(outer, "linear_2", width, width, bias);
    return std::vector<ModuleId>{first, act, second};
  };
  const std::string prefix = cuts ? "LlavaNext" : "Llava";
  const std::string root = formatted("{}ForConditionalGeneration", prefix);
  const std::string body = formatted("{}Model", prefix);
  const std::string between = formatted("{}MultiModalProjector", prefix);
  return compose({root, body, between, tied, cuts ? "image_newline" : ""}, vision, text, tower, projector);
}

}  // namespace

ModelSpec build_llava(ConfigReader& config) {
  const Value* const vision = config.find("vision_config");
  const Value* const type = vision == nullptr ? nullptr : vision->find("model_type");
  if (type != nullptr && type->is(Value::Kind::String) && type->string == "pixtral")
    return build_llava_of_pixtral(config);
  return build_two_linears(config, false);
}
ModelSpec build_llava_next(ConfigReader& config) { return build_two_linears(config, true); }

ModelSpec build_gemma3(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower",
                  "the text part alone is model_type \"gemma3_text\"");
  }
  const ModelSpec vision = build_part(config, "vision_config", "siglip_vision_model", {"siglip_vision_model"});
  const ModelSpec text = build_part(config, "text_config", "gemma3_text", {"gemma3_text"});
  TowerParts tower = *vision.parts->tower;
  tower.tokens = read_tokens(config, tower);
  tower.read_layers = tower.dims.layers;
  tower.image_token = config.size("image_token_index", 262144, "image_token_id");
  tower.projection = ProjectorKind::Pooled;
  tower.sees_itself = true;
  tower.unreached = {"model.vision_tower.head."};
  config.throw_if_any();
  const auto projector = [&](Composition& whole, ModuleId outer) {
    whole.parameter(outer, "mm_input_projection_weight", {vision.dims.hidden, text.dims.hidden});
    const ModuleId norm = whole.module(outer, "mm_soft_emb_norm", "Gemma3RMSNorm");
    whole.parameter(norm, "weight", {vision.dims.hidden});
    const ModuleId pool = whole.module(outer, "avg_pool", "AvgPool2d");
    return std::vector<ModuleId>{pool, norm};
  };
  return compose({"Gemma3ForConditionalGeneration", "Gemma3Model", "Gemma3MultiModalProjector", true}, vision, text,
                 tower, projector);
}

namespace {

// A number, or as many for height and width, which have to be equal.
std::int64_t read_square(ConfigReader& config, std::string_view key, std::int64_t fallback) {
  const Value* said = config.find(key);
  if (said == nullptr || !said->is(Value::Kind::Array)) return config.size(key, fallback);
  const bool square = said->items.size() == 2 && said->items[0].is(Value::Kind::Integer) &&
                      said->items[1].is(Value::Kind::Integer) && said->items[0].integer == said->items[1].integer &&
                      said->items[0].integer > 0;
  if (square) return said->items[0].integer;
  config.fault(*said, formatted("\"{}\" must be one positive number, or that number twice", key));
  return fallback;
}

struct InternVision {
  TowerParts tower;
  bool bias = false;
  bool head_norms = false;
  bool layer_norm = true;
};

DecoderParts intern_layers(bool layer_norm, std::int64_t layers) {
  DecoderParts parts;
  parts.norm = layer_norm ? NormKind::Layer : NormKind::Rms;
  parts.head_norm = HeadNorm::WholeBehind;
  parts.mlp = MlpKind::Plain;
  parts.full = parts.views_behind = parts.bare_softmax = true;
  parts.attention = "attention";
  parts.output = "projection_layer";
  parts.output_dropout = "projection_dropout";
  parts.before_attention = "layernorm_before";
  parts.before_mlp = "layernorm_after";
  parts.up = "fc1";
  parts.down = "fc2";
  parts.activation = "activation_fn";
  parts.kinds.assign(static_cast<std::size_t>(layers), LayerKind::Full);
  return parts;
}

InternVision read_intern(ConfigReader& config) {
  InternVision made;
  TowerParts& tower = made.tower;
  Dimensions& d = tower.dims;
  d.hidden = config.size("hidden_size", 1024);
  d.ffn = config.size("intermediate_size", 4096);
  d.layers = config.layer_count("num_hidden_layers", 24);
  d.heads = d.kv_heads = config.size("num_attention_heads", 16);
  config.require_divides("num_attention_heads", d.heads, "hidden_size", d.hidden);
  d.activation = config.activation("hidden_act", "gelu");
  d.attention_dropout = config.probability("attention_dropout", 0);
  d.embedding_dropout = d.residual_dropout = config.probability("hidden_dropout_prob", 0);
  d.norm_epsilon = config.maybe_number("layer_norm_eps").value_or(1e-6);
  d.image = read_square(config, "image_size", 448);
  tower.patch = read_square(config, "patch_size", 14);
  tower.channels = config.size("num_channels", 3);
  made.bias = config.flag("attention_bias", false);
  made.head_norms = config.flag("use_qk_norm", false);
  const std::string norm = config.maybe_string("norm_type").value_or("layer_norm");
  made.layer_norm = norm == "layer_norm";
  if (!made.layer_norm && norm != "rms_norm") {
    config.fault("norm_type", formatted("\"norm_type\" is \"layer_norm\" or \"rms_norm\", not \"{}\"", norm));
  }
  config.throw_if_any();
  d.head_dim = d.hidden / d.heads;
  const std::int64_t side = d.image / tower.patch;
  if (side < 2 || side % 2 != 0) {
    config.fault("image_size", formatted("{} by {} patches cannot be joined two by two", side, side));
    config.throw_if_any();
  }
  d.max_positions = config.plus(config.times(side, side), 1);
  tower.class_token = tower.scales = tower.drops_first = true;
  tower.projection = ProjectorKind::Shuffled;
  tower.tokens = side * side / 4;
  tower.read_layers = d.layers;
  tower.layers = intern_layers(made.layer_norm, d.layers);
  return made;
}

void register_intern_norm(ModelBuilder& b, const InternVision& seen, std::string_view name) {
  if (seen.layer_norm) return b.layer_norm(name, seen.tower.dims.hidden);
  b.rms_norm(name, seen.tower.dims.hidden, "InternVLVisionRMSNorm");
}

void register_intern_attention(ModelBuilder& b, const InternVision& seen) {
  const std::int64_t width = seen.tower.dims.hidden;
  const auto attention = b.module("attention", "InternVLVisionAttention");
  for (const std::string_view name : {"q_proj", "k_proj", "v_proj"}) {
    b.linear(name, width, width, seen.bias, Cut::Unknown);
  }
  b.linear("projection_layer", width, width, true, Cut::Unknown);
  b.leaf("projection_dropout", "Identity");
  for (const std::string_view name : {"q_norm", "k_norm"}) {
    if (seen.head_norms) {
      b.rms_norm(name, width, "InternVLVisionRMSNorm");
    } else {
      b.leaf(name, "Identity");
    }
  }
}

void register_intern_layers(ModelBuilder& b, const InternVision& seen) {
  const Dimensions& d = seen.tower.dims;
  const auto encoder = b.module("encoder", "InternVLVisionEncoder");
  const auto list = b.module("layer", "ModuleList");
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const auto layer = b.layer(i, "InternVLVisionLayer",
                               "layernorm_before attention(q_proj k_proj v_proj q_norm k_norm projection_layer "
                               "projection_dropout) layernorm_after mlp(fc1 activation_fn fc2) dropout");
    b.parameter("lambda_1", {d.hidden}, Split::Unknown);
    b.parameter("lambda_2", {d.hidden}, Split::Unknown);
    register_intern_attention(b, seen);
    {
      const auto mlp = b.module("mlp", "InternVLVisionMLP");
      b.activation("activation_fn", d.activation);
      b.linear("fc1", d.ffn, d.hidden, true, Cut::Unknown);
      b.linear("fc2", d.hidden, d.ffn, true, Cut::Unknown);
    }
    register_intern_norm(b, seen, "layernorm_before");
    register_intern_norm(b, seen, "layernorm_after");
    b.leaf("dropout", "Dropout");
  }
}

ModelSpec build_intern_tower(const ConfigReader& config, const InternVision& seen) {
  const TowerParts& tower = seen.tower;
  const Dimensions& d = tower.dims;
  ModelBuilder b(config, "InternVLVisionModel");
  {
    const auto embeddings = b.module("embeddings", "InternVLVisionEmbeddings");
    b.parameter("cls_token", {1, 1, d.hidden}, Split::Unknown);
    b.parameter("position_embeddings", {1, d.max_positions, d.hidden}, Split::Unknown);
    {
      const auto patches = b.module("patch_embeddings", "InternVLVisionPatchEmbeddings");
      const auto convolution = b.module("projection", "Conv2d");
      b.parameter("weight", {d.hidden, tower.channels, tower.patch, tower.patch}, Split::Unknown);
      b.parameter("bias", {d.hidden}, Split::Unknown);
    }
    b.leaf("dropout", "Dropout");
  }
  register_intern_layers(b, seen);
  b.leaf("layernorm", "Identity");
  return b.finish("embeddings(patch_embeddings(projection) dropout) encoder(layer*) layernorm");
}

}  // namespace

ModelSpec build_internvl(ConfigReader& config) {
  ConfigReader vision(part_of(config, "vision_config"));
  (void)vision.find("model_type");
  (void)vision.dtype();
  InternVision seen = read_intern(vision);
  take_remarks(config, vision, "internvl");
  vision.throw_if_any();
  const ModelSpec text = build_part(config, "text_config", "qwen2", {"qwen2", "qwen3", "llama", "mistral"});
  TowerParts& tower = seen.tower;
  tower.projector_activation = config.activation("projector_hidden_act", "gelu");
  tower.image_token = config.size("image_token_id", 151667);
  const Value* ratio = config.find("downsample_ratio");
  if (ratio != nullptr && ratio->real != 0.5) {
    config.fault(*ratio, "\"downsample_ratio\" is 0.5: four places become one");
  }
  const bool tied = config.flag("tie_word_embeddings", true);
  config.throw_if_any();
  const ModelSpec tower_spec = build_intern_tower(vision, seen);
  const std::int64_t width = text.dims.hidden;
  const std::int64_t wide = 4 * tower.dims.hidden;
  const auto projector = [&](Composition& whole, ModuleId outer) {
    const ModuleId norm = whole.module(outer, "layer_norm", "LayerNorm");
    whole.parameter(norm, "weight", {wide});
    whole.parameter(norm, "bias", {wide});
    const ModuleId first = whole.linear(outer, "linear_1", width, wide, true);
    const ModuleId act = whole.module(outer, "act", activation_class(tower.projector_activation));
    const ModuleId second = whole.linear(outer, "linear_2", width, width, true);
    return std::vector<ModuleId>{norm, first, act, second};
  };
  return compose({"InternVLForConditionalGeneration", "InternVLModel", "InternVLMultiModalProjector", tied}, tower_spec,
                 text, tower, projector);
}

}  // namespace dsplan
