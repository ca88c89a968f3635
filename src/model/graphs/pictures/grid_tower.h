// Towers that take pictures of all sizes, and how a language model is shown what they say; for src/model/graphs/*.cpp
// only.
#pragma once

#include "model/graphs/builder.h"
#include "model/graphs/pictures/tower.h"
#include "model/graphs/pieces.h"
#include "model/parts.h"
#include "model/pictures.h"

namespace dsplan {

// `last`: a place for each patch; `merged`: the tokens of all pictures; `deep`: those of TowerParts::deep_layers. All
// are the caller's.
struct GridResult {
  TensorId last = kNone;
  TensorId merged = kNone;
  std::vector<TensorId> deep;
};
[[nodiscard]] GridResult grid_tower(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId pixels,
                                    std::int64_t pictures);

// What a batch has besides tokens and labels: patches, the size of each picture, and which tokens are one's.
struct GridBatch {
  TensorId pixels = kNone;
  TensorId grids = kNone;
  TensorId types = kNone;
  TensorId crossing = kNone;  // Which tiles each token sees (mllama).
};
[[nodiscard]] GridBatch grid_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures);

// The pictures' tokens among the embedded text, which is used up; `held` is what the body's variables hold besides.
// `deep` is added to the text's first layers where `flags` are set.
struct GridShown {
  TensorId merged = kNone;
  TensorId flags = kNone;
  std::vector<TensorId> deep;
  std::vector<TensorId> held;
};
[[nodiscard]] GridShown show_grids(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch,
                                   TensorId ids, TensorId embedded);

// Cosines and sines of angles by row and by column, [N, 2, quarter], each side by side and then twice: `once` is their
// shape before that.
[[nodiscard]] Waves waves_of_places(GraphBuilder& g, TensorId angles, const Shape& once);

// pictures/pixtral_tower.cpp: whole pictures and the size of each, and how mistral3 is shown them.
[[nodiscard]] GridBatch pixtral_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures);
[[nodiscard]] Pictured show_pixtral(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch,
                                    TensorId ids, TensorId embedded);

// pictures/tiles.cpp: squares that pictures were cut up into, and the size of each; how llava_next is shown them.
[[nodiscard]] GridBatch tiled_batch(GraphBuilder& g, const TowerParts& tower, std::int64_t pictures);
[[nodiscard]] Pictured show_tiles(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch,
                                  TensorId ids, TensorId embedded);

// pictures/idefics3.cpp: as many pictures in each row, and which pixels are a picture's (`grids`).
[[nodiscard]] GridBatch masked_batch(GraphBuilder& g, const TowerParts& tower);
[[nodiscard]] Pictured show_connected(GraphBuilder& g, const TowerParts& tower, ModuleId body, const GridBatch& batch,
                                      TensorId ids, TensorId embedded);

// get_rope_index: [3, B, S], a number along each axis. A row is a mark, a picture, two marks, a picture, ..., and text.
[[nodiscard]] TensorId grid_positions(GraphBuilder& g, const TowerParts& tower);
// Tables of such positions, [B, S, turned].
[[nodiscard]] Waves three_axes_tables(GraphBuilder& g, const RotaryParts& parts, ModuleId module, TensorId positions);
// _deepstack_process: `seen` is added where `flags` are set, in a copy. Uses up `hidden`.
[[nodiscard]] TensorId with_deep(GraphBuilder& g, TensorId hidden, TensorId flags, TensorId seen);

// pictures/sampled_tower.cpp: positions added to patches, of which `lengths` says how many each picture has; patches
// that become one place, [places, TowerParts::merged]; and what the merger makes of those.
[[nodiscard]] TensorId sampled_positions(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId hidden,
                                         TensorId places, TensorId lengths);
[[nodiscard]] TensorId downsampled(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId hidden);
[[nodiscard]] TensorId gated_merger(GraphBuilder& g, const TowerParts& tower, ModuleId module, TensorId places);

// grid_table.cpp: get_vision_interpolation_indices_and_weights, four of each for every patch.
struct Taps {
  TensorId indices = kNone;
  TensorId weights = kNone;
};
[[nodiscard]] Taps table_taps(GraphBuilder& g, const Grid& grid, std::int64_t pictures);

}  // namespace dsplan
