// The time of one optimizer step in steady state, from the kernels of a micro-batch and what the runtime moves.
#pragma once

#include <optional>
#include <string>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/lower/lower.h"
#include "planner/time/graph_times.h"
#include "planner/time/rates.h"

namespace dsplan {

// Of rank 0. `times` is that of the job's graph; `graph` is only asked for its regions. Takes no longer than some
// microseconds, so that a search can afford it for every candidate.
[[nodiscard]] StepTime estimate(const ModelSpec& model, const Job& job, const Graph& graph, const GraphTimes& times,
                                const Rates& rates);

// The step time of a job as `simulate` reports it.

struct TimeAnswer {
  std::optional<StepTime> time;
  std::string why;  // Which rates are missing; empty where there is a time.
};

// The same for every rank. Where lengths alternate, of a mean micro-batch.
[[nodiscard]] TimeAnswer time_of(const ModelSpec& model, const Job& job, const Shapes& shapes);

}  // namespace dsplan
