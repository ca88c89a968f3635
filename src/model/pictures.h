// Pictures of all sizes, as a tower sees them: how many patches, tokens and windows one of them is.
#pragma once

#include <cstdint>
#include <vector>

#include "model/parts.h"

namespace dsplan {

struct Grid {
  std::int64_t height = 0;  // Of patches.
  std::int64_t width = 0;
  [[nodiscard]] std::int64_t patches() const { return height * width; }
};

// Of a picture of `size` pixels (Training::image_size).
[[nodiscard]] Grid grid_of(const TowerParts& tower, const std::vector<std::int64_t>& size);
// Tokens of one picture.
[[nodiscard]] std::int64_t tokens_of(const TowerParts& tower, const std::vector<std::int64_t>& size);

// get_vision_window_index of transformers: the patches of each window of a picture, row by row. `listed`: how many
// windows there are with those that hold nothing.
struct Windows {
  std::vector<std::int64_t> patches;
  std::int64_t listed = 0;
};
[[nodiscard]] Windows windows_of(const TowerParts& tower, const Grid& grid);

// How a picture is cut up (TowerParts::cuts): into `down` by `across` squares. Of their places `padding` go on either
// side where the picture does not reach, and `rows` by `columns` are left; each row has one more at its end.
struct Tiling {
  std::int64_t down = 0;
  std::int64_t across = 0;
  bool of_rows = false;  // What goes; otherwise columns.
  std::int64_t padding = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  [[nodiscard]] std::int64_t squares() const { return 1 + down * across; }  // With the picture as a whole.
};
[[nodiscard]] Tiling tiling_of(const TowerParts& tower, const std::vector<std::int64_t>& size);

// What the processor makes of height and width: multiples of a token's (smart_resize; its limits are
// preprocessor_config's). Gemma 4's makes each picture as large as its tokens may be.
[[nodiscard]] std::vector<std::int64_t> resized(const TowerParts& tower, const std::vector<std::int64_t>& size);

}  // namespace dsplan
