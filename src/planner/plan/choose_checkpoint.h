// --checkpoint auto: the fastest recompute plan with which the job fits.
#pragma once

#include <cstddef>
#include <optional>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "planner/lower/autograd/recipes.h"
#include "planner/time/graph_times.h"

namespace dsplan {

struct CheckpointChoice {
  bool fits = false;          // False: none does, and the one of least peak was taken.
  std::size_t choices = 0;    // On the front of time and memory.
  std::size_t simulated = 0;  // Of these.
  double longer = 0;          // What recomputation adds to the time of layers and head, as a part of it.
  // No schedule of the layers whatever, in as much memory as the one that was taken, is faster by more than this part.
  double gap = 0;
};

// Where job.training.checkpoint is "auto": puts a recompute plan in its place, from a front of the model's chain
// (planner/plan/recompute/from_model.h) in the order of time. The full simulation decides whether one fits; those whose
// certain memory does not fit are not simulated. Says so in the job's inputs and notices. nullopt where nothing was
// asked for.
//
// Refused: a job without a capacity; one that no schedule can be made for. Times are those of the device's rates; where
// they are missing, operations and bytes are weighed against each other, and the notice says so.
std::optional<CheckpointChoice> choose_checkpointing(const ModelSpec& model, Job& job);

// Times where no rates are known: those of a device that does a thousand million million operations while it moves a
// three hundredth of that many bytes, in a second. Only their proportions matter.
[[nodiscard]] GraphTimes times_by_work(const Graph& graph, const RecipeBook& recipes);

}  // namespace dsplan
