// Comparisons, checked baselines and measured operators for people: at most 80 columns, except where a row's own path
// is longer.
#pragma once

#include <string>
#include <vector>

#include "report/baseline.h"
#include "report/comparison.h"
#include "report/operator_comparison.h"

namespace dsplan {

// Each receipt with its count of rows by state, the rows that stand for the whole run, and every row that differs or is
// explained; then, of several receipts, a line for each and the strata.
[[nodiscard]] std::string report(const std::vector<ReceiptComparison>& comparisons,
                                 const std::vector<StratumRow>& strata);

// The confusion matrix, and the cases that it got wrong.
[[nodiscard]] std::string report(const VerdictCases& cases);

// What moved in one baseline: its changed inputs, the rows that stand for the whole run, and every row that moved, each
// with the part of a newer dsplan and the part of the user's change.
[[nodiscard]] std::string check_details(const CheckedBaseline& checked);

// The details of those that do not agree; then, of several, a line for each and their counts.
[[nodiscard]] std::string report(const std::vector<CheckedBaseline>& checked);

// Measured operators against the catalogue, as a table.

// First a line with the verdict, then each row that differs with a few of its cases, then the rows that a library makes
// uncertain, those without a case, and those that nothing speaks against.
[[nodiscard]] std::string operators_report(const OperatorComparison& comparison);

}  // namespace dsplan
