// From a recording (core/module_graph.h) to a model and its operator graph. Shapes are those of the recording: another
// micro-batch, length or dtype is refused by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/model.h"
#include "core/module_graph.h"
#include "core/training.h"
#include "model/catalogue/catalogue.h"
#include "model/graphs/builder.h"

namespace dsplan {

struct RecordedOperator {
  Recipe recipe;
};

struct RecordedOperators {
  std::vector<RecordedOperator> operators;
};

[[nodiscard]] ModelSpec build_recorded_model(ModuleGraph recording, std::string name);

// Why a recorded model's activations cannot be said under this training, or nullopt.
[[nodiscard]] std::optional<std::string> recorded_unsupported(const ModelSpec& model, const Training& training,
                                                              std::int64_t tp);

// InternalError where `recorded_unsupported` had a reason.
[[nodiscard]] Graph build_recorded_graph(const ModelSpec& model, const GraphOptions& options);

}  // namespace dsplan
