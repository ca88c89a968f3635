// Models as preference training has them.
#pragma once

#include <optional>

#include "core/model.h"

namespace dsplan {

// `model` with a second one of its kind behind it, frozen: the reference that TRL's DPOTrainer loads where there are no
// adapters to turn off. Its modules and parameters are called ref_model.*.
// `kept`: the dtype that it stays in, whatever the first is in.
[[nodiscard]] ModelSpec with_reference(const ModelSpec& model, std::optional<DType> kept = std::nullopt);

// Without dropout, adapters' included: TRL's disable_dropout.
[[nodiscard]] ModelSpec without_dropout(ModelSpec model);

}  // namespace dsplan
