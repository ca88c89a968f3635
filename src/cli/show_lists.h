// The lists of `dsplan show`: what is bundled, what the catalogue knows, what was assumed. At most 80 columns each.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"

namespace dsplan {

// Every bundled model with its family and its exact parameter count, ties once.
[[nodiscard]] std::string show_models();
[[nodiscard]] std::string show_graphs();
[[nodiscard]] std::string show_hardware();
[[nodiscard]] std::string show_clusters();
// Every operator of the catalogue: who has confirmed its row, and what it saves for backward in the graphs of a few
// bundled models. "-": it saves nothing there; "?": none of them uses it.
[[nodiscard]] std::string show_operators();
// Every input of a job: its value, whether it was given, derived or assumed, and why.
[[nodiscard]] std::string show_assumptions(const std::vector<ResolvedInput>& inputs);

}  // namespace dsplan
