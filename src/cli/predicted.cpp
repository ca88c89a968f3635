#include "cli/predicted.h"

#include "cli/output.h"
#include "core/error.h"
#include "planner/predict/allocation.h"
#include "planner/predict/predict.h"
#include "planner/predict/schedules.h"
#include "sim/allocator.h"

namespace dsplan {

AllocatorConfig allocator_config(const Job& job) { return job.allocator; }

Predicted predicted_schedule(const SimulateWords& words, const std::string& what) {
  Predicted result;
  result.inputs = gather(words);
  result.job = resolve(result.inputs);
  say(render(result.job.notices));
  if (result.job.rank == "all") throw Refusal("--rank", what + " is of one rank", "name one, or take the worst");
  result.prediction = predict_asked(result.inputs.model, result.job).front();
  result.schedule = schedule_of(result.inputs.model, result.job, result.prediction.rank, what);
  result.config = allocator_config(result.job);
  const std::optional<VerdictLimit> limit = verdict_limit(device_room(result.prediction));
  result.limit = limit ? limit->limit : CachingAllocator::kUnlimited;
  return result;
}

}  // namespace dsplan
