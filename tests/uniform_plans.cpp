#include "uniform_plans.h"

#include <algorithm>

namespace dsplan::detail {
namespace {

// What a segment takes beside its tapes and the outputs before it.
std::int64_t overhead(const StageCost& stage) {
  return std::max(2 * stage.gradient + stage.backward_temporary, stage.gradient + stage.forward_temporary);
}

// g_{segments + 1}: how many stages a segment behind `segments` others may have; at most n.
std::int64_t room(const StageCost& stage, std::int64_t capacity, std::int64_t segments, std::int64_t n) {
  const std::int64_t bytes = capacity - overhead(stage) - stage.output * segments;
  if (bytes < 0) return 0;
  return stage.saved == 0 ? n : std::min(bytes / stage.saved, n);
}

}  // namespace

std::optional<FlatPlan> uniform_plan(const ChainCosts& costs, std::int64_t capacity) {
  const StageCost& stage = costs.stages.front();
  const auto n = static_cast<std::int64_t>(costs.size());
  std::int64_t covered = 0;  // g_1 + ... + g_p.
  for (std::int64_t p = 0; p < n; ++p) {
    const std::int64_t stored = room(stage, capacity, p, n);
    if (stored < 1) return std::nullopt;
    if (n - stored <= covered) {
      FlatPlan plan{0, (n - stored) * stage.forward_time, {}};
      std::int64_t done = 0;
      for (std::int64_t j = 0; done < n - stored; ++j) {
        const std::int64_t size = std::min(room(stage, capacity, j, n), n - stored - done);
        plan.segments.push_back({static_cast<std::int32_t>(done + 1), static_cast<std::int32_t>(done + size),
                                 ChainSegment::Mode::Recompute, kNoOption});
        done += size;
      }
      plan.segments.push_back(
          {static_cast<std::int32_t>(done + 1), static_cast<std::int32_t>(n), ChainSegment::Mode::Store, kNoOption});
      return plan;
    }
    covered += stored;
  }
  return std::nullopt;
}

std::int64_t uniform_minimum(const ChainCosts& costs) {
  const StageCost& stage = costs.stages.front();
  const auto n = static_cast<std::int64_t>(costs.size());
  const auto enough = [&](std::int64_t capacity) { return uniform_plan(costs, capacity).has_value(); };
  std::int64_t low = 0, high = overhead(stage) + n * stage.saved;  // Everything stored is enough.
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (enough(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace dsplan::detail
