// Saved predictions: what `dsplan simulate --format json` printed.
#pragma once

#include <vector>

#include "core/document.h"
#include "report/comparison.h"

namespace dsplan {

// "dsplan.prediction/1", or the ranks of "dsplan.predictions/1": what a receipt can be held against. Keys that an older
// dsplan did not write (peaks of phases beside `peak_allocated`, `active` and `reserved` of marks) are absent figures.
// Faults: another schema, wrong types, unknown keys beside and in what is read.
[[nodiscard]] std::vector<PredictedRank> read_predictions(const Document& document);

}  // namespace dsplan
