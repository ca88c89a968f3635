// The operator catalogue as JSON and as Markdown.
#pragma once

#include <string>
#include <vector>

#include "core/operator_entry.h"

namespace dsplan {

// {"schema": "dsplan.operators/1", "torch", "operators": [{"name", "inputs", "saved", "forward", "backward", ...}]}.
[[nodiscard]] std::string operators_json(const std::vector<OperatorEntry>& entries, const std::string& torch);

// A table with one row for each operator; kernel temporaries are in italics.
[[nodiscard]] std::string operators_markdown(const std::vector<OperatorEntry>& entries);

}  // namespace dsplan
