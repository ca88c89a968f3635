// Llama and Qwen3 as torchtitan writes them (torchtitan 0.2.2, models/llama3/model/model.py,
// models/qwen3/model/model.py): the same weights under other names and in another order, rotary tables as one buffer of
// the model's own, as long as the job's rows.
#pragma once

#include <optional>
#include <string>

#include "core/model.h"

namespace dsplan {

// In words, why torchtitan has no such model; nullopt: it has.
[[nodiscard]] std::optional<std::string> torchtitan_lacks(const ModelSpec& model);

// `model`, of transformers' llama or qwen3 family, as torchtitan's class makes it. InternalError where
// `torchtitan_lacks` had a reason.
[[nodiscard]] ModelSpec as_torchtitan(const ModelSpec& model);

}  // namespace dsplan
