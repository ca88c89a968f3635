// How gemma4 is shown pictures, each of as many patches as the largest may have; for src/model/graphs/*.cpp only.
#pragma once

#include "model/graphs/pictures/grid_tower.h"

namespace dsplan {

// GridBatch::grids: column and row of each patch, -1 where there is none.
[[nodiscard]] GridBatch padded_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures);

// Gemma4Model's variables before anything is embedded: `ids` have the padding's word where a picture's tokens are.
struct PaddedWords {
  TensorId ids = kNone;
  TensorId shown = kNone;       // Which tokens are a picture's,
  TensorId other = kNone;       // or anything but text's.
  std::vector<TensorId> films;  // And a film's, and a sound's.
};
[[nodiscard]] PaddedWords padded_words(GraphBuilder& g, const TowerParts& tower, TensorId ids);
// The embedded text with the padding's word in those places, from a table that is read without being called.
[[nodiscard]] TensorId words_alone(GraphBuilder& g, ModuleId table, const PaddedWords& words, TensorId embedded);

// The pictures' tokens among the embedded text, which is used up. `count`: how many tokens they are.
struct PaddedShown {
  TensorId merged = kNone;
  TensorId features = kNone;
  TensorId count = kNone;
};
[[nodiscard]] PaddedShown show_padded(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch,
                                      TensorId shown, TensorId embedded);

}  // namespace dsplan
