// What gemma4's layers have of their own (model/parts.h, SharingParts); for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/pieces.h"

namespace dsplan {

// What a second embedding gives each layer: [B, S, layers, width].
[[nodiscard]] TensorId own_words(GraphBuilder& g, const DecoderParts& p, ModuleId body, TensorId ids);
// That, which is used up, and the first one's projection.
[[nodiscard]] TensorId own_inputs(GraphBuilder& g, const SharingParts& p, ModuleId body, TensorId own,
                                  TensorId embedded);

// What a layer does with the keys and values of its kind: it makes them, some for later ones, or reads them.
struct KeysOf {
  bool reads = false;
  bool stores = false;
};
// Of a layer whose heads are normed and turned by token. `shared` are the keys (`q`) and values (`k`) of its kind.
[[nodiscard]] Attended attend_shared(GraphBuilder& g, const DecoderParts& p, ModuleId module, TensorId hidden,
                                     const LayerInputs& given, KeysOf does, QueryKey& shared);

// decoders/gemma3n.cpp: one such layer, which several tensors go through (model/parts.h, AltupParts).
[[nodiscard]] TensorId altup_layer(GraphBuilder& g, const DecoderParts& p, ModuleId layer, std::size_t index,
                                   TensorId hidden, TensorId own, const LayerInputs& given, KeysOf does,
                                   QueryKey& shared);
// What the body's variables hold of how one tensor becomes several, and those one again.
struct Several {
  TensorId magnitude = kNone;  // Of the first.
  TensorId made = kNone;       // By the last product, and by the last of the way back.
  TensorId merged = kNone;
  TensorId current = kNone;
  TensorId own_magnitude = kNone;
  std::vector<TensorId> states;
};
[[nodiscard]] TensorId several_of(GraphBuilder& g, ModuleId body, TensorId embedded, Several& held);
// Uses up `hidden`.
[[nodiscard]] TensorId one_of(GraphBuilder& g, ModuleId body, TensorId hidden, Several& held);
void drop_several(GraphBuilder& g, const Several& held);
// own_inputs, whose factors are buffers of the body's.
[[nodiscard]] TensorId own_inputs_by_buffers(GraphBuilder& g, const SharingParts& p, ModuleId body, TensorId own,
                                             TensorId embedded);

// All layers; uses up `hidden`. `own`: own_inputs, or kNone. `held` takes what the body's variables hold beside them.
[[nodiscard]] TensorId sharing_layers(GraphBuilder& g, const DecoderParts& p, ModuleId list, TensorId hidden,
                                      TensorId own, const std::function<LayerInputs(std::size_t layer)>& given,
                                      std::vector<TensorId>& held);

}  // namespace dsplan
