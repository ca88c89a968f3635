// A prediction as the rows that a baseline keeps.
#pragma once

#include "core/prediction.h"
#include "report/baseline.h"

namespace dsplan {

// Parameters, persistent bytes and peaks with their roles, the peaks of each phase, host memory, the traffic of a step
// and the verdict. Not the marks within a phase, nor which event is the peak: they move without any limit moving.
[[nodiscard]] BaselineRank figure_rows(const Prediction& prediction);

}  // namespace dsplan
