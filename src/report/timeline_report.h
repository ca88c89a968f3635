// A timeline for ui.perfetto.dev and chrome://tracing.
#pragma once

#include <string>

#include "core/prediction.h"
#include "core/timeline.h"

namespace dsplan {

// Chrome's trace event format: counters of requested bytes by role and of allocated and reserved bytes, slices for
// phases, passes, modules, recomputation, and kernels and collectives by stream. Where the timeline has a clock, the axis
// is its estimated time; without one, an event of the schedule is shown as one microsecond.
[[nodiscard]] std::string perfetto_json(const Timeline& timeline, const Prediction& prediction);

}  // namespace dsplan
