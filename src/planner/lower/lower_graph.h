// The schedule of an op-graph: its tensors are there, one forward, the outputs are let go of (unless they are kept),
// one backward from them, and the leaves' gradients stay.
#pragma once

#include "core/schedule.h"
#include "model/op_graphs/op_graph.h"
#include "planner/lower/autograd/recipes.h"

namespace dsplan {

// Two stretches: init, and the first step. Backward starts from an expanded view of a scalar that lies on the host, so
// that no byte of the device is the seed's. Without an output that requires a gradient there is no backward, and its
// marks follow each other.
[[nodiscard]] Schedule lower_graph(const BuiltOpGraph& built, const RecipeBook& recipes, bool keep_outputs);

}  // namespace dsplan
