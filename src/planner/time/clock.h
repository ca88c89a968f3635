// When events of a schedule happen: the estimated times of a step's passes, shared out among their kernels.
#pragma once

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "core/timeline.h"

namespace dsplan {

// For pictures. Each forward, backward and optimizer step takes what `time` says of it, the first step as long as each
// later one. Inside, kernels share it by what the formulas say of their operator, and where those say nothing, by the
// bytes that they touch. Collectives beside the compute stream begin where they are enqueued, or when their stream is
// free. Loading and saving take what their kernels take.
[[nodiscard]] Clock clock_of(const Schedule& schedule, const ModelSpec& model, const Job& job, const StepTime& time);

}  // namespace dsplan
