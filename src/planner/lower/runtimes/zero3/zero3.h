// ZeRO-3 (DeepSpeed runtime/zero/stage3.py), whose runtime `make_runtime` makes.
#pragma once

#include <optional>
#include <string>

#include "core/training.h"

namespace dsplan {

// In words, what of `training`'s offload under ZeRO-3 has no schedule; nullopt if all of it has.
[[nodiscard]] std::optional<std::string> stage3_offload_unsupported(const Training& training);

}  // namespace dsplan
