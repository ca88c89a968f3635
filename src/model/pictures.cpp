#include "model/pictures.h"

#include <algorithm>

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

// Python rounds halves to the even multiple.
std::int64_t resized(const TowerParts& tower, std::int64_t pixels) {
  const std::int64_t step = tower.patch * tower.merge;
  const std::int64_t below = pixels / step;
  if (tower.projection == ProjectorKind::Unfolded) return (pixels + step - 1) / step * step;  // Pixtral's processor.
  const std::int64_t twice = 2 * (pixels - below * step);
  const bool up = twice > step || (twice == step && below % 2 != 0);
  return std::max(step, (below + (up ? 1 : 0)) * step);
}

}  // namespace dsplan
