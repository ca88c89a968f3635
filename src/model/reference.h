// Models as preference training has them.
#pragma once

#include <optional>

#include "core/model.h"

namespace dsplan {

// `model` with a second one of its kind behind it, frozen: the reference that TRL's DPOTrainer loads where there are no
// adapters to turn off. Its modules and parameters are called ref_model.*.
// `kept`: the dtype that it stays in, whatever the first is in.
[[nodiscard]] ModelSpec with_reference(const ModelSpec& model, std::optional<DType> kept = std::nullopt);

// `model` with TRL's ValueHead behind it, whose one number for each token is made of the last hidden state, in fp32
// whatever the model is loaded in (AutoModelForCausalLMWithValueHead of TRL 0.24).
[[nodiscard]] ModelSpec with_value_head(ModelSpec model);

// Without dropout, adapters' included: TRL's disable_dropout.
[[nodiscard]] ModelSpec without_dropout(ModelSpec model);

}  // namespace dsplan
