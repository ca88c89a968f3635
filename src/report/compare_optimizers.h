// Measured optimizer steps, clipping and the loss scaler held against what is predicted of them.
#pragma once

#include "core/optimizer_runs.h"
#include "core/schedule.h"
#include "report/operator_comparison.h"

namespace dsplan {

// The run as dsplan does it: a mark StepBegins before the constructor and before each of the two steps. At
// RunLevel::Kernel scratch of kernels is in it. Not for zero_grad, which is the loop's.
[[nodiscard]] Schedule optimizer_schedule(const OptimizerRun& run, RunLevel level);

// The allocations and frees among the events from `first` up to `last`; `live` is carried from one call to the next.
[[nodiscard]] OptimizerLog optimizer_log(const Schedule& schedule, std::size_t first, std::size_t last, RunLevel level,
                                         std::int64_t& live);

// All of such a schedule: the constructor and the two steps.
[[nodiscard]] OptimizerLogs optimizer_logs(const Schedule& schedule, RunLevel level);

// What the schedule, or of zero_grad the rule, says, written as the run's own logs are.
[[nodiscard]] OptimizerLogs predicted_logs(const OptimizerRun& run, RunLevel level);

// Adds the file's optimizer steps to the comparison. A step is equal if all three logs and both peaks are.
void compare_optimizers(const OperatorRuns& file, OperatorComparison& comparison);

}  // namespace dsplan
