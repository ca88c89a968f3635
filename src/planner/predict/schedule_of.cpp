#include "planner/predict/schedule_of.h"

#include "core/error.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"

namespace dsplan {

Schedule schedule_of(const ModelSpec& model, const Job& job, std::int64_t rank, const std::string& what) {
  if (const auto obstacle = unsupported(model, job)) {
    throw Refusal(what, "needs a schedule, and none can be made for this job yet: " + *obstacle);
  }
  return lower(model, job, build_shapes(model, job), job.parallelism.data_rank(rank));
}

}  // namespace dsplan
