// The step time of a job as `simulate` reports it.
#pragma once

#include <optional>
#include <string>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/lower/lower.h"

namespace dsplan {

struct TimeAnswer {
  std::optional<StepTime> time;
  std::string why;  // Which rates are missing; empty where there is a time.
};

// The same for every rank. Where lengths alternate, of a mean micro-batch.
[[nodiscard]] TimeAnswer time_of(const ModelSpec& model, const Job& job, const Shapes& shapes);

}  // namespace dsplan
