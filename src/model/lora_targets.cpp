#include "model/lora_targets.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

bool ends_with_path(std::string_view path, std::string_view target) {
  if (path == target) return true;
  return path.size() > target.size() && path.ends_with(target) && path[path.size() - target.size() - 1] == '.';
}

// What was a linear module in transformers 4, and the parameter that it is a part of now.
struct Renamed {
  std::string_view was;
  std::string_view parameter;
};
constexpr std::string_view kBothOf = "gate_up_proj";  // Of two modules, which have to be named together.
constexpr std::array<Renamed, 4> kOfMixtral{
    {{"gate", "gate.weight"}, {"w1", kBothOf}, {"w3", kBothOf}, {"w2", "down_proj"}}};
constexpr std::array<Renamed, 4> kOfQwen2Moe{
    {{"gate", "gate.weight"}, {"gate_proj", kBothOf}, {"up_proj", kBothOf}, {"down_proj", "down_proj"}}};
// transformers' conversion_mapping.py says which families are converted as qwen2_moe was. qwen2_moe itself is not
// there.
constexpr std::array<std::string_view, 16> kAsQwen2Moe{
    "cohere2_moe", "deepseek_v2", "deepseek_v3",   "dots1",          "ernie4_5_moe", "exaone_moe",
    "flex_olmo",   "glm4_moe",    "glm4_moe_lite", "hunyuan_v1_moe", "mellum",       "olmoe",
    "qwen3_moe",   "qwen3_next",  "solar_open",    "longcat_flash"};

std::span<const Renamed> renamed_in(std::string_view family) {
  if (family == "mixtral" || family == "minimax_m2") return kOfMixtral;
  if (std::count(kAsQwen2Moe.begin(), kAsQwen2Moe.end(), family) > 0) return kOfQwen2Moe;
  return {};
}

// Names that a mixture's experts have in some release or family: where they match nothing, peft adapts the rest.
constexpr std::array<std::string_view, 8> kOfExperts{"gate",      "gate_proj", "up_proj", "gate_up_proj",
                                                     "down_proj", "w1",        "w2",      "w3"};

// "all-linear" is every linear module but the output embedding.
bool among_all_linear(const Module& module) { return is_linear(module) && module.path != "lm_head"; }

// peft refuses some projections of these mixers (_check_lora_target_modules_mamba, tuners/tuners_utils.py).
bool scans(const ModelSpec& model) { return model.family == "mamba2" || model.family == "nemotron_h"; }

// LoraModel._prepare_adapter_config. Where peft knows none and stops, every linear module but the head is taken.
std::vector<std::string> names_of(const ModelSpec& model, const Lora& lora, const Place& place) {
  if (!lora.targets.empty()) return lora.targets;
  std::vector<std::string> usual = usual_targets(model.family);
  if (!usual.empty() || !lora.parameters.empty()) return usual;
  if (!scans(model)) return {"all-linear"};
  throw Refusal({place.says(formatted("LoRA without targets: peft 0.21 knows none of its own for {}", model.family),
                            "name them, as targets=in_proj")});
}

// Linear modules of classes whose forward gives more than the product, to which peft's would be added.
bool gives_more(const Module& module) { return module.type == "Llama4Router" || module.type == "PhimoeTopKRouter"; }

class Chooser {
 public:
  Chooser(const ModelSpec& model, const Lora& lora, const Place& place)
      : model_(model), lora_(lora), place_(place), renamed_(renamed_in(model.family)) {
    made_.linear.resize(model.modules.size());
    made_.parameters.resize(model.modules.size());
  }

  LoraTargets run() {
    std::vector<std::string> names = names_of(model_, lora_, place_);
    if (!renamed_.empty()) names = converted(names);
    for (const std::string& name : names) choose(name);
    for (const auto& [name, ranks] : parameters_) (void)choose_parameter(name, ranks);
    for (const std::string& name : lora_.parameters) {
      if (choose_parameter(name, 1)) continue;
      faults_.add(place_.says(formatted("LoRA parameter \"{}\" matches none of {}", name, model_.name),
                              "it is the end of a parameter's name, as experts.down_proj"));
    }
    refuse_unmatched();
    refuse_what_peft_refuses();
    faults_.throw_if_any();
    return std::move(made_);
  }

 private:
  // _convert_peft_config_moe: what is left of the names; those of experts and routers go to `parameters_`.
  std::vector<std::string> converted(const std::vector<std::string>& names) {
    std::vector<std::string> left;
    std::set<std::string_view> fused;
    for (const std::string& name : names) {
      if (name == "all-linear") {
        for (const std::string& leaf : leaves()) left.push_back(leaf);
        for (const Renamed& one : renamed_) take(one, fused);
        continue;
      }
      const auto one = std::find_if(renamed_.begin(), renamed_.end(),
                                    [&](const Renamed& row) { return ends_with_path(name, row.was); });
      if (one == renamed_.end()) {
        left.push_back(name);
      } else {
        take(*one, fused);
      }
    }
    if (fused.size() == 1) {
      faults_.add(place_.says(formatted("LoRA on \"{}\" alone, which peft refuses", *fused.begin()),
                              formatted("it is one half of {}: name both", kBothOf)));
    }
    return left;
  }

  void take(const Renamed& one, std::set<std::string_view>& fused) {
    const bool both = one.parameter == kBothOf;
    if (both) fused.insert(one.was);
    if (std::none_of(parameters_.begin(), parameters_.end(),
                     [&](const auto& row) { return row.leaf == one.parameter; })) {
      parameters_.push_back({std::string(one.parameter), both ? 2 : 1});
    }
  }

  // The last names of what "all-linear" would be, without those that are experts' as well.
  [[nodiscard]] std::vector<std::string> leaves() const {
    std::vector<std::string> made;
    for (const Module& module : model_.modules) {
      if (!among_all_linear(module)) continue;
      std::string leaf = module.path.substr(module.path.rfind('.') + 1);
      const bool known =
          std::any_of(renamed_.begin(), renamed_.end(), [&](const Renamed& one) { return one.was == leaf; });
      if (!known && std::find(made.begin(), made.end(), leaf) == made.end()) made.push_back(std::move(leaf));
    }
    return made;
  }

  // peft converts these names in glm4v_moe, too; what it makes of them was not compared.
  [[nodiscard]] bool converts_unseen(const std::string& target) const {
    if (model_.family != "glm4v_moe") return false;
    return target == "all-linear" || std::count(kOfExperts.begin(), kOfExperts.end(), target) > 0;
  }

  void choose(const std::string& target) {
    if (converts_unseen(target)) {
      return faults_.add(place_.says(formatted("LoRA on \"{}\" of glm4v_moe, where peft adapts the experts too, is not "
                                               "modelled yet",
                                               target),
                                     "the projections of attention are: q_proj, k_proj, v_proj, o_proj"));
    }
    if (scans(model_) && (target == "out_proj" || target == "conv1d" || target == "all-linear")) {
      return faults_.add(place_.says(formatted("LoRA on \"{}\" of {}, which peft refuses", target, model_.family),
                                     "its mixers' other projection is in_proj"));
    }
    bool any = false;
    for (std::size_t at = 0; at < model_.modules.size(); ++at) {
      const Module& module = model_.modules[at];
      const bool all = target == "all-linear";
      if (all ? !among_all_linear(module) && !gives_more(module) : !ends_with_path(module.path, target)) continue;
      any = true;
      made_.linear[at] = true;
      if (gives_more(module)) {
        faults_.add(
            place_.says(formatted("LoRA on {}, a {}, to whose results peft cannot add", module.path, module.type),
                        "name the other modules, as targets=q_proj+k_proj+v_proj+o_proj"));
      } else if (!is_linear(module)) {
        faults_.add(place_.says(formatted("LoRA on {}, a {}, is not modelled yet", module.path, module.type),
                                "Linear and Conv1D modules are"));
      }
    }
    matched_ = matched_ || any;
    if (any || (model_.dims.experts > 0 && std::count(kOfExperts.begin(), kOfExperts.end(), target) > 0)) return;
    unmatched_.push_back(target);
  }

  // BaseTuner.inject_adapter asks that one of the names be there: lists are written for several families.
  void refuse_unmatched() {
    if (matched_) return;
    for (const std::string& target : unmatched_) {
      faults_.add(place_.says(formatted("LoRA target \"{}\" matches no module of {}", target, model_.name),
                              "a target is the end of a module's path, as q_proj"));
    }
  }

  // BaseTuner._inject_parameters. "gate.weight" is a gate's of a class of its own; others have a linear module inside.
  bool choose_parameter(const std::string& target, std::int64_t ranks) {
    bool any = false;
    for (const Parameter& parameter : model_.parameters) {
      if (!ends_with_path(parameter.name, target)) continue;
      any = true;
      const auto at = static_cast<std::size_t>(parameter.module);
      const std::string& name = parameter.name;
      wrap(at, {name.substr(name.rfind('.') + 1), ranks});
      const std::uint8_t rank = parameter.shape.rank;
      const bool bank = rank == 3 && parameter.shape.dims[0] > 1;
      if (made_.linear[at] || is_linear(model_.modules[at]) || !(bank || rank == 2)) {
        faults_.add(place_.says(formatted("LoRA on the parameter {} is not modelled yet", name),
                                "those of fused experts and of routers are"));
      }
    }
    matched_ = matched_ || any;
    return any;
  }

  // In the order in which the module has them, whatever order the names had.
  void wrap(std::size_t at, WrappedParameter wrapped) {
    std::vector<WrappedParameter>& list = made_.parameters[at];
    const auto before = [&](const WrappedParameter& one) {
      return model_.parameter(static_cast<ModuleId>(at), one.leaf) <
             model_.parameter(static_cast<ModuleId>(at), wrapped.leaf);
    };
    const auto place = std::find_if_not(list.begin(), list.end(), before);
    if (place == list.end() || place->leaf != wrapped.leaf) list.insert(place, std::move(wrapped));
  }

  void refuse_what_peft_refuses() {
    for (std::size_t at = 0; at < model_.modules.size(); ++at) {
      const Module& module = model_.modules[at];
      if (made_.linear[at] && lora_.dora && module.type != "Linear" && is_linear(module)) {
        faults_.add(place_.says(formatted("DoRA on {}, a {}, is not modelled yet", module.path, module.type)));
      }
      if (made_.parameters[at].empty() || (lora_.dropout == 0 && !lora_.dora)) continue;
      faults_.add(place_.says(formatted("LoRA with {} on the parameters of {}, which peft refuses",
                                        lora_.dora ? "DoRA" : "dropout", module.path),
                              "leave it away, or name modules of attention alone"));
      return;
    }
  }

  const ModelSpec& model_;
  const Lora& lora_;
  const Place& place_;
  std::span<const Renamed> renamed_;
  std::vector<WrappedParameter> parameters_;  // By the ends of their names.
  std::vector<std::string> unmatched_;
  bool matched_ = false;
  LoraTargets made_;
  Diagnostics faults_;
};

}  // namespace

bool is_linear(const Module& module) {
  return module.type == "Linear" || module.type == "Conv1D" || module.type == "FalconLinear";
}

bool stands_for_parameter(const ModelSpec& model, std::string_view target) {
  const std::span<const Renamed> renamed = renamed_in(model.family);
  return std::any_of(renamed.begin(), renamed.end(),
                     [&](const Renamed& one) { return ends_with_path(target, one.was); });
}

LoraTargets lora_targets(const ModelSpec& model, const Lora& lora, const Place& place) {
  return Chooser(model, lora, place).run();
}

}  // namespace dsplan
