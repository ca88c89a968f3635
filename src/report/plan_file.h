// Plan files: kind "plan" (docs/plans.md).
#pragma once

#include <string>

#include "core/document.h"
#include "report/saved_plan.h"

namespace dsplan {

// Faults, together and with their places: another kind, missing and unknown keys, wrong types, rows that nobody knows
// or that stand twice, no rank at all, a training part that names files. Of another file version nothing but that is
// said. Whether the parts are what they claim to be is for those to say who read them.
[[nodiscard]] SavedPlan read_plan(const Document& document);

[[nodiscard]] bool is_plan(const Document& document);

// The same as text: keys always in the same order, one figure per line.
[[nodiscard]] std::string plan_json(const SavedPlan& plan);

}  // namespace dsplan
