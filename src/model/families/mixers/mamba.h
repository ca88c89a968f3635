// What families with a state-space mixer share.
#pragma once

#include <string_view>

#include "model/families/builder.h"
#include "model/parts.h"

namespace dsplan {

// Registers the mixer's parameters and modules; `type` and `norm_type` are the classes of mixer and gated norm.
void register_mamba(ModelBuilder& b, const MambaParts& parts, std::int64_t hidden, std::string_view activation,
                    std::string_view type, std::string_view norm_type);
// Of the layer's own forward.
inline constexpr std::string_view kMambaCalls = "(in_proj norm out_proj)";

}  // namespace dsplan
