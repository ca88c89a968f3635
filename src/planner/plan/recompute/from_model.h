// From a model to a chain of its layers: what checkpointing a layer saves and costs, and the recompute plans that are
// worth trying, fastest first. Sizes are those of the tape (saved tensors with storages counted once), times those of
// planner/time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/chain.h"
#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "planner/lower/autograd/recipes.h"
#include "planner/time/graph_times.h"

namespace dsplan {

// What a micro-batch holds on the device from forward to backward, by region of the graph, whatever the runtime does;
// and what is there for a moment, which only `least_peak` asks for.
//
// The graph must be that of a job which checkpoints something where what is asked about does: transformers 5 makes the
// embeddings' output require a gradient then, and frozen layers keep more. All else that the recompute plan, the ranks
// and the accumulation may differ in is free. What ZeRO-3 gathers and leaves in place counts as `job` has it: its
// persistence threshold, reuse distance and bucket.
struct ActivationBytes {
  std::vector<Bytes> stored;        // By Graph::regions: what the region alone keeps if it is not checkpointed.
  std::vector<Bytes> checkpointed;  // What it keeps as a checkpoint of its own: its arguments.
  Bytes rest;                       // What lies outside the regions keeps, logits and the loss's own tensors included.

  std::vector<Bytes> both;  // By region: of both of the above, what lies in the same storage.
  Bytes early;              // Of `rest`: what stays until the first region's backward is over.
  // The most that head and loss take, forward or backward, beyond what the regions and `early` keep.
  Bytes head;
  // By region, the most of its own backward beyond what the regions before it and `early` keep: where it was stored;
  // as a checkpoint of its own (recomputation included); and where it was computed again, its arguments left out.
  std::vector<Bytes> stored_backward;
  std::vector<Bytes> checkpointed_backward;
  std::vector<Bytes> recomputed_backward;
  std::vector<Bytes> stored_forward;  // Likewise, of its forward.
  Bytes end;                          // Of the backward of what lies before the first region.
  // Gradients of parameters that are ready before a region's backward begins, by region; all, and those at the very
  // end.
  std::vector<Bytes> gradients_before;
  Bytes gradients;
  Bytes end_gradients;
  // What the operators of a region keep as `CheckpointGroup::kept`: by region the index of its rows.
  struct Kept {
    Op op = Op::Linear;
    Bytes bytes;
  };
  std::vector<std::vector<Kept>> kept;
  std::vector<std::int32_t> kind;  // By region: into `kept`; regions that are alike share one.
  // Of this tensor-parallel rank.
  Elements parameters;
  Elements trained;
};
[[nodiscard]] ActivationBytes activation_bytes(const ModelSpec& model, const Job& job, const Graph& graph,
                                               const RecipeBook& recipes);

// A lower bound of the rank's peak of requested bytes for this recompute plan: what is certainly alive at one moment.
// Never more than the simulated peak of any rank (a property test holds it to that). `persistent`: footprint's total.
// `activations` may be those of another job of the same graph; `checkpoint` has its groups (checkpointing_of). Some
// additions for each region: a microsecond.
[[nodiscard]] Bytes least_peak(const ModelSpec& model, const Job& job, Bytes persistent,
                               const ActivationBytes& activations, const Checkpointing& checkpoint);

// The layers as stages of a chain, with the head and the loss as the last one.
[[nodiscard]] Chain chain_of(const ModelSpec& model, const Job& job, const Graph& graph, const RecipeBook& recipes,
                             const GraphTimes& times);

// The same with what its regions keep at hand: `graph` may be that of fewer layers, as long as it has each kind of
// region.
[[nodiscard]] Chain chain_of(const ModelSpec& model, const Job& job, const Graph& graph,
                             const ActivationBytes& activations, const GraphTimes& times);

// A recompute plan that no other one beats in both time and memory.
struct SegmentationChoice {
  Checkpointing checkpoint;
  double extra_seconds = 0;  // Of one micro-batch, beyond running everything once.
  Bytes need;                // Of the chain's own bytes.
};
inline constexpr std::size_t kQuickLabels = 3000;
// Least time first, and thus largest need first. At most `most` of them (2 or more), evenly thinned over the need, both
// ends kept. The front of all flat plans where that takes no more than `most_labels` labels; else that of plans of two
// blocks (blocks.h), which is a percent off it at most in models of today. `like` is what the choices are like but for
// their groups.
[[nodiscard]] std::vector<SegmentationChoice> front_of(const Chain& chain, const Checkpointing& like, std::size_t most,
                                                       std::size_t most_labels);

// What such a choice is called: "auto:0-31/4,32-79" for groups of four layers, then single ones; what is not named is
// stored. "none" where nothing is computed again.
[[nodiscard]] std::string checkpointing_text(const std::vector<CheckpointGroup>& groups);
// A chain does not know where one list of layers ends and the next begins: groups across such an end become two.
void cut_at_lists(Checkpointing& checkpoint, const ModelSpec& model);

}  // namespace dsplan
