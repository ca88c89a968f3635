// paligemma (1 and 2): siglip's tower, one product, and gemma or gemma2, in which all tokens before the answer see each
// other.
#include "core/format.h"
#include "model/families/composed.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

// The class lets what stands before the answer see itself, and writes that into the text's part, where gemma's own
// reader takes it for another model. Only false makes another one.
void judge_prefix(ConfigReader& config) {
  constexpr std::string_view kSees = "use_bidirectional_attention";
  std::erase_if(config.gaps, [&](const ConfigGap& gap) { return gap.key == kSees; });
  const Value* sees = part_of(config, "text_config").root.find(kSees);
  if (sees == nullptr || sees->is(Value::Kind::Null)) return;
  if (!sees->is(Value::Kind::Bool)) return config.fault(*sees, formatted("\"{}\" must be true or false", kSees));
  if (!sees->boolean) config.gaps.push_back({sees, std::string(kSees), "a prefix that is read in order"});
}

}  // namespace

ModelSpec build_paligemma(ConfigReader& config) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower");
  }
  const ModelSpec vision = build_part(config, "vision_config", "siglip_vision_model", {"siglip_vision_model"});
  const ModelSpec text = build_part(config, "text_config", "gemma", {"gemma", "gemma2"});
  judge_prefix(config);
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
