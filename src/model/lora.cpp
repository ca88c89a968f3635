#include "model/lora.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/error.h"
#include "core/format.h"

namespace dsplan {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

template <class Number>
std::optional<Number> number_in(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, value);
  if (fault != std::errc() || stop != end) return std::nullopt;
  return value;
}

// One key=value; returns what is wrong with it.
std::optional<std::string> read_pair(const std::string& key, const std::string& value, Lora& lora) {
  if (key == "r") {
    lora.r = number_in<std::int64_t>(value).value_or(0);
    if (lora.r < 1) return formatted("r must be a number from 1 on, not \"{}\"", value);
  } else if (key == "targets") {
    lora.targets = split(value, '+');
    if (value.empty()) return "targets names no module";
  } else if (key == "dropout") {
    lora.dropout = number_in<double>(value).value_or(-1);
    if (!(lora.dropout >= 0 && lora.dropout < 1)) return formatted("dropout must lie in [0, 1), not \"{}\"", value);
  } else if (key == "alpha") {
    const std::optional<double> alpha = number_in<double>(value);
    if (!alpha) return formatted("alpha is a number, not \"{}\"", value);
    lora.alpha = *alpha;
  } else if (key == "dtype") {
    if (value == "fp32") {
      lora.dtype = DType::Float32;
    } else if (value == "bf16") {
      lora.dtype = DType::BFloat16;
    } else if (value == "fp16") {
      lora.dtype = DType::Float16;
    } else if (value == "model") {
      lora.dtype = std::nullopt;
    } else {
      return formatted("dtype \"{}\" is none of fp32, bf16, fp16, model", value);
    }
  } else {
    return formatted("\"{}\" is none of r, targets, dtype, dropout, alpha", key);
  }
  return std::nullopt;
}

bool is_linear(const Module& module) { return module.type == "Linear" || module.type == "Conv1D"; }

bool ends_with_module(std::string_view path, std::string_view target) {
  if (path == target) return true;
  return path.size() > target.size() && path.ends_with(target) && path[path.size() - target.size() - 1] == '.';
}

// peft takes these names, as transformers 4 had them, for routers and fused experts, and gives those adapters of
// another rank (utils/transformers_weight_conversion.py).
constexpr std::array<std::string_view, 8> kOfExperts{"all-linear", "gate",    "w1",           "w2",
                                                     "w3",         "up_proj", "gate_up_proj", "down_proj"};

// "all-linear" is every linear module but the output embedding.
bool among_all_linear(const Module& module) {
  return (is_linear(module) || module.type == "FalconLinear") && module.path != "lm_head";
}

// Which modules get adapters, by index.
std::vector<bool> chosen_modules(const ModelSpec& model, const Lora& lora, const Place& place) {
  std::vector<bool> chosen(model.modules.size(), false);
  Diagnostics diagnostics;
  for (const std::string& target : lora.targets) {
    if (model.dims.experts > 0 && (target == "gate_proj" || std::ranges::count(kOfExperts, target) > 0)) {
      diagnostics.add(place.says(
          formatted("LoRA on \"{}\" of a mixture, of routers and fused experts, is not modelled yet", target),
          "the projections of attention are: q_proj, k_proj, v_proj, o_proj"));
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
  diagnostics.throw_if_any();
  return chosen;
}

// Writes the adapted model, module by module in registration order.
class Adapter {
 public:
  Adapter(const ModelSpec& model, const Lora& lora, std::vector<bool> chosen)
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
    spec_.dims.adapter_scale = lora_.alpha / static_cast<double>(lora_.r);
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
    const std::int32_t layer = spec_.modules[static_cast<std::size_t>(parent)].layer;
    spec_.modules.push_back({std::move(path), std::move(type), parent, layer});
    return static_cast<ModuleId>(spec_.modules.size() - 1);
  }

  void add_module(std::size_t at) {
    const Module& old = model_.modules[at];
    const ModuleId parent = old.parent == kNone ? 1 : places_[static_cast<std::size_t>(old.parent)];
    const std::string path = old.path.empty() ? "base_model.model" : kPrefix + old.path;
    const ModuleId id = open(path, chosen_[at] ? "lora." + old.type : old.type, parent);
    spec_.modules.back().layer = old.layer;
    places_.push_back(id);
    if (!chosen_[at]) return add_parameters(at, id, path);
    const ModuleId base = open(path + ".base_layer", old.type, id);
    add_parameters(at, base, path + ".base_layer");
    const ModuleId dropouts = open(path + ".lora_dropout", "ModuleDict", id);
    open(path + ".lora_dropout.default", lora_.dropout > 0 ? "Dropout" : "Identity", dropouts);
    const auto [in, out] = features(base);
    add_factor(path + ".lora_A", id, Shape{lora_.r, in});
    add_factor(path + ".lora_B", id, Shape{out, lora_.r});
  }

  // Of the layer's weight: [out, in], or as Conv1D has it [in, out].
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> features(ModuleId base) const {
    const Shape& weight = spec_.parameters[static_cast<std::size_t>(spec_.parameter(base, "weight"))].shape;
    const bool direct = spec_.modules[static_cast<std::size_t>(base)].type == "Conv1D";
    return direct ? std::pair{weight.dims[0], weight.dims[1]} : std::pair{weight.dims[1], weight.dims[0]};
  }

  void add_factor(const std::string& path, ModuleId parent, Shape shape) {
    const ModuleId list = open(path, "ModuleDict", parent);
    const ModuleId module = open(path + ".default", "Linear", list);
    Parameter factor;
    factor.name = path + ".default.weight";
    factor.shape = shape;
    factor.module = module;
    factor.dtype = lora_.dtype;
    spec_.parameters.push_back(std::move(factor));
  }

  void add_parameters(std::size_t at, ModuleId module, const std::string& path) {
    for (; next_ < model_.parameters.size() && model_.parameters[next_].module == static_cast<ModuleId>(at); ++next_) {
      Parameter parameter = model_.parameters[next_];
      const std::size_t dot = parameter.name.rfind('.');
      parameter.name = path + "." + (dot == std::string::npos ? parameter.name : parameter.name.substr(dot + 1));
      parameter.module = module;
      parameter.trainable = false;
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
      const ModuleId id = places_[static_cast<std::size_t>(call.module)];
      if (chosen_[static_cast<std::size_t>(call.module)] && !call.enter) {
        for (const char* child : {"base_layer", "lora_dropout", "lora_A", "lora_B"}) add_call(id, child);
      }
      spec_.calls.push_back({id, call.enter});
    }
    spec_.calls.push_back({1, false});
    spec_.calls.push_back({0, false});
  }

  void add_call(ModuleId parent, const char* child) {
    const ModuleId id = spec_.child(parent, child);
    const ModuleId inner = spec_.child(id, "default");
    spec_.calls.push_back({inner == kNone ? id : inner, true});
    spec_.calls.push_back({inner == kNone ? id : inner, false});
  }

  const ModelSpec& model_;
  const Lora& lora_;
  std::vector<bool> chosen_;
  ModelSpec spec_;
  std::vector<ModuleId> places_;         // By old module.
  std::vector<ParameterId> parameters_;  // By old parameter.
  std::size_t next_ = 0;                 // The next old parameter.
};

}  // namespace

Lora parse_lora(const Setting<std::string>& text) {
  Lora lora;
  Diagnostics diagnostics;
  bool ranked = false;
  for (const std::string& part : split(*text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    ranked = ranked || key == "r";
    const std::optional<std::string> wrong = equals == std::string::npos
                                                 ? formatted("\"{}\" is not KEY=VALUE", part)
                                                 : read_pair(key, part.substr(equals + 1), lora);
    if (wrong) diagnostics.add(text.place.says("LoRA: " + *wrong, "write it as r=8,targets=q_proj+v_proj"));
  }
  if (!ranked) diagnostics.add(text.place.says("LoRA: r is missing", "write it as r=8,targets=q_proj+v_proj"));
  if (lora.targets.empty()) {
    diagnostics.add(text.place.says("LoRA: targets are missing", "write it as r=8,targets=q_proj+v_proj"));
  }
  diagnostics.throw_if_any();
  return lora;
}

ModelSpec with_adapters(const ModelSpec& model, const Lora& lora, const Place& place) {
  return Adapter(model, lora, chosen_modules(model, lora, place)).build();
}

}  // namespace dsplan
