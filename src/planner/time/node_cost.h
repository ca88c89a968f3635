// One operator: seconds on the device and operators on the host, before either hides the other.
#pragma once

#include "core/graph.h"
#include "planner/time/rates.h"

namespace dsplan {

struct PassTimes {
  double forward = 0;  // Seconds of kernels.
  double backward = 0;
  double forward_collectives = 0;  // Seconds of tensor parallelism, exposed.
  double backward_collectives = 0;
  double forward_flops = 0;  // Operations; a causal kernel is counted as what it computes.
  double backward_flops = 0;

  void add(const PassTimes& other) {
    forward += other.forward;
    backward += other.backward;
    forward_collectives += other.forward_collectives;
    backward_collectives += other.backward_collectives;
    forward_flops += other.forward_flops;
    backward_flops += other.backward_flops;
  }
};

struct NodeCost : PassTimes {
  double forward_calls = 0;  // Launches, in units of Rates::launch.
  double backward_calls = 0;

  NodeCost& operator+=(const NodeCost& other);
};

[[nodiscard]] NodeCost node_cost(const Graph& graph, const Node& node, const Rates& rates);

}  // namespace dsplan
