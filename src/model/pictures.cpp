#include "model/pictures.h"

#include <algorithm>
#include <cmath>

namespace dsplan {

Grid grid_of(const TowerParts& tower, const std::vector<std::int64_t>& size) {
  return {size[0] / tower.patch, size[1] / tower.patch};
}

std::int64_t tokens_of(const TowerParts& tower, const std::vector<std::int64_t>& size) {
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

// Python rounds halves to the even multiple.
std::int64_t resized_side(const TowerParts& tower, std::int64_t pixels) {
  const std::int64_t step = tower.patch * tower.merge;
  const std::int64_t below = pixels / step;
  if (tower.projection == ProjectorKind::Unfolded) return (pixels + step - 1) / step * step;  // Pixtral's processor.
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

std::vector<std::int64_t> resized(const TowerParts& tower, const std::vector<std::int64_t>& size) {
  if (tower.padded > 0) return enlarged(tower, size[0], size[1]);
  return {resized_side(tower, size[0]), resized_side(tower, size[1])};
}

}  // namespace dsplan
