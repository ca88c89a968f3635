// The operator catalogue as JSON and as Markdown.
#pragma once

#include <string>
#include <vector>

#include "core/operator_entry.h"
#include "report/operator_comparison.h"

namespace dsplan {

// {"schema": "dsplan.operators/1", "torch", "operators": [{"name", "inputs", "saved", "forward", "backward", ...}]}.
[[nodiscard]] std::string operators_json(const std::vector<OperatorEntry>& entries, const std::string& torch);

// A table with one row for each operator; kernel temporaries are in italics.
[[nodiscard]] std::string operators_markdown(const std::vector<OperatorEntry>& entries);

// "dsplan.operator_comparison/1": per row with cases "name", "cases", "equal", "failed" and "differences" (each with
// "case", "part", "kind", "predicted", "measured"), the same of "optimizers", then "without_case" and "confirmed",
// names.
[[nodiscard]] std::string operator_comparison_json(const OperatorComparison& comparison);

}  // namespace dsplan
