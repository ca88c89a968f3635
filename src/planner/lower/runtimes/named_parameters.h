// What `model.named_parameters()` yields: ties once, in registration order; and the groups an optimizer makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/model.h"
#include "core/training.h"

namespace dsplan {

struct NamedParameter {
  ParameterId id = 0;
  std::int64_t elements = 0;
  bool trainable = true;
  DType dtype = DType::BFloat16;
};
// Into lists by ParameterId.
[[nodiscard]] inline std::size_t at(ParameterId parameter) { return static_cast<std::size_t>(parameter); }

[[nodiscard]] std::vector<NamedParameter> named_parameters(const ModelSpec& model, const Training& training);
// Calls `leave` for each module, those inside first.
void children_first(const ModelSpec& model, const std::function<void(ModuleId)>& leave);
// By ParameterId: which of them are trained.
[[nodiscard]] std::vector<bool> trained_parameters(const ModelSpec& model, const Training& training);

// A parameter group of the optimizer, in the order of the groups.
struct ParameterGroup {
  std::vector<const NamedParameter*> members;
  double weight_decay = 0;
};
// All of `trained` in one; or as transformers' Trainer makes them: what decays, then biases and norms, which do not
// (trainer.py, get_decay_parameter_names). Empty groups are left out. The result points into `trained`.
[[nodiscard]] std::vector<ParameterGroup> parameter_groups(const ModelSpec& model, const Training& training,
                                                           const std::vector<NamedParameter>& trained);

}  // namespace dsplan
