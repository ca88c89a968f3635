// From a model to a chain of its layers: what checkpointing a layer saves and costs, and the segmentations that are
// worth trying, fastest first. Sizes are those of the tape (saved tensors with storages counted once), times those of
// planner/time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/chain.h"
#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "planner/lowering/recipes.h"
#include "planner/time/graph_times.h"

namespace dsplan {

// What a micro-batch holds on the device from forward to backward, by region of the graph, whatever the runtime does.
struct ActivationBytes {
  std::vector<Bytes> stored;        // By Graph::regions: what the region alone keeps if it is not checkpointed.
  std::vector<Bytes> checkpointed;  // What it keeps as a checkpoint of its own: its arguments.
  Bytes rest;                       // What lies outside the regions keeps, logits and the loss's own tensors included.
};
[[nodiscard]] ActivationBytes activation_bytes(const ModelSpec& model, const Job& job, const Graph& graph,
                                               const RecipeBook& recipes);

// A lower bound of the rank's peak of requested bytes for this segmentation: what is certainly alive at one moment.
// Never more than the simulated peak (a property test holds it to that).
[[nodiscard]] Bytes least_peak(const ModelSpec& model, const Job& job, Bytes persistent,
                               const ActivationBytes& activations, const Checkpointing& checkpoint);

// The layers as stages of a chain, with the head and the loss as the last one.
[[nodiscard]] Chain chain_of(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
                             const GraphTimes& times);

// A segmentation that no other one beats in both time and memory.
struct SegmentationChoice {
  Checkpointing checkpoint;
  double extra_seconds = 0;  // Of one micro-batch, beyond running everything once.
  Bytes need;                // Of the chain's own bytes.
};
// Least time first, and thus largest need first. At most `most` of them, evenly thinned, both ends kept.
[[nodiscard]] std::vector<SegmentationChoice> segmentation_front(const ModelSpec& model, const Job& job,
                                                                 const Graph& graph, const RecipeBook& recipes,
                                                                 const GraphTimes& times, std::size_t most);

}  // namespace dsplan
