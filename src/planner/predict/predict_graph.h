// The prediction of an op-graph on one device.
#pragma once

#include <optional>

#include "core/op_graph.h"
#include "core/prediction.h"
#include "core/units.h"
#include "model/op_graphs/op_graph.h"

namespace dsplan {

// What the verdict is against.
struct GraphMachine {
  std::optional<Bytes> capacity;
  std::optional<Bytes> context;
  Bytes reserve;
};

// Parameters, gradients: the tensors of the file that require a gradient. `above_inputs` and `saved` are there always.
[[nodiscard]] Prediction predict_graph(const OpGraph& file, const BuiltOpGraph& built, const GraphMachine& machine);

}  // namespace dsplan
