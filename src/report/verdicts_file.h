// "dsplan.verdicts/1" (docs/receipts.md).
#pragma once

#include "core/document.h"
#include "report/verdicts.h"

namespace dsplan {

// Faults: another schema, missing and unknown keys, words that are no verdict and no outcome.
[[nodiscard]] VerdictCases read_verdicts(const Document& document);

}  // namespace dsplan
