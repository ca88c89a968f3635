// Initial values: of parameters, by what they are; of the model's own buffers.
#pragma once

#include <vector>

#include "core/model.h"

namespace dsplan::exec {

enum class Initial : std::uint8_t { Zeros, Ones, Normal };

// Biases and LoRA's second factors begin as zeros, the weights of norms as ones, everything else is drawn.
[[nodiscard]] Initial initial_of(const ModelSpec& model, ParameterId parameter);

// The values of a buffer: frequencies of rotary positions, without any scaling of theirs. Refuses, by name, a buffer
// that is none.
[[nodiscard]] std::vector<double> values_of(const ModelSpec& model, const ModelBuffer& buffer);

}  // namespace dsplan::exec
