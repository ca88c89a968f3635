// The answer of a search as files.
#pragma once

#include <string>

#include "core/search.h"

namespace dsplan {

// dsplan.search/1 (docs/planning.md).
[[nodiscard]] std::string plan_answer_json(const PlanAnswer& answer);
// One row for each plan that is named: the chosen one, those after it, its neighbours, the front.
[[nodiscard]] std::string plan_answer_csv(const PlanAnswer& answer);
[[nodiscard]] std::string plan_answer_markdown(const PlanAnswer& answer);

}  // namespace dsplan
