// How long each piece of work of a schedule takes on its stream, for a clock beside the allocator (sim/stream_clock.h):
// which frees are over when. Estimated from what the work reads and writes; step times are another matter (estimate.h).
#pragma once

#include "core/job.h"
#include "core/schedule.h"
#include "planner/time/rates.h"
#include "sim/stream_clock.h"

namespace dsplan {

[[nodiscard]] EventTimes event_times(const Schedule& schedule, const Job& job, const Rates& rates);

}  // namespace dsplan
