// What the ranks that share each layer have of it: stretches of whole parameters, and which operators work on them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/graph.h"
#include "core/model.h"

namespace dsplan::exec {

// `count` elements of a rank's part, which stand in the whole parameter from `first`.
struct Cut {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The part of rank `rank` of `ranks`, in order; neighbours joined. Words behind the last of a padded vocabulary are
// counted on. InternalError for key-value heads that several ranks share.
[[nodiscard]] std::vector<Cut> part_of(const ModelSpec& model, const Parameter& parameter, std::int64_t ranks,
                                       std::int64_t rank);

// By node: which of those that draw masks it is, in program order; 0 for others. What is drawn depends on that number
// alone, not on how many other operators a graph has.
[[nodiscard]] Indexed<NodeId, std::uint32_t> drawing_order(const Graph& graph);

// By node: whether what it works on is this rank's alone, because it is made of something that is cut and has not been
// summed since. There dropout draws a mask for each rank, elsewhere the same one for all (Megatron-LM,
// tensor_parallel/random.py, CudaRNGStatesTracker: attention forks the tracker, residual dropout does not).
[[nodiscard]] Indexed<NodeId, bool> works_on_parts(const ModelSpec& model, const Graph& graph);

}  // namespace dsplan::exec
