// Language models that are shown pictures: llava, a tower of clip or siglip and two linear layers before it; gemma3,
// siglip's tower, whose places are averaged to fewer.
#include "core/format.h"
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

}  // namespace

ModelSpec build_llava(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower");
  }
  const ModelSpec vision =
      build_part(config, "vision_config", "clip_vision_model", {"clip_vision_model", "siglip_vision_model"});
  const ModelSpec text = build_part(config, "text_config", "llama", {"llama", "mistral", "qwen2"});
  const TowerParts tower = read_shown(config, vision);
  const bool bias = config.flag("multimodal_projector_bias", true);
  const bool tied = config.flag("tie_word_embeddings", false);
  config.throw_if_any();

  const std::int64_t width = text.dims.hidden;
  const auto projector = [&](Composition& whole, ModuleId outer) {
    const ModuleId first = whole.linear(outer, "linear_1", width, vision.dims.hidden, bias);
    const ModuleId act = whole.module(outer, "act", activation_class(tower.projector_activation));
    const ModuleId second = whole.linear(outer, "linear_2", width, width, bias);
    return std::vector<ModuleId>{first, act, second};
  };
  return compose({"LlavaForConditionalGeneration", "LlavaModel", "LlavaMultiModalProjector", tied}, vision, text, tower,
                 projector);
}

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

}  // namespace dsplan
