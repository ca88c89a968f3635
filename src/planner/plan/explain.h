// Why the chosen plan and not another one; and where nothing fits, what would.
#pragma once

#include <string>
#include <vector>

#include "core/search.h"
#include "planner/plan/walk.h"

namespace dsplan::detail {

// `chosen` with one setting changed, to each value of the space and of dsplan's own lists; the fastest first. Those
// that are faster are judged by bound or by simulation: each says why it lost.
[[nodiscard]] std::vector<PlanChange> neighbours_of(const SearchInputs& inputs, Walk& walk, const Candidate& chosen,
                                                    const SearchOptions& options, Verdicts& verdicts);

// Nothing fits: one axis of the space opened to dsplan's own list (ranks: up to eight times as many), and where that is
// never enough two. Each is the fastest plan that then fits; speed is that over `nearest`'s.
[[nodiscard]] std::vector<PlanChange> remedies_for(const SearchInputs& inputs, const Walk& walk, const PlanRow& nearest,
                                                   const SearchOptions& options, Verdicts& verdicts);

// What the space leaves out although somebody may want it, each with the reason.
[[nodiscard]] std::vector<std::string> not_searched(Walk& walk);

// Which states alone are more than the limit, and which stage would do; empty where they are not the reason.
[[nodiscard]] std::string states_too_large(const SearchInputs& inputs, Walk& walk);

}  // namespace dsplan::detail
