// What autograd's nodes keep for backward, node by node under PyTorch's names: `--explain saved`.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/lower/autograd/recipes.h"

namespace dsplan {

// Of the nodes that backward will run, in the order of the forward. A storage counts at the first node that keeps it;
// parameters count nothing. A checkpointed region keeps what it was called with instead of what its nodes save.
// `names`: by TensorId, may be empty. Rows that are alike in every layer are one row.
[[nodiscard]] std::vector<SavedTensor> saved_tensors(const ModelSpec& model, const Graph& graph,
                                                     const RecipeBook& recipes, const Checkpointing& checkpoint,
                                                     std::span<const std::string> names);

// Of a model's forward; nothing where no graph can be made.
[[nodiscard]] std::vector<SavedTensor> saved_tensors(const ModelSpec& model, const Job& job);

}  // namespace dsplan
