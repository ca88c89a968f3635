// What gemma4's layers have of their own (model/parts.h, SharingParts); for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/pieces.h"

namespace dsplan {

// What each layer is given of a second embedding and of the first one's projection: [B, S, layers, width].
[[nodiscard]] TensorId own_inputs(GraphBuilder& g, const SharingParts& p, ModuleId body, TensorId ids,
                                  TensorId embedded);

// Keys and values that layers read which have none, by kind of layer; a variable of the body's.
struct SharedKeys {
  QueryKey full;     // `q`: the keys; `k`: the values.
  QueryKey sliding;
};

// One layer, called with the running tensor and `own`, its part of `own_inputs` or kNone.
[[nodiscard]] TensorId sharing_layer(GraphBuilder& g, const DecoderParts& p, ModuleId layer, std::size_t index,
                                     TensorId hidden, TensorId own, const LayerInputs& given, SharedKeys& shared);

}  // namespace dsplan
