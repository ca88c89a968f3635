// transformers' plans of tensor parallelism, which count where a model is loaded by several ranks though nothing is
// cut.
#pragma once

#include "core/model.h"

namespace dsplan {

// Whether the plan of the model's class names `parameter` (base_model_tp_plan of its configuration, _tp_plan of the
// class; transformers 5.17.0). Of mixtures of experts only the dense part is answered.
[[nodiscard]] bool in_tensor_plan(const ModelSpec& model, const Parameter& parameter);

}  // namespace dsplan
