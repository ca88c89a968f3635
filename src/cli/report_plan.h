// The answer of a search for people: at most 80 columns, every size labelled.
#pragma once

#include <string>

#include "core/search.h"

namespace dsplan {

// First what was chosen, or that nothing fits and what misses least; then its time and memory, how many candidates were
// counted, bounded away and simulated, and why each neighbour lost.
[[nodiscard]] std::string report_plan(const PlanAnswer& answer, bool colour);

}  // namespace dsplan
