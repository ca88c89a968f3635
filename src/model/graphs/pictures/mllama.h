// Pictures that some layers of the text look at (mllama); for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/builder.h"
#include "model/graphs/pictures/grid_tower.h"
#include "model/parts.h"

namespace dsplan {

// Tiles of pictures, the number of each picture's shape, which tiles it has, and which tiles each token sees.
[[nodiscard]] GridBatch crossed_batch(GraphBuilder& g, const TowerParts& tower);

// What the layers are given: [pictures * tiles, places, hidden]; [B, 1, S, places of a row], added to the scores; and
// which tokens see a picture, [B, 1, S, 1]. `held` by the body's variables until it returns.
struct Crossed {
  TensorId states = kNone;
  TensorId mask = kNone;
  TensorId rows = kNone;
  std::vector<TensorId> held;
};
[[nodiscard]] Crossed show_crossed(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch);
void let_go(GraphBuilder& g, const Crossed& crossed);

// MllamaCrossAttentionDecoderLayer, whose module is the current one.
[[nodiscard]] TensorId crossing_layer(GraphBuilder& g, const DecoderParts& parts, ModuleId module, TensorId hidden,
                                      const Crossed& crossed);

}  // namespace dsplan
