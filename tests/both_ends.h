// A schedule placed at both ends of what waiting frees can do.
#pragma once

#include "sim/placement.h"

namespace dsplan::test {

[[nodiscard]] inline BothPlacements place_both(const Schedule& schedule, const PlacementOptions& options) {
  BothPlacements both = place_asked(schedule, options);
  place_other(schedule, options, both);
  return both;
}

}  // namespace dsplan::test
