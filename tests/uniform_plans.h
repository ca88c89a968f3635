// Closed forms for a chain of equal stages: the first n - k stages in segments, as long as each may be, and the last k
// stored. Equal to the least time of all flat plans at every budget.
//
// With a, a-bar the output and the saved bytes, M the budget without the input, and
// c = max(2 delta + backward temporaries, delta + forward temporaries), the j-th segment from the input may have
//   g_j = floor((M - c - a (j - 1)) / a-bar)
// stages while that is positive, so that segments shrink towards the loss. With p segments and k stored stages
//   a p + a-bar k + c <= M,  k >= 1,  g_1 + ... + g_p >= n - k,
// and n - k forwards run twice. The smallest budget is the least M with g_1 + g_2 + ... >= n.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/plan/recompute/flat.h"

namespace dsplan::detail {

// `capacity` is the budget without the input. O(n).
[[nodiscard]] std::optional<FlatPlan> uniform_plan(const ChainCosts& costs, std::int64_t capacity);
[[nodiscard]] std::int64_t uniform_minimum(const ChainCosts& costs);

}  // namespace dsplan::detail
