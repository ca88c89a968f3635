// Predictions as Markdown (GitHub's tables), for notes and pull requests.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"

namespace dsplan {

// One section per rank: the verdict, memory by role, traffic, assumed inputs, what is not modelled. Sizes are labelled
// and rounded to two decimals; exact integers are in the JSON.
[[nodiscard]] std::string predictions_markdown(const std::vector<Prediction>& predictions, const Job& job);

}  // namespace dsplan
