#include "model/traits.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "core/format.h"
#include "core/module_graph.h"
#include "model/pictures.h"

namespace dsplan {

std::int64_t picture_tokens(const ModelSpec& model, const std::vector<std::int64_t>& image_size) {
  if (model.parts == nullptr || model.parts->tower == nullptr) return 0;
  return tokens_of(*model.parts->tower, image_size);
}

const TowerParts* sized_tower(const ModelSpec& model) {
  const TowerParts* tower = model.parts == nullptr ? nullptr : model.parts->tower.get();
  return tower == nullptr || !tower->any_size() ? nullptr : tower;
}

const Parameter* first_scalar(const ModelSpec& model) {
  const auto scalar = [](const Parameter& one) { return one.shape.rank == 0 && one.tied_to == kNone; };
  const auto found = std::find_if(model.parameters.begin(), model.parameters.end(), scalar);
  return found == model.parameters.end() ? nullptr : &*found;
}

std::span<const std::string_view> unread_ends(const ModelSpec& model) {
  // Read where patches are masked, as no classifier's are.
  static constexpr std::array<std::string_view, 1> kMasked{"mask_token"};
  // Gemma3nTextAltUp.correct reads the weight of its coefficients, and calls neither the module nor adapters around it.
  static constexpr std::array<std::string_view, 3> kAltup{"altup.correct_output_scale",
                                                          "altup.correction_coefs.lora_A.default.weight",
                                                          "altup.correction_coefs.lora_B.default.weight"};
  if (model.family == "dinov2") return kMasked;
  if (model.parts == nullptr || model.parts->altup.inputs == 0) return {};
  return std::span(kAltup).subspan(model.parts->altup.scales ? 1 : 0);
}

namespace {

// By parameter; of tied ones the first speaks for all.
std::vector<bool> receives_gradients(const ModuleGraph& recording) {
  std::vector<bool> reached(recording.parameters.size(), false);
  for (const RecordedOp& op : recording.ops) {
    for (const RecordedGradient& gradient : op.gradients) {
      if (gradient.to < 0) reached[static_cast<std::size_t>(-1 - gradient.to)] = true;
    }
  }
  for (std::size_t at = 0; at < reached.size(); ++at) {
    const std::int32_t first = recording.parameters[at].tied_to;
    if (first != kNone) reached[at] = reached[static_cast<std::size_t>(first)];
  }
  return reached;
}

// What is in the names of parameters that no loss reaches.
std::vector<std::string> unreached_parts(const TowerParts& tower, std::int64_t images) {
  std::vector<std::string> parts = tower.unreached;
  if (!tower.beside_text() || images > 0) return parts;
  for (const std::string_view part : {tower.module, tower.projector}) parts.push_back(formatted("{}.", part));
  parts.emplace_back("image_newline");
  return parts;
}

}  // namespace

std::vector<std::string> unreached_parameters(const ModelSpec& model, const std::vector<bool>& trained,
                                              std::int64_t images) {
  std::vector<std::string> globs;
  if (model.recording) {
    const std::vector<bool> reached = receives_gradients(*model.recording);
    for (std::size_t at = 0; at < reached.size(); ++at) {
      if (trained[at] && !reached[at]) globs.push_back(model.parameters[at].name);
    }
  }
  for (const std::string_view end : unread_ends(model)) {
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      if (!trained[at] || !model.parameters[at].name.ends_with(end)) continue;
      globs.push_back("*" + std::string(end));
      break;
    }
  }
  if (model.parts == nullptr || model.parts->tower == nullptr) return globs;
  for (const std::string& beginning : unreached_parts(*model.parts->tower, images)) {
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      const std::size_t found = model.parameters[at].name.find(beginning);
      if (!trained[at] || found == std::string::npos) continue;
      globs.push_back(model.parameters[at].name.substr(0, found + beginning.size()) + "*");
      break;
    }
  }
  return globs;
}

bool contrasts(const ModelSpec& model) {
  return model.parts != nullptr && model.parts->tower != nullptr &&
         model.parts->tower->projection == ProjectorKind::Contrasted;
}

bool looks_at_pictures(const ModelSpec& model) { return model.parts != nullptr && !model.parts->crossing.empty(); }

bool is_body(const ModelSpec& model) {
  if (model.code == ModelCode::Torchtitan || contrasts(model)) return false;
  const std::string& name = model.graph_class;
  return name.ends_with("Model") && !name.ends_with("LMHeadModel") && name != "MarianMTModel";
}

std::vector<ModuleId> lists_of_layers(const ModelSpec& model) {
  std::vector<ModuleId> lists(static_cast<std::size_t>(model.dims.layers), kNone);  // One may be called several times.
  for (const Module& module : model.modules) {
    const bool outermost = module.parent == kNone || model.module_at(module.parent).layer == kNone;
    if (module.layer == kNone || !outermost) continue;
    lists.resize(std::max(lists.size(), static_cast<std::size_t>(module.layer) + 1), kNone);
    lists[static_cast<std::size_t>(module.layer)] = module.parent;
  }
  return lists;
}

bool regresses(const ModelSpec& model) {
  return model.dims.labels == 1 && model.graph_class.ends_with("ForSequenceClassification");
}

bool is_roberta(const ModelSpec& model) {
  return model.family == "roberta" || model.family == "xlm-roberta" || model.family == "camembert" ||
         model.family == "data2vec-text";
}

std::string_view body_of_roberta(const ModelSpec& model) {
  return model.family == "data2vec-text" ? "data2vec_text" : "roberta";
}

bool biases_positions(const ModelSpec& model) { return model.family.ends_with("t5"); }

bool eager_alone(const ModelSpec& model) {
  constexpr std::array<std::string_view, 5> kFamilies{"bloom", "gptj", "gpt_neo", "mamba2", "deberta-v2"};
  return std::find(kFamilies.begin(), kFamilies.end(), model.family) != kFamilies.end() ||
         (model.parts != nullptr && (model.parts->sinks || model.parts->sinks_scale));
}

bool always_masked(const ModelSpec& model) { return model.family == "falcon"; }

bool shares_one_head(const ModelSpec& model) {
  return model.family == "falcon" && model.dims.kv_heads == 1 && model.dims.heads > 1 &&
         model.parts->projections == Projections::Fused;
}

bool own_value_width(const ModelSpec& model) {
  return model.parts != nullptr && model.parts->projections == Projections::Latent &&
         model.parts->latent.value != model.dims.head_dim;
}

bool masks_pictures(const ModelSpec& model) {
  return model.parts != nullptr && model.parts->tower != nullptr && model.parts->tower->sees_itself;
}

bool masks_some_layers(const ModelSpec& model) {
  if (masks_pictures(model)) return true;  // All of the text's, none of the tower's.
  return model.parts != nullptr && model.parts->some_slide() && model.parts->some_see_all();
}

bool reaches_window(const ModelSpec& model, std::int64_t seq) {
  if (masks_pictures(model)) return true;
  const bool slides = model.parts == nullptr || model.parts->some_slide();
  return slides && model.dims.sliding_window > 0 && seq >= model.dims.sliding_window;
}

bool keeps_heads_grouped(Version transformers, Version torch) {
  return transformers >= Version{4, 54, 0} && torch >= Version{2, 5, 0};
}

}  // namespace dsplan
