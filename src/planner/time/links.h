// How the groups of a job lie on its machine, and what a collective takes on them.
#pragma once

#include <array>

#include "core/job.h"
#include "core/schedule.h"
#include "planner/time/rates.h"

namespace dsplan {

// By Group. Bandwidths are 0 where the group needs none.
[[nodiscard]] std::array<GroupLinks, 6> group_links(const Job& job);

// Seconds of one call over `payload` bytes, the full logical buffer as in nccl-tests. Grows with the payload, and never
// with a bandwidth. Sources: docs/time.md.
[[nodiscard]] double collective_seconds(const GroupLinks& links, Collective collective, double payload);

}  // namespace dsplan
