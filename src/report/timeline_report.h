// A timeline for ui.perfetto.dev and chrome://tracing.
#pragma once

#include <string>

#include "core/prediction.h"
#include "core/timeline.h"

namespace dsplan {

// Chrome's trace event format: counters of requested bytes by role and of allocated and reserved bytes, slices for
// phases, passes, modules, recomputation, kernels and collectives. One event of the schedule is shown as one
// microsecond: the axis is the order of things, not their time.
[[nodiscard]] std::string perfetto_json(const Timeline& timeline, const Prediction& prediction);

}  // namespace dsplan
