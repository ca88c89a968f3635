// Measured operators against the catalogue, as a table.
#pragma once

#include <string>

#include "report/operator_comparison.h"

namespace dsplan {

// First a line with the verdict, then each row that differs with a few of its cases, then the rows that a library makes
// uncertain, those without a case, and those that nothing speaks against.
[[nodiscard]] std::string operators_report(const OperatorComparison& comparison);

}  // namespace dsplan
