// Comparisons as JSON, CSV and Markdown. Bytes are integers; an absent side is null or empty.
#pragma once

#include <string>
#include <vector>

#include "report/comparison.h"

namespace dsplan {

// "dsplan.comparison/1".
[[nodiscard]] std::string comparisons_json(const std::vector<ReceiptComparison>& comparisons,
                                           const std::vector<StratumRow>& strata);
[[nodiscard]] std::string comparison_schema();
// "receipt,rank,row,kind,predicted,measured,explained,unexplained,tolerance,state,note": every row.
[[nodiscard]] std::string comparisons_csv(const std::vector<ReceiptComparison>& comparisons);
// Two tables: the rows of each receipt that stand for the whole run or differ, and the strata.
[[nodiscard]] std::string comparisons_markdown(const std::vector<ReceiptComparison>& comparisons,
                                               const std::vector<StratumRow>& strata);

// "dsplan.confusion/1": how often each verdict met each outcome.
[[nodiscard]] std::string verdicts_json(const VerdictCases& cases);
[[nodiscard]] std::string confusion_schema();

}  // namespace dsplan
