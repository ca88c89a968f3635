// A prediction as one page that shows itself: no scripts, and nothing from elsewhere.
#pragma once

#include <string>

#include "core/job.h"
#include "core/timeline.h"

namespace dsplan {

// The verdict, requested bytes over the schedule stacked by role with the reserved line and the peak, what is alive at
// the peak, phases, and the traffic of a step. The curve has at most a thousand columns; each shows its highest moment.
// Well formed as XML.
[[nodiscard]] std::string html_page(const Timeline& timeline, const Prediction& prediction, const Job& job);

}  // namespace dsplan
