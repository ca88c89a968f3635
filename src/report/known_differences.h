// Differences between prediction and measurement that are known, with their reasons.
#pragma once

#include <vector>

#include "core/document.h"
#include "report/comparison.h"

namespace dsplan {

// {"schema": "dsplan.explained/1", "source": "...", "differences": [{"receipt", "rank", "row", "bytes", "reason"}]}:
// `bytes` is measured less predicted, never 0; "*" in `row` stands for any part of it. Faults: missing and unknown
// keys, an entry without a reason.
[[nodiscard]] std::vector<KnownDifference> read_known_differences(const Document& document);

}  // namespace dsplan
