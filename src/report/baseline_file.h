// Baselines: committed predictions (docs/ci.md).
#pragma once

#include <string>

#include "core/document.h"
#include "report/baseline.h"

namespace dsplan {

// Reads kind "baseline". Faults, together and with their places: another kind, missing and unknown keys, wrong types,
// rows that nobody knows or that stand twice, negative figures, ranks that stand twice, no rank at all. Of another file
// version nothing but that is said. The contents of the inputs are kept as they are: whoever predicts reads them.
[[nodiscard]] Baseline read_baseline(const Document& document);

// Whether a document says that it is a baseline, of whatever version.
[[nodiscard]] bool is_baseline(const Document& document);

// The same as text: one row of figures per line, one option per line, keys always in the same order, so that a
// difference of two versions reads like a report.
[[nodiscard]] std::string baseline_json(const Baseline& baseline);

}  // namespace dsplan
