#include "model/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

bool is_linear(const Module& module) {
  return module.type == "Linear" || module.type == "Conv1D" || module.type == "FalconLinear";
}

bool ends_with_module(std::string_view path, std::string_view target) {
  if (path == target) return true;
  return path.size() > target.size() && path.ends_with(target) && path[path.size() - target.size() - 1] == '.';
}

// peft takes these names, as transformers 4 had them, for routers and fused experts, and gives those adapters of
// another rank (utils/transformers_weight_conversion.py).
constexpr std::array<std::string_view, 8> kOfExperts{"all-linear", "gate",    "w1",           "w2",
                                                     "w3",         "up_proj", "gate_up_proj", "down_proj"};

// "all-linear" is every linear module but the output embedding.
bool among_all_linear(const Module& module) { return is_linear(module) && module.path != "lm_head"; }

struct RefusedTarget {
  std::string message, hint;
};

std::optional<RefusedTarget> refused_target(const ModelSpec& model, const std::string& target) {
  if (model.dims.experts > 0 &&
      (target == "gate_proj" || std::count(kOfExperts.begin(), kOfExperts.end(), target) > 0)) {
    return RefusedTarget{
        formatted("LoRA on \"{}\" of a mixture, of routers and fused experts, is not modelled yet", target),
        "the projections of attention are: q_proj, k_proj, v_proj, o_proj"};
  }
  // _check_lora_target_modules_mamba (tuners/tuners_utils.py).
  const bool scans = model.family == "mamba2" || model.family == "nemotron_h";
  if (scans && (target == "out_proj" || target == "conv1d" || target == "all-linear")) {
    return RefusedTarget{formatted("LoRA on \"{}\" of {}, which peft refuses", target, model.family),
                         "its mixers' other projection is in_proj"};
  }
  return std::nullopt;
}

// LoraModel._prepare_adapter_config. Where peft knows none and stops, every linear module but the head is taken.
std::vector<std::string> targets_of(const ModelSpec& model, const Lora& lora, const Place& place) {
  if (!lora.targets.empty()) return lora.targets;
  std::vector<std::string> usual = usual_targets(model.family);
  if (!usual.empty()) return usual;
  if (!refused_target(model, "all-linear")) return {"all-linear"};
  throw Refusal({place.says(
      formatted("LoRA without targets: peft 0.21 knows none of its own for {}", model.family),
      model.dims.experts > 0 ? "name them, as targets=q_proj+k_proj+v_proj+o_proj" : "name them, as targets=in_proj")});
}

// Which modules get adapters, by index.
std::vector<bool> chosen_modules(const ModelSpec& model, const Lora& lora, const Place& place) {
  std::vector<bool> chosen(model.modules.size(), false);
  Diagnostics diagnostics;
  for (const std::string& target : targets_of(model, lora, place)) {
    if (const auto refused = refused_target(model, target)) {
      diagnostics.add(place.says(refused->message, refused->hint));
      continue;
    }
    bool any = false;
    for (std::size_t at = 0; at < model.modules.size(); ++at) {
      const Module& module = model.modules[at];
      if (target == "all-linear") {
        chosen[at] = chosen[at] || among_all_linear(module);
      } else if (ends_with_module(module.path, target)) {
        chosen[at] = true;
      }
      if (chosen[at] && !is_linear(module)) {
        diagnostics.add(place.says(formatted("LoRA on {}, a {}, is not modelled yet", module.path, module.type),
                                   "Linear and Conv1D modules are"));
      }
      any = any || chosen[at];
    }
    if (!any) {
      diagnostics.add(place.says(formatted("LoRA target \"{}\" matches no module of {}", target, model.name),
                                 "a target is the end of a module's path, as q_proj"));
    }
  }
  for (std::size_t at = 0; lora.dora && at < model.modules.size(); ++at) {
    const Module& module = model.modules[at];
    if (!chosen[at] || module.type == "Linear") continue;
    diagnostics.add(place.says(formatted("DoRA on {}, a {}, is not modelled yet", module.path, module.type)));
  }
  diagnostics.throw_if_any();
  return chosen;
}

constexpr std::string_view kWrapper = "ModulesToSaveWrapper";

bool has_children(const ModelSpec& model, ModuleId module) {
  return std::any_of(model.modules.begin(), model.modules.end(),
                     [&](const Module& other) { return other.parent == module; });
}

// What of a module speaks against a copy of its own; empty: nothing.
std::string why_no_copy(const ModelSpec& model, std::size_t at, bool adapted) {
  const Module& module = model.modules[at];
  const auto own = [at](const auto& thing) { return thing.module == static_cast<ModuleId>(at); };
  const bool known = is_linear(module) || module.type.find("Embedding") != std::string::npos ||
                     module.type.find("Norm") != std::string::npos;
  if (adapted) return "it has adapters already";
  if (has_children(model, static_cast<ModuleId>(at)) || !known) {
    return formatted("it is a {}, and linear modules, embeddings and norms are modelled", module.type);
  }
  if (std::any_of(model.buffers.begin(), model.buffers.end(), own)) return "it has buffers of its own";
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to == kNone) continue;
    if (own(parameter) || own(model.parameter_at(parameter.tied_to))) {
      return "its weight is tied, and peft's copy of it is not";
    }
  }
  return {};
}

// _set_trainable in peft's utils/other.py: every module whose path ends so, dot or no dot.
std::vector<bool> saved_modules(const ModelSpec& model, const Lora& lora, const std::vector<bool>& adapted,
                                const Place& place) {
  std::vector<bool> saved(model.modules.size(), false);
  Diagnostics diagnostics;
  for (const std::string& name : lora.saved) {
    bool any = false;
    for (std::size_t at = 0; at < model.modules.size(); ++at) {
      const std::string& path = model.modules[at].path;
      if (!path.ends_with(name)) continue;
      any = true;
      saved[at] = true;
      const std::string why = why_no_copy(model, at, adapted[at]);
      if (!why.empty()) {
        diagnostics.add(place.says(formatted("a trained copy of {} is not modelled yet: {}", path, why)));
      }
    }
    if (any) continue;
    diagnostics.add(place.says(formatted("LoRA save \"{}\" matches no module of {}", name, model.name),
                               "it is the end of a module's path, as lm_head"));
  }
  diagnostics.throw_if_any();
  return saved;
}

struct Chosen {
  std::vector<bool> adapted;
  std::vector<bool> saved;
};

// Writes the adapted model, module by module in registration order.
class Adapter {
 public:
  Adapter(const ModelSpec& model, const Lora& lora, Chosen chosen)
      : model_(model), lora_(lora), chosen_(std::move(chosen)), spec_(model) {
    spec_.modules.clear();
    spec_.parameters.clear();
    spec_.calls.clear();
  }

  ModelSpec build() {
    spec_.modules.push_back({"", "PeftModelForCausalLM", kNone, kNone});
    spec_.modules.push_back({"base_model", "LoraModel", 0, kNone});
    spec_.causal = 2;
    spec_.dims.adapter_dropout = lora_.dropout;
    const auto rank = static_cast<double>(lora_.r);
    spec_.dims.adapter_scale = lora_.alpha / (lora_.rank_stabilized ? std::sqrt(rank) : rank);
    for (std::size_t at = 0; at < model_.modules.size(); ++at) add_module(at);
    for (ModelBuffer& buffer : spec_.buffers) {
      buffer.name = kPrefix + buffer.name;
      buffer.module = places_[static_cast<std::size_t>(buffer.module)];
    }
    add_calls();
    return std::move(spec_);
  }

 private:
  static inline const std::string kPrefix = "base_model.model.";

  ModuleId open(std::string path, std::string type, ModuleId parent) {
    const std::int32_t layer = spec_.module_at(parent).layer;
    spec_.modules.push_back({std::move(path), std::move(type), parent, layer});
    return static_cast<ModuleId>(spec_.modules.size() - 1);
  }

  void add_module(std::size_t at) {
    const Module& old = model_.modules[at];
    const ModuleId parent = old.parent == kNone ? 1 : places_[static_cast<std::size_t>(old.parent)];
    const std::string path = old.path.empty() ? "base_model.model" : kPrefix + old.path;
    const bool adapted = chosen_.adapted[at];
    const bool saved = chosen_.saved[at];
    const ModuleId id = open(path, adapted ? "lora." + old.type : (saved ? std::string(kWrapper) : old.type), parent);
    spec_.modules.back().layer = old.layer;
    places_.push_back(id);
    if (saved) return add_copy(at, id, path);
    if (!adapted) return add_parameters(at, id, path);
    const ModuleId base = open(path + ".base_layer", old.type, id);
    add_parameters(at, base, path + ".base_layer");
    const ModuleId dropouts = open(path + ".lora_dropout", "ModuleDict", id);
    open(path + ".lora_dropout.default", lora_.dropout > 0 ? "Dropout" : "Identity", dropouts);
    const auto [in, out] = features(base);
    add_factor(path + ".lora_A", id, Shape{lora_.r, in}, "Linear");
    add_factor(path + ".lora_B", id, Shape{out, lora_.r}, "Linear");
    if (lora_.dora) add_factor(path + ".lora_magnitude_vector", id, Shape{out}, "lora.dora.DoraLinearLayer");
  }

  // The module as it was, frozen, and a trained copy of it beside.
  void add_copy(std::size_t at, ModuleId wrapper, const std::string& path) {
    const std::string& type = model_.modules[at].type;
    const std::string original = path + ".original_module";
    const std::size_t first = spec_.parameters.size();
    add_parameters(at, open(original, type, wrapper), original);
    const std::size_t end = spec_.parameters.size();
    const ModuleId list = open(path + ".modules_to_save", "ModuleDict", wrapper);
    const std::string copy = path + ".modules_to_save.default";
    const ModuleId module = open(copy, type, list);
    for (std::size_t one = first; one < end; ++one) {
      Parameter parameter = spec_.parameters[one];
      parameter.name = copy + parameter.name.substr(original.size());
      parameter.module = module;
      parameter.trainable = true;
      if (lora_.saved_dtype) parameter.dtype = lora_.saved_dtype;
      spec_.parameters.push_back(std::move(parameter));
    }
  }

  // Of the layer's weight: [out, in], or as Conv1D has it [in, out].
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> features(ModuleId base) const {
    const Shape& weight = spec_.parameter_at(spec_.parameter(base, "weight")).shape;
    const bool direct = spec_.module_at(base).type == "Conv1D";
    return direct ? std::pair{weight.dims[0], weight.dims[1]} : std::pair{weight.dims[1], weight.dims[0]};
  }

  void add_factor(const std::string& path, ModuleId parent, Shape shape, std::string type) {
    const ModuleId list = open(path, "ModuleDict", parent);
    const ModuleId module = open(path + ".default", std::move(type), list);
    Parameter factor;
    factor.name = path + ".default.weight";
    factor.shape = shape;
    factor.module = module;
    factor.dtype = lora_.dtype;
    spec_.parameters.push_back(std::move(factor));
  }

  [[nodiscard]] bool trains(std::string_view name, bool adapted) const {
    const bool asked = lora_.bias == TrainedBiases::All || (adapted && lora_.bias == TrainedBiases::OfTargets);
    return asked && name.ends_with(".bias");
  }

  void add_parameters(std::size_t at, ModuleId module, const std::string& path) {
    for (; next_ < model_.parameters.size() && model_.parameters[next_].module == static_cast<ModuleId>(at); ++next_) {
      Parameter parameter = model_.parameters[next_];
      const std::size_t dot = parameter.name.rfind('.');
      parameter.name = path + "." + (dot == std::string::npos ? parameter.name : parameter.name.substr(dot + 1));
      parameter.module = module;
      parameter.trainable = parameter.trainable && trains(parameter.name, chosen_.adapted[at]);
      parameters_.push_back(static_cast<ParameterId>(spec_.parameters.size()));
      if (parameter.tied_to != kNone) parameter.tied_to = parameters_[static_cast<std::size_t>(parameter.tied_to)];
      spec_.parameters.push_back(std::move(parameter));
    }
  }

  // peft's model calls the base model's forward, past its hooks.
  void add_calls() {
    spec_.calls = {{0, true}, {1, true}};
    for (const ModuleCall& call : model_.calls) {
      if (call.module == 0) continue;
      const auto at = static_cast<std::size_t>(call.module);
      const ModuleId id = places_[at];
      if (chosen_.adapted[at] && !call.enter) add_calls_of_adapter(id);
      if (chosen_.saved[at] && !call.enter) add_call(id, "modules_to_save");
      spec_.calls.push_back({id, call.enter});
    }
    spec_.calls.push_back({1, false});
    spec_.calls.push_back({0, false});
  }

  // DoRA calls the factors for their product, and then as everybody does.
  void add_calls_of_adapter(ModuleId id) {
    add_call(id, "base_layer");
    if (!lora_.dora || lora_.dropout > 0) add_call(id, "lora_dropout");
    const ModuleId magnitude =
        lora_.dora ? spec_.child(spec_.child(id, "lora_magnitude_vector"), "default") : ModuleId(kNone);
    if (magnitude != kNone) spec_.calls.push_back({magnitude, true});
    for (int time = 0; time < (lora_.dora ? 2 : 1); ++time) {
      add_call(id, "lora_A");
      add_call(id, "lora_B");
    }
    if (magnitude != kNone) spec_.calls.push_back({magnitude, false});
  }

  void add_call(ModuleId parent, const char* child) {
    const ModuleId id = spec_.child(parent, child);
    const ModuleId inner = spec_.child(id, "default");
    spec_.calls.push_back({inner == kNone ? id : inner, true});
    spec_.calls.push_back({inner == kNone ? id : inner, false});
  }

  const ModelSpec& model_;
  const Lora& lora_;
  Chosen chosen_;
  ModelSpec spec_;
  std::vector<ModuleId> places_;         // By old module.
  std::vector<ParameterId> parameters_;  // By old parameter.
  std::size_t next_ = 0;                 // The next old parameter.
};

}  // namespace

ModelSpec with_adapters(const ModelSpec& model, const Lora& lora, const Place& place, const LoraPlaces& parts) {
  std::vector<bool> adapted = chosen_modules(model, lora, parts.targets.value_or(place));
  std::vector<bool> saved = saved_modules(model, lora, adapted, parts.saved.value_or(place));
  return Adapter(model, lora, {std::move(adapted), std::move(saved)}).build();
}

ModuleId trained_copy(const ModelSpec& model, ModuleId module) {
  if (model.module_at(module).type != kWrapper) return kNone;
  return model.child(model.child(module, "modules_to_save"), "default");
}

bool has_magnitudes(const ModelSpec& model) {
  return std::any_of(model.modules.begin(), model.modules.end(),
                     [](const Module& module) { return module.type == "lora.dora.DoraLinearLayer"; });
}

}  // namespace dsplan
