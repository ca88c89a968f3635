// The answers of plans as files: of a search over configurations, and of a chain of stages.
#pragma once

#include <string>

#include "core/chain.h"
#include "core/search.h"

namespace dsplan {

// dsplan.search/1 (docs/planning.md).
[[nodiscard]] std::string plan_answer_json(const PlanAnswer& answer);
[[nodiscard]] std::string plan_answer_schema();
// One row for each plan that is named: the chosen one, those after it, its neighbours, the front.
[[nodiscard]] std::string plan_answer_csv(const PlanAnswer& answer);
[[nodiscard]] std::string plan_answer_markdown(const PlanAnswer& answer);

// The answer to a chain as JSON, CSV and Markdown; and a chain as its file.

// "dsplan.chain/1" (interface.md, "Chain"). Beside the promised keys: "budget_bytes", "gap" (time / lower_bound - 1),
// "optimal", "method_bound", "memory_bound" {"bytes", "stage"}, "segments" [first, last, mode] with an option's name as
// a fourth item, "fitting", "times_rounded". An operation that saves by an option names it as a third item. Times are
// in the file's unit. What there is none of is null.
[[nodiscard]] std::string chain_plan_json(const ChainPlan& plan, const Chain& chain);
[[nodiscard]] std::string chain_plan_schema();

// path,value: the same without the two lists, then "segments.1", ... and "operations.1", ... in words.
[[nodiscard]] std::string chain_plan_csv(const ChainPlan& plan, const Chain& chain);

// The figures and the segments as two tables.
[[nodiscard]] std::string chain_plan_markdown(const ChainPlan& plan, const Chain& chain);

}  // namespace dsplan
