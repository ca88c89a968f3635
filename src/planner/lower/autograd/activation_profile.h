// What the activations of one micro-batch take, moment by moment, without a runtime: the tape over a model of a few
// layers. Parameters are there throughout and count nothing, a gradient goes when AccumulateGrad has it. Under ZeRO-3 a
// module's own parameters are there while the module runs, and no longer.
#pragma once

#include <vector>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "planner/lower/autograd/recipes.h"

namespace dsplan {

// A model of at most four layers, otherwise as `model`: the first ones, with all that lies outside the layers.
inline constexpr std::int64_t kProfiledLayers = 4;
[[nodiscard]] ModelSpec with_few_layers(const ModelSpec& model);

// The most that is there beyond parameters and batch, in requested bytes, while...
struct ActivationProfile {
  Bytes head_forward;          // ... what follows the last layer runs forward,
  Bytes head_backward;         // ... and backward.
  std::vector<Bytes> forward;  // By layer: its own forward,
  std::vector<Bytes> recomputation;
  std::vector<Bytes> backward;
  Bytes end;  // ... what stands before the first layer runs backward.
  // Of parameters, as they become ready, by the same places.
  Bytes head_gradients;
  std::vector<Bytes> gradients;
  Bytes end_gradients;
};

// `model` is one tensor-parallel rank's (tensor_parallel_part), and `graph` its graph.
[[nodiscard]] ActivationProfile profile_activations(const ModelSpec& model, const Job& job, const Graph& graph,
                                                    const RecipeBook& recipes, const Checkpointing& checkpoint);

}  // namespace dsplan
