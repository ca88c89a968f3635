// The step time of a job as `simulate` reports it.
#pragma once

#include <string>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/lowering/lower.h"

namespace dsplan {

// Sets `time`, or says in `not_modelled` which rate is missing. Where lengths alternate, that of a mean micro-batch.
void add_time(const ModelSpec& model, const Job& job, const Shapes& shapes, Prediction& prediction);

}  // namespace dsplan
