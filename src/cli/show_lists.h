// The lists of `dsplan show`: what is bundled, what the catalogue knows, what was assumed. At most 80 columns each.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/operator_entry.h"

namespace dsplan {

// Every bundled model with its family and its exact parameter count, ties once.
[[nodiscard]] std::string show_models();
[[nodiscard]] std::string show_graphs();
[[nodiscard]] std::string show_hardware();
[[nodiscard]] std::string show_clusters();
// Every operator of the catalogue: what it saves for backward and when, its temporaries, who has confirmed its row; and
// what has a name but is written as several operators.
[[nodiscard]] std::string show_operators(const std::vector<OperatorEntry>& entries);
// Every input of a job: its value, whether it was given, derived or assumed, and why.
[[nodiscard]] std::string show_assumptions(const std::vector<ResolvedInput>& inputs);

}  // namespace dsplan
