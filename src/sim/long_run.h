// The steady step again and again on the same allocator: core/prediction.h has what is told of it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/prediction.h"
#include "core/schedule.h"
#include "sim/placement.h"

namespace dsplan {

inline constexpr std::int64_t kLongestRun = 40;

// `unlimited`: what `place_asked` and `place_other` say of the same schedule and configuration without a limit. Frees
// that wait for other streams complete when their events would have, where `options` has times: each further step takes
// as long as the second. Else they complete at once, whatever `options` say. nullopt: the schedule has no second step,
// has no room for its own steps, or its second step does not leave what it found, buffer by buffer.
[[nodiscard]] std::optional<LongRun> long_run(const Schedule& schedule, const BothPlacements& unlimited,
                                              PlacementOptions options, std::int64_t most = kLongestRun);

}  // namespace dsplan
