// A timeline as one page that shows itself (no scripts, and nothing from elsewhere), and for ui.perfetto.dev and
// chrome://tracing.
#pragma once

#include <string>

#include "core/job.h"
#include "core/timeline.h"

namespace dsplan {

// The verdict, requested bytes over the schedule stacked by role with the reserved line and the peak, what is alive at
// the peak, phases, and the traffic of a step. The curve has at most a thousand columns; each shows its highest moment.
// Well formed as XML.
[[nodiscard]] std::string html_page(const Timeline& timeline, const Prediction& prediction, const Job& job);

// Chrome's trace event format: counters of requested bytes by role and of allocated and reserved bytes, slices for
// phases, passes, modules, recomputation, kernels and collectives. One event of the schedule is shown as one
// microsecond: the axis is the order of things, not their time.
[[nodiscard]] std::string perfetto_json(const Timeline& timeline, const Prediction& prediction);

}  // namespace dsplan
