// Flat plans: each stage is stored, with one of its options, or computed again once, with a whole segment, before the
// segment's backward; the last stage is always stored, as recomputing it frees nothing. Segments may differ in length.
// These are the plans that torch.utils.checkpoint, transformers and DeepSpeed run without nesting.
//
// Solved from the loss to the input: what the stages from j on need beyond those before them composes by sums and
// maxima, so that a front of (need, extra time) for each j is all there is to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "planner/plan/recompute/costs.h"

namespace dsplan::detail {

// Bytes without the chain's input; extra time beyond every forward and every backward once.
struct FlatPlan {
  std::int64_t need = 0;
  std::int64_t extra = 0;
  std::vector<ChainSegment> segments;
};

struct FlatRules {
  bool recompute = true;  // False: stages are stored, each with one of its options.
  bool prune = true;      // By the turn-point bound; changes no answer.
  std::size_t most_labels = 2'000'000;
};

// The plan of least need, and among the transitions of equal need the first; always exists. O(n * longest segment).
[[nodiscard]] FlatPlan flat_minimum(const ChainCosts& costs, const FlatRules& rules);

struct FlatAnswer {
  std::optional<FlatPlan> plan;  // Of least extra time; absent: nothing fits, or `complete` is false.
  bool complete = true;          // False: more than `most_labels` labels.
  std::size_t labels = 0;        // Of all fronts together.
};

// Byte-exact, for one budget.
[[nodiscard]] FlatAnswer flat_exact(const ChainCosts& costs, std::int64_t capacity, const FlatRules& rules);

// Of points with these needs, ascending, at most `most` (2 or more): evenly over the need, the fastest within each
// step, both ends kept. Indices, ascending.
[[nodiscard]] std::vector<std::size_t> thinned(const std::vector<std::int64_t>& needs, std::size_t most);

// All budgets at once: every plan that no other one beats, least need first, thinned. Absent: too many labels.
[[nodiscard]] std::optional<std::vector<FlatPlan>> flat_plans(const ChainCosts& costs, const FlatRules& rules,
                                                              std::size_t most);

// The same with bytes counted in slots. `unit` is the gcd of all sizes where that makes no more than `slots`: then the
// answer is exact. Otherwise sizes are rounded up, which gives a plan, and once more down, which gives a bound.
struct SlotAnswer {
  std::optional<FlatPlan> plan;       // `need` is 0: not counted. Absent: nothing fits after rounding up.
  std::optional<std::int64_t> bound;  // No flat plan has less extra time; absent: none fits even after rounding down.
};
[[nodiscard]] SlotAnswer flat_slots(const ChainCosts& costs, std::int64_t capacity, std::int64_t slots,
                                    const FlatRules& rules);
// One rounding of the two.
[[nodiscard]] std::optional<FlatPlan> flat_slots_up(const ChainCosts& costs, std::int64_t capacity, std::int64_t slots,
                                                    const FlatRules& rules);
// The gcd of all sizes, at least 1.
[[nodiscard]] std::int64_t unit_of(const ChainCosts& costs);

}  // namespace dsplan::detail
