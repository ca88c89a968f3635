// Plans of two blocks: the first stages each one way, the others each another; the last stage is stored. Where stages
// are alike the best flat plans are nearly of this form, and a front of them costs microseconds where the exact one
// (flat.h) takes milliseconds. Ways are: stored, one of the options, or segments of one length.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/plan/recompute/flat.h"

namespace dsplan::detail {

// Those that no other of them beats, least need first; at most `most`, evenly thinned, both ends kept. Every single
// length of segments is among what is tried, as are all of one option, all stored, and the plan of least need of all.
[[nodiscard]] std::vector<FlatPlan> block_plans(const ChainCosts& costs, std::size_t most);

}  // namespace dsplan::detail
