// What baselines and plans keep alike: versions, and figures by rank.
#pragma once

#include <string_view>
#include <vector>

#include "io/fields.h"
#include "report/baseline.h"

namespace dsplan::detail {

// Under "written".
void describe_versions(Fields& fields, BaselineVersions& versions);
// Under "ranks"; `what` is one of them: "a rank of a plan". A reader's faults: no rank at all, a rank that stands
// twice, rows that nobody knows, negative figures.
void describe_ranks(Fields& fields, std::vector<BaselineRank>& ranks, std::string_view what);

}  // namespace dsplan::detail
