// The answers of plans for people, of a search and of a chain: at most 80 columns, every size labelled.
#pragma once

#include <cstdint>
#include <string>

#include "core/chain.h"
#include "core/search.h"

namespace dsplan {

[[nodiscard]] inline const std::string& setting(const PlanRow& row, Axis axis) {
  return row.settings[static_cast<std::size_t>(axis)];
}

// "4 GPUs are the fewest that do: ".
[[nodiscard]] std::string fewest_text(std::int64_t gpus);

// First what was chosen, or that nothing fits and what misses least; then its time and memory, how many candidates were
// counted, bounded away and simulated, and why each neighbour lost.
[[nodiscard]] std::string report_plan(const PlanAnswer& answer, bool colour);

// The same in at most sixteen lines. `model` is the user's own word for it; `seconds` how long the search took.
[[nodiscard]] std::string plan_screen(const PlanAnswer& answer, const std::string& model, double seconds, bool colour);

// The front of memory and speed, with the chosen plan and the fastest after it, as a page. `lead`: the answer in a
// sentence; `command` made it.
[[nodiscard]] std::string plans_page(const PlanAnswer& answer, const std::string& lead, std::string command);

// "fits: ..." or "no plan fits: ..." first, then the figures, then the segments, equal neighbours in one row.
[[nodiscard]] std::string chain_report(const ChainPlan& plan, const Chain& chain, bool colour);

}  // namespace dsplan
