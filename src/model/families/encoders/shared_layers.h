// Which of albert's groups of layers stands in the place of a layer.
#pragma once

#include <cstdint>

namespace dsplan {

// int(i / (num_hidden_layers / num_hidden_groups)), in Python's floating point (modeling_albert.py, AlbertTransformer).
[[nodiscard]] std::int64_t group_of_layer(std::int64_t layer, std::int64_t layers, std::int64_t groups);

}  // namespace dsplan
