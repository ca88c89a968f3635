// What gemma4's layers have of their own (model/parts.h, SharingParts); for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/pieces.h"

namespace dsplan {

// What a second embedding gives each layer: [B, S, layers, width].
[[nodiscard]] TensorId own_words(GraphBuilder& g, const DecoderParts& p, ModuleId body, TensorId ids);
// That, which is used up, and the first one's projection.
[[nodiscard]] TensorId own_inputs(GraphBuilder& g, const SharingParts& p, ModuleId body, TensorId own,
                                  TensorId embedded);

// All layers; uses up `hidden`. `own`: own_inputs, or kNone. `held` takes what the body's variables hold beside them.
[[nodiscard]] TensorId sharing_layers(GraphBuilder& g, const DecoderParts& p, ModuleId list, TensorId hidden,
                                      TensorId own, const std::function<LayerInputs(std::size_t layer)>& given,
                                      std::vector<TensorId>& held);

}  // namespace dsplan
