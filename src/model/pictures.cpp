#include "model/pictures.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsplan {

Grid grid_of(const TowerParts& tower, const std::vector<std::int64_t>& size) {
  return {size[0] / tower.patch, size[1] / tower.patch};
}

std::int64_t tokens_of(const TowerParts& tower, const std::vector<std::int64_t>& size) {
  if (!tower.cuts.empty()) {
    const Tiling cut = tiling_of(tower, size);
    return tower.tokens + cut.rows * (cut.columns + 1);
  }
  return tower.merge == 0 ? tower.tokens : grid_of(tower, size).patches() / (tower.merge * tower.merge);
}

// A window begins at every `window` tokens, and one more where they come out even.
Windows windows_of(const TowerParts& tower, const Grid& grid) {
  const std::int64_t down = grid.height / tower.merge;
  const std::int64_t across = grid.width / tower.merge;
  Windows made;
  made.listed = (down / tower.window + 1) * (across / tower.window + 1);
  for (std::int64_t top = 0; top < down; top += tower.window) {
    for (std::int64_t left = 0; left < across; left += tower.window) {
      const std::int64_t rows = std::min(tower.window, down - top);
      const std::int64_t columns = std::min(tower.window, across - left);
      made.patches.push_back(rows * columns * tower.merge * tower.merge);
    }
  }
  return made;
}

namespace {

// select_best_resolution of transformers: what shows most of the picture, and of such the smallest.
std::array<std::int64_t, 2> best_cut(const TowerParts& tower, std::int64_t height, std::int64_t width) {
  const auto tall = static_cast<double>(height);
  const auto wide = static_cast<double>(width);
  std::array<std::int64_t, 2> best = tower.cuts.front();
  std::int64_t most = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const std::array<std::int64_t, 2>& one : tower.cuts) {
    const double scale = std::min(static_cast<double>(one[1]) / wide, static_cast<double>(one[0]) / tall);
    const auto scaled = static_cast<std::int64_t>(wide * scale) * static_cast<std::int64_t>(tall * scale);
    const std::int64_t shown = std::min(scaled, height * width);
    const std::int64_t wasted = one[0] * one[1] - shown;
    if (shown < most || (shown == most && wasted >= least)) continue;
    most = shown;
    least = wasted;
    best = one;
  }
  return best;
}

// int(round(x, 7)) of Python.
std::int64_t whole_places(double places) { return static_cast<std::int64_t>(places + 5e-8); }

// Python rounds halves to the even multiple.
std::int64_t resized_side(const TowerParts& tower, std::int64_t pixels) {
  const std::int64_t step = tower.patch * tower.merge;
  const std::int64_t below = pixels / step;
  if (tower.projection == ProjectorKind::Unfolded) return round_up(pixels, step);  // Pixtral's processor.
  const std::int64_t twice = 2 * (pixels - below * step);
  const bool up = twice > step || (twice == step && below % 2 != 0);
  return std::max(step, (below + (up ? 1 : 0)) * step);
}

// get_aspect_ratio_preserving_size of Gemma 4's processor, in Python's own arithmetic.
std::vector<std::int64_t> enlarged(const TowerParts& tower, std::int64_t height, std::int64_t width) {
  const std::int64_t step = tower.patch * tower.merge;
  const auto most = static_cast<double>(tower.padded * tower.patch * tower.patch);
  const double factor = std::sqrt(most / (static_cast<double>(height) * static_cast<double>(width)));
  const auto steps = [&](std::int64_t side) {
    return static_cast<std::int64_t>(std::floor(factor * static_cast<double>(side) / static_cast<double>(step)));
  };
  const std::int64_t longest = tower.padded / (tower.merge * tower.merge);
  const std::int64_t down = steps(height);
  const std::int64_t across = steps(width);
  if (down == 0) return {step, std::max<std::int64_t>(1, std::min(width / height, longest)) * step};
  if (across == 0) return {std::max<std::int64_t>(1, std::min(height / width, longest)) * step, step};
  return {down * step, across * step};
}

}  // namespace

// unpad_image of transformers.
Tiling tiling_of(const TowerParts& tower, const std::vector<std::int64_t>& size) {
  const std::array<std::int64_t, 2> fit = best_cut(tower, size[0], size[1]);
  const std::int64_t side = tower.dims.image / tower.patch;
  Tiling cut;
  cut.down = fit[0] / tower.dims.image;
  cut.across = fit[1] / tower.dims.image;
  cut.rows = cut.down * side;
  cut.columns = cut.across * side;
  const auto tall = static_cast<double>(size[0]);
  const auto wide = static_cast<double>(size[1]);
  const auto rows = static_cast<double>(cut.rows);
  const auto columns = static_cast<double>(cut.columns);
  cut.of_rows = wide / tall > columns / rows;
  if (cut.of_rows) {
    cut.padding = (cut.rows - whole_places(tall * (columns / wide))) / 2;
    cut.rows -= 2 * cut.padding;
  } else {
    cut.padding = (cut.columns - whole_places(wide * (rows / tall))) / 2;
    cut.columns -= 2 * cut.padding;
  }
  return cut;
}

std::vector<std::int64_t> resized(const TowerParts& tower, const std::vector<std::int64_t>& size) {
  if (!tower.cuts.empty()) return size;  // The model is told what a picture was before.
  if (tower.padded > 0) return enlarged(tower, size[0], size[1]);
  return {resized_side(tower, size[0]), resized_side(tower, size[1])};
}

}  // namespace dsplan
