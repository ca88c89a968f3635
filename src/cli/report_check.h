// Checked baselines for people: at most 80 columns, except where a row's own path is longer.
#pragma once

#include <string>
#include <vector>

#include "report/baseline.h"

namespace dsplan {

// What moved in one baseline: its changed inputs, the rows that stand for the whole run, and every row that moved, each
// with the part of a newer dsplan and the part of the user's change.
[[nodiscard]] std::string check_details(const CheckedBaseline& checked);

// The details of those that do not agree; then, of several, a line for each and their counts.
[[nodiscard]] std::string report(const std::vector<CheckedBaseline>& checked);

}  // namespace dsplan
