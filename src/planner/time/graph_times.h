// What the kernels of one micro-batch take, by part of the network. Depends on the graph and the rates alone, so that a
// search computes it once for all the plans that share a graph.
#pragma once

#include <vector>

#include "core/graph.h"
#include "core/training.h"
#include "planner/time/node_cost.h"
#include "planner/time/rates.h"

namespace dsplan {

// One forward and one backward; collectives of tensor parallelism are apart, as they are part of the graph.
struct PartTime : PassTimes {
  // Of `forward` and `backward`, which are never less than launching their kernels takes: what launching adds. Backward
  // is without any recomputation.
  double forward_launch = 0;
  double backward_launch = 0;

  PartTime& operator+=(const PartTime& other);
  PartTime& operator*=(double factor);
};

// Parameters of one size, as a rank holds them.
struct SizeCount {
  Elements elements;  // Of one.
  std::int64_t count = 0;
  bool trained = false;
  bool again = false;  // A part before this one uses them too (ties): they are gathered again, and reduced once.
};

// What one part asks of whoever spreads parameters over ranks. `modules` have parameters of their own.
struct PartParameters {
  std::vector<SizeCount> sizes;
  std::int64_t modules = 0;
  std::int64_t tensors = 0;
};

struct GraphTimes {
  PartTime before;                // Embeddings, tables and masks: up to the first region.
  std::vector<PartTime> regions;  // By Graph::regions: the layers.
  PartTime after;                 // Final norm, head and loss; and what lies between regions.
  // By region: what a recomputation leaves out that stops once all that was saved is there again. Of forward alone.
  std::vector<PartTime> tails;
  PartParameters before_parameters;
  std::vector<PartParameters> region_parameters;
  PartParameters after_parameters;

  // By region, into `by_operator`: the forward of each kind of operator, which a selective checkpoint may keep. Regions
  // that are alike share one list.
  struct OperatorTime {
    Op op = Op::Linear;
    PartTime part;
  };
  std::vector<std::size_t> operators;
  std::vector<std::vector<OperatorTime>> by_operator;

  // Of another length: parameters are the same.
  void add(const GraphTimes& other);
  void scale(double factor);
};

[[nodiscard]] PartTime node_time(const Graph& graph, const Node& node, const Training& training, const Rates& rates);
[[nodiscard]] GraphTimes graph_times(const Graph& graph, const Training& training, const Rates& rates);

}  // namespace dsplan
