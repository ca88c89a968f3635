// gemma3: siglip's tower, whose places are averaged to fewer and projected, and gemma3_text, which reads them.
#include "core/format.h"
#include "model/families/composed.h"
#include "model/families/family.h"

namespace dsplan {
namespace {

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
