// What families with a state-space mixer share.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "model/families/builder.h"
#include "model/parts.h"

namespace dsplan {

// Registers the mixer's parameters and modules; `type` and `norm_type` are the classes of mixer and gated norm.
void register_mamba(ModelBuilder& b, const MambaParts& parts, std::int64_t hidden, std::string_view activation,
                    std::string_view type, std::string_view norm_type);
// layer_types, or layers_block_type: true where a layer has a mixer in the place of attention; `fallback` where both
// keys are missing. Older files say mamba and attention.
[[nodiscard]] std::vector<bool> read_recurrent(ConfigReader& config, std::int64_t layers,
                                               const std::function<bool(std::int64_t)>& fallback);

}  // namespace dsplan
