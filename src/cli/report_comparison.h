// Comparisons for people: at most 80 columns, except where a row's own path is longer.
#pragma once

#include <string>
#include <vector>

#include "report/comparison.h"
#include "report/verdicts.h"

namespace dsplan {

// Each receipt with its count of rows by state, the rows that stand for the whole run, and every row that differs or is
// explained; then, of several receipts, a line for each and the strata.
[[nodiscard]] std::string report(const std::vector<ReceiptComparison>& comparisons,
                                 const std::vector<StratumRow>& strata);

// The confusion matrix, and the cases that it got wrong.
[[nodiscard]] std::string report(const VerdictCases& cases);

}  // namespace dsplan
