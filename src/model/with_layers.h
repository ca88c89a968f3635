// The same model with another number of layers: for the question how many fit.
#pragma once

#include <cstdint>

#include "core/document.h"

namespace dsplan {

// `config` with so many layers. A list with one entry for each layer ("layer_types") is repeated or cut, so that the
// pattern of its layers stays. Refused: a config.json that does not say how many layers it has; fewer than 1.
[[nodiscard]] Document with_layers(Document config, std::int64_t layers);

}  // namespace dsplan
