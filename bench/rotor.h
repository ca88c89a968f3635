// The dense table of Beaumont et al. ("rotor", report 1911.13214): the least time over all persistent schedules, nested
// to any depth. A reference for benchmarks and tests: O(n^3 * slots) time, and more nesting than DeepSpeed, Megatron or
// transformers run. For chains without options, weights to gather and what `spares`.
//
// E(s, t, m), the least extra time of stages s to t with m bytes beside the input of s:
//   all:  E(s + 1, t, m - abar_s)                                    if m >= delta_t + abar_s + oF_s and
//                                                                      m >= delta_s + delta_{s-1} + abar_s + oB_s
//   ck:   sum of uF over [s, s' - 1] + E(s', t, m - a_{s'-1}) + E(s, s' - 1, m)   for s < s' <= t,
//                                                                      if m holds that forward without saving
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan/recompute/costs.h"

namespace dsplan::detail {

struct RotorRules {
  std::int64_t slots = 500;
  bool save_single = false;  // "all" for the last stage of an interval only: Griewank and Walther's binomial problem.
};

struct RotorPlan {
  std::int64_t extra = 0;
  bool exact = false;  // Counted in the gcd of all sizes; else every size was rounded up to a slot.
  std::vector<ChainOperation> operations;
};

// `capacity` without the input. Absent: nothing fits after rounding.
[[nodiscard]] std::optional<RotorPlan> rotor(const ChainCosts& costs, std::int64_t capacity, const RotorRules& rules);

// The least capacity of any persistent schedule, byte-exact, with a schedule that runs in it. O(n^3).
struct RotorMinimum {
  std::int64_t need = 0;
  std::vector<ChainOperation> operations;
};
[[nodiscard]] RotorMinimum rotor_minimum(const ChainCosts& costs);

}  // namespace dsplan::detail
