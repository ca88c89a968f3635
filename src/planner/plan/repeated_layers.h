// A search asks for the same figures of one model over and over. Where a model's layers are alike, those of a model
// with five of them say everything of one with any number.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "core/job.h"
#include "core/model.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/time/graph_times.h"

namespace dsplan::detail {

// A model with five layers, like the one that is asked about; absent where its layers differ in ways that
// fewer of them do not show: other parameters, sliding windows, experts in some layers.
struct FewLayers {
  ModelSpec five;
};
[[nodiscard]] std::optional<FewLayers> few_layers(const ModelSpec& model,
                                                  const std::function<ModelSpec(std::int64_t)>& with_layers);

// What five layers take, of as many as `layers`: the first and the last are theirs, the second stands for all between.
// nullopt where the three in the middle are not alike.
[[nodiscard]] std::optional<GraphTimes> repeated(const GraphTimes& five, std::size_t layers);
// Likewise; sums grow by what a layer in the middle has.
[[nodiscard]] std::optional<ActivationBytes> repeated(const ActivationBytes& five, std::size_t layers,
                                                      const FewLayers& few, const Job& job);

}  // namespace dsplan::detail
