#include "model/lora.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "core/format.h"
#include "model/lora_targets.h"

namespace dsplan {
namespace {

constexpr std::string_view kWrapper = "ModulesToSaveWrapper";
constexpr std::string_view kParamWrapper = "lora.ParamWrapper(";  // And the parameter's name.

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
std::vector<bool> saved_modules(const ModelSpec& model, const Lora& lora, const LoraTargets& adapted,
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
      const std::string why = why_no_copy(model, at, adapted.adapts(at));
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
  LoraTargets adapted;
  std::vector<bool> saved;
};

// What a name says behind the path of a module that it begins with.
std::string below(const std::string& name, const std::string& path) {
  return path.empty() ? name : name.substr(path.size() + 1);
}

// The call of a module, and of what its wrappers of parameters have inside.
void add_calls_through(ModelSpec& spec, ModuleId id, bool enter) {
  if (enter) spec.calls.push_back({id, true});
  if (wrapped_parameter(spec.module_at(id))) add_calls_through(spec, spec.child(id, "base_layer"), enter);
  if (!enter) spec.calls.push_back({id, false});
}

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
    for (std::size_t at = 0; at < model_.modules.size(); ++at) {
      if (waiting_.module != kNone && !model_.lies_in(static_cast<ModuleId>(at), waiting_.module))
        add_waiting_factors();
      add_module(at);
    }
    add_waiting_factors();
    for (ModelBuffer& buffer : spec_.buffers) {
      const std::string leaf = below(buffer.name, model_.module_at(buffer.module).path);
      buffer.module = inside_wrappers(spec_, places_[static_cast<std::size_t>(buffer.module)]);
      buffer.name = spec_.module_at(buffer.module).path + "." + leaf;
    }
    add_calls();
    return std::move(spec_);
  }

 private:
  ModuleId open(std::string path, std::string type, ModuleId parent) {
    const std::int32_t layer = spec_.module_at(parent).layer;
    spec_.modules.push_back({std::move(path), std::move(type), parent, layer});
    return static_cast<ModuleId>(spec_.modules.size() - 1);
  }

  void add_module(std::size_t at) {
    const Module& old = model_.modules[at];
    const bool root = old.parent == kNone;
    const ModuleId parent = root ? 1 : inside_wrappers(spec_, places_[static_cast<std::size_t>(old.parent)]);
    const std::string path =
        root ? "base_model.model"
             : spec_.module_at(parent).path + "." + below(old.path, model_.module_at(old.parent).path);
    if (!chosen_.adapted.parameters[at].empty()) return add_wrapped(at, parent, path);
    const bool adapted = chosen_.adapted.linear[at];
    const bool saved = chosen_.saved[at];
    const ModuleId id = open(path, adapted ? "lora." + old.type : (saved ? std::string(kWrapper) : old.type), parent);
    spec_.modules.back().layer = old.layer;
    places_.push_back(id);
    if (saved) return add_copy(at, id, path);
    if (!adapted) return add_parameters(at, id, path);
    const ModuleId base = open(path + ".base_layer", old.type, id);
    add_parameters(at, base, path + ".base_layer");
    const auto [in, out] = features(base);
    add_factors(id, {lora_.r, in}, {out, lora_.r}, lora_.dtype);
    if (lora_.dora) {
      add_factor(path + ".lora_magnitude_vector", id, Shape{out}, "lora.dora.DoraLinearLayer", lora_.dtype);
    }
  }

  // A wrapper for each parameter, the last outermost, and the module as it was inside of all.
  void add_wrapped(std::size_t at, ModuleId parent, const std::string& path) {
    const Module& old = model_.modules[at];
    const std::vector<WrappedParameter>& wrapped = chosen_.adapted.parameters[at];
    std::vector<ModuleId> wrappers;
    std::string inner = path;
    ModuleId around = parent;
    for (auto one = wrapped.rbegin(); one != wrapped.rend(); ++one) {
      around = open(inner, std::string(kParamWrapper) + one->leaf + ")", around);
      spec_.modules.back().layer = old.layer;
      wrappers.push_back(around);
      inner += ".base_layer";
    }
    places_.push_back(wrappers.front());
    const ModuleId base = open(inner, old.type, around);
    add_parameters(at, base, inner);
    waiting_ = {static_cast<ModuleId>(at), base, std::move(wrappers)};
  }

  // The factors of the wrappers stand behind all that is inside of them.
  void add_waiting_factors() {
    if (waiting_.module == kNone) return;
    const std::vector<WrappedParameter>& wrapped =
        chosen_.adapted.parameters[static_cast<std::size_t>(waiting_.module)];
    for (std::size_t i = 0; i < wrapped.size(); ++i) {
      add_factors_of_parameter(waiting_.wrappers[wrapped.size() - 1 - i], waiting_.base, wrapped[i]);
    }
    waiting_.module = kNone;
  }

  // ParamWrapper.update_layer: experts side by side, inputs and outputs as the experts' class has them.
  void add_factors_of_parameter(ModuleId wrapper, ModuleId base, const WrappedParameter& wrapped) {
    const Parameter weight = spec_.parameter_at(spec_.parameter(base, wrapped.leaf));
    const bool bank = weight.shape.rank == 3;
    const std::int64_t experts = bank ? weight.shape.dims[0] : 1;
    const std::size_t last = bank ? 2 : 1;
    std::int64_t in = weight.shape.dims[last];
    std::int64_t out = weight.shape.dims[last - 1];
    if (bank && has_turned_experts(spec_.module_at(base))) std::swap(in, out);
    const std::int64_t ranks = lora_.r * wrapped.ranks * experts;
    add_factors(wrapper, {ranks, in}, {out, ranks}, lora_.dtype ? lora_.dtype : weight.dtype);
  }

  void add_factors(ModuleId wrapper, Shape a, Shape b, std::optional<DType> dtype) {
    const std::string path = spec_.module_at(wrapper).path;
    const ModuleId dropouts = open(path + ".lora_dropout", "ModuleDict", wrapper);
    open(path + ".lora_dropout.default", lora_.dropout > 0 ? "Dropout" : "Identity", dropouts);
    add_factor(path + ".lora_A", wrapper, a, "Linear", dtype);
    add_factor(path + ".lora_B", wrapper, b, "Linear", dtype);
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

  void add_factor(const std::string& path, ModuleId parent, Shape shape, std::string type, std::optional<DType> dtype) {
    const ModuleId list = open(path, "ModuleDict", parent);
    const ModuleId module = open(path + ".default", std::move(type), list);
    Parameter factor;
    factor.name = path + ".default.weight";
    factor.shape = shape;
    factor.module = module;
    factor.dtype = dtype;
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
      parameter.trainable = parameter.trainable && trains(parameter.name, chosen_.adapted.linear[at]);
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
      if (chosen_.adapted.linear[at] && !call.enter) add_calls_of_adapter(id);
      if (chosen_.saved[at] && !call.enter) add_call(id, "modules_to_save");
      add_calls_through(spec_, id, call.enter);
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
  struct Waiting {
    ModuleId module = kNone;  // The old one; kNone: none waits.
    ModuleId base = kNone;
    std::vector<ModuleId> wrappers;  // The outermost first.
  };
  Waiting waiting_;
};

}  // namespace

ModelSpec with_adapters(const ModelSpec& model, const Lora& lora, const Place& place, const LoraPlaces& parts) {
  LoraTargets adapted = lora_targets(model, lora, parts.targets.value_or(place));
  std::vector<bool> saved = saved_modules(model, lora, adapted, parts.saved.value_or(place));
  return Adapter(model, lora, {std::move(adapted), std::move(saved)}).build();
}

ModuleId trained_copy(const ModelSpec& model, ModuleId module) {
  if (model.module_at(module).type != kWrapper) return kNone;
  return model.child(model.child(module, "modules_to_save"), "default");
}

std::optional<std::string_view> wrapped_parameter(const Module& module) {
  const std::string_view type = module.type;
  if (!type.starts_with(kParamWrapper)) return std::nullopt;
  return type.substr(kParamWrapper.size(), type.size() - kParamWrapper.size() - 1);
}

ModuleId inside_wrappers(const ModelSpec& model, ModuleId module) {
  while (wrapped_parameter(model.module_at(module))) module = model.child(module, "base_layer");
  return module;
}

bool has_wrapped_parameters(const ModelSpec& model) {
  return std::any_of(model.modules.begin(), model.modules.end(),
                     [](const Module& module) { return wrapped_parameter(module).has_value(); });
}

bool has_turned_experts(const Module& experts) {
  return experts.type == "GptOssExperts" || experts.type == "Llama4TextExperts";
}

bool has_magnitudes(const ModelSpec& model) {
  return std::any_of(model.modules.begin(), model.modules.end(),
                     [](const Module& module) { return module.type == "lora.dora.DoraLinearLayer"; });
}

}  // namespace dsplan
