// Models as preference training has them.
#pragma once

#include "core/model.h"

namespace dsplan {

// `model` with a second one of its kind behind it, frozen: the reference that TRL's DPOTrainer loads where there are no
// adapters to turn off. Its modules and parameters are called ref_model.*.
[[nodiscard]] ModelSpec with_reference(const ModelSpec& model);

// Without dropout, adapters' included: TRL's disable_dropout.
[[nodiscard]] ModelSpec without_dropout(ModelSpec model);

}  // namespace dsplan
