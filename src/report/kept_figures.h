// What baselines and plans keep alike: the figures of a prediction by rank, and versions.
#pragma once

#include <string_view>
#include <vector>

#include "core/prediction.h"
#include "io/fields.h"
#include "report/baseline.h"

namespace dsplan {

// Parameters, persistent bytes and peaks with their roles, the peaks of each phase, host memory, the traffic of a step
// and the verdict. Not the marks within a phase, nor which event is the peak: they move without any limit moving.
[[nodiscard]] BaselineRank figure_rows(const Prediction& prediction);

namespace detail {

void describe_versions(Fields& fields, const Key& key, BaselineVersions& versions);
// Under "ranks"; `what` is one of them: "a rank of a plan". A reader's faults: no rank at all, a rank that stands
// twice, rows that nobody knows, negative figures.
void describe_ranks(Fields& fields, std::vector<BaselineRank>& ranks, std::string_view what);

}  // namespace detail
}  // namespace dsplan
