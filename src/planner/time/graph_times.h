// What the kernels of one micro-batch take, by part of the network. Depends on the graph and the rates alone, so that a
// search computes it once for all the plans that share a graph.
#pragma once

#include <vector>

#include "core/graph.h"
#include "core/training.h"
#include "planner/time/rates.h"

namespace dsplan {

// One forward and one backward; collectives of tensor parallelism are apart, as they are part of the graph.
struct PartTime {
  double forward = 0;         // Seconds of kernels, never less than launching them takes.
  double backward = 0;        // Without any recomputation.
  double forward_launch = 0;  // Of both: what launching adds to the kernels' own time.
  double backward_launch = 0;
  double forward_collectives = 0;  // Seconds, exposed.
  double backward_collectives = 0;
  double forward_flops = 0;  // Operations; a causal kernel is counted as what it computes.
  double backward_flops = 0;

  PartTime& operator+=(const PartTime& other);
};

struct GraphTimes {
  PartTime before;                // Embeddings, tables and masks: up to the first region.
  std::vector<PartTime> regions;  // By Graph::regions: the layers.
  PartTime after;                 // Final norm, head and loss.
};

[[nodiscard]] PartTime node_time(const Graph& graph, const Node& node, const Training& training, const Rates& rates);
[[nodiscard]] GraphTimes graph_times(const Graph& graph, const Training& training, const Rates& rates);

}  // namespace dsplan
