// For a job that does not fit, or barely: the changes with which it does, each by the whole prediction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"
#include "planner/plan/space.h"

namespace dsplan {

// Near: the same training, otherwise laid out: allocator, checkpoints, ZeRO stage, smaller micro-batches with as many
// more of them, and these together. Far: also offload, more GPUs, optimizers with smaller states, adapters.
enum class Reach : std::uint8_t { Near, Far };
inline constexpr std::size_t kAllChanges = std::numeric_limits<std::size_t>::max();

// `now` is the prediction of `job`, which `inputs` resolve to. Only what has a better verdict than `now`; the best
// verdict and then the fastest first. Combinations are tried where no single change fits with room to spare, and what
// is Far where nothing Near does. Where a few are `enough`, Far ones are tried until so many fit with room to spare,
// what changes least before the rest, and none beside a Near one that may do without retries. The number of processors
// changes no answer.
[[nodiscard]] std::vector<FittingChange> what_fits(const SearchInputs& inputs, const Job& job, const Prediction& now,
                                                   Reach reach, std::size_t enough = kAllChanges);

// Ways to train a model for which no plan fits, with one row in a micro-batch and every layer checkpointed: as it is,
// optimizers with smaller states, offload, adapters. Whether they fit or not, each with its bytes. The number of GPUs
// is the space's where that took one for granted.
[[nodiscard]] std::vector<FittingChange> other_ways(const SearchInputs& inputs, const SearchSpace& space);

}  // namespace dsplan
