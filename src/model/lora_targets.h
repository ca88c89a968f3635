// What of a model peft adapts: modules that the targets name, and parameters, for which it takes the names that
// routers and fused experts had in transformers 4.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/lora.h"

namespace dsplan {

// A parameter of a module that gets a wrapper of its own, with so many times the rank.
struct WrappedParameter {
  std::string leaf;
  std::int64_t ranks = 1;
};

// By module.
struct LoraTargets {
  std::vector<bool> linear;
  std::vector<std::vector<WrappedParameter>> parameters;  // In registration order: the first is wrapped first.

  [[nodiscard]] bool adapts(std::size_t module) const { return linear[module] || !parameters[module].empty(); }
};

[[nodiscard]] bool is_linear(const Module& module);
// Whether peft takes this name of a module for a parameter of the family's.
[[nodiscard]] bool stands_for_parameter(const ModelSpec& model, std::string_view target);

// Refuses at `place` names that nothing matches, and what peft itself would not adapt.
// Source: peft 0.21.2, utils/transformers_weight_conversion.py, tuners/tuners_utils.py, tuners/lora/layer.py.
[[nodiscard]] LoraTargets lora_targets(const ModelSpec& model, const Lora& lora, const Place& place);

}  // namespace dsplan
