// idefics3 and smolvlm: siglip's tower, which is told which patches are a picture's, places side by side through one
// product, and llama.
#include "core/format.h"
#include "model/families/composed.h"
#include "model/families/family.h"
#include "model/parts.h"

namespace dsplan {
namespace {

// Places come to lie side by side by two copies, of which neither is a view of what it copies.
std::int64_t read_beside(ConfigReader& config, const TowerParts& tower) {
  const std::int64_t beside = config.size("scale_factor", 2);
  const std::int64_t side = tower.dims.image / tower.patch;
  if (beside < 2 || side % beside != 0 || side == beside) {
    config.fault("scale_factor", formatted("\"scale_factor\" is {}: {} by {} patches cannot be joined {} by {}", beside,
                                           side, side, beside, beside));
    config.throw_if_any();
  }
  return beside;
}

ModelSpec build_shown(ConfigReader& config, bool smolvlm) {
  if (config.find("vision_config") == nullptr) {
    config.refuse("vision_config", "\"vision_config\" is missing: it describes the tower");
  }
  ConfigReader inner(part_of(config, "vision_config"));
  (void)inner.find("model_type");
  (void)inner.dtype();
  const ModelSpec vision = build_idefics3_tower(inner, smolvlm);
  take_remarks(config, inner, smolvlm ? "smolvlm" : "idefics3");
  inner.throw_if_any();
  const ModelSpec text = build_part(config, "text_config", "llama", {"llama"});
  TowerParts tower = *vision.parts->tower;
  tower.beside = read_beside(config, tower);
  tower.tokens = tower.dims.max_positions / (tower.beside * tower.beside);
  tower.read_layers = tower.dims.layers;
  tower.image_token = config.size("image_token_id", 128257);
  tower.projection = ProjectorKind::Connected;
  tower.by_block = smolvlm;
  tower.module = "vision_model";
  tower.projector = "connector";
  tower.language = "text_model";
  const bool tied = config.flag("tie_word_embeddings", false);
  config.throw_if_any();
  const std::string prefix = smolvlm ? "SmolVLM" : "Idefics3";
  const std::string mlp = formatted("{}SimpleMLP", prefix);
  const std::int64_t wide = config.times(tower.dims.hidden, tower.beside * tower.beside);
  const auto projector = [&](Composition& whole, ModuleId outer) {
    const ModuleId projection = whole.module(outer, "modality_projection", mlp);
    return std::vector<ModuleId>{projection, whole.linear(projection, "proj", text.dims.hidden, wide, false)};
  };
  const std::string root = formatted("{}ForConditionalGeneration", prefix);
  const std::string body = formatted("{}Model", prefix);
  const std::string connector = formatted("{}Connector", prefix);
  return compose({root, body, connector, tied}, vision, text, tower, projector);
}

}  // namespace

ModelSpec build_idefics3(ConfigReader& config) { return build_shown(config, false); }
ModelSpec build_smolvlm(ConfigReader& config) { return build_shown(config, true); }

}  // namespace dsplan
