// paligemma (1 and 2): siglip's tower, one product, and gemma or gemma2, in which all tokens before the answer see each
// other.
#include "core/format.h"
#include "model/families/composed.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {

ModelSpec build_paligemma(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower");
  }
  const ModelSpec vision = build_part(config, "vision_config", "siglip_vision_model", {"siglip_vision_model"});
  const ModelSpec text = build_part(config, "text_config", "gemma", {"gemma", "gemma2"});
  TowerParts tower = *vision.parts->tower;
  tower.tokens = tower.dims.max_positions;
  tower.read_layers = tower.dims.layers;
  tower.image_token = config.size("image_token_index", 256000, "image_token_id");
  tower.projection = ProjectorKind::OneLinear;
  tower.sees_itself = tower.shows_prefix = true;
  tower.unreached = {"model.vision_tower.head."};
  const std::int64_t width = config.size("projection_dim", 2048);
  if (width != text.dims.hidden) {
    config.fault("projection_dim",
                 formatted("\"projection_dim\" is {}, and the text is {} wide: pictures would not lie "
                           "among it",
                           width, text.dims.hidden));
  }
  const bool tied = config.flag("tie_word_embeddings", true);
  config.throw_if_any();
  const auto projector = [&](Composition& whole, ModuleId outer) {
    return std::vector<ModuleId>{whole.linear(outer, "linear", width, vision.dims.hidden, true)};
  };
  ModelSpec spec =
      compose({"PaliGemmaForConditionalGeneration", "PaliGemmaModel", "PaliGemmaMultiModalProjector", tied}, vision,
              text, tower, projector);
  spec.dims.final_softcap = 0;  // The whole's own head does not bound its logits, whatever the text's would.
  return spec;
}

}  // namespace dsplan
