// Where the traffic of a step departs from the ZeRO paper's count, term by term, and why.
//
// The paper (Rajbhandari et al., arXiv 1910.02054, section 7) lets each rank send 2 N elements per step under plain
// data parallelism and stages 1 and 2 (reduce-scatter and all-gather, N each), and 3 N under stage 3 (parameters
// gathered in forward and in backward, gradients reduce-scattered), each times (W - 1) / W on the ring. The terms begin
// with that figure and end with what padding and rounding leave, so that they sum to the data rows of group dp to the
// byte. What tensor-parallel ranks send follows, and sums to the data rows of group tp.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"

namespace dsplan {

// Of the wire bytes of one optimizer step of one rank; `rows` are the prediction's. Empty where one rank is alone.
// Terms of no bytes are left out, but for the first.
[[nodiscard]] std::vector<TrafficTerm> traffic_terms(const ModelSpec& model, const Job& job,
                                                     const std::vector<TrafficRow>& rows);

}  // namespace dsplan
