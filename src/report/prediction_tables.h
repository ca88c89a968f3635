// Predictions as tables: CSV, and Markdown (GitHub's) for notes and pull requests.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"

namespace dsplan {

// The header `rank,path,value` and one row for every number and text of the JSON, in its order; `path` is the way to
// it ("memory.peak.by_role.activations"). Rows of lists are named rather than numbered where they have a name:
// "communication.all_gather.dp.forward.bf16.data.calls", "memory.phases.steady.before forward.allocated"; a name that
// comes again has "#2", "#3". An absent value is an empty field. Quoting is that of RFC 4180, lines end in \n.
[[nodiscard]] std::string predictions_csv(const std::vector<Prediction>& predictions, const Job& job);

// One section per rank: the verdict, memory by role, traffic, assumed inputs, what is not modelled. Sizes are labelled
// and rounded to two decimals; exact integers are in the JSON.
[[nodiscard]] std::string predictions_markdown(const std::vector<Prediction>& predictions, const Job& job);

}  // namespace dsplan
