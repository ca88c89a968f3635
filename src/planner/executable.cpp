#include "planner/executable.h"

#include "core/error.h"

namespace dsplan {
namespace {

void refuse_what_cannot_run(const ModelSpec& model, const Job& job, const std::string& what) {
  const auto refuse = [&](const std::string& reason) { throw Refusal(what, "cannot be executed yet: " + reason); };
  if (const auto obstacle = schedule_obstacle(model, job)) refuse(*obstacle);
  if (job.parallelism.tp > 1) refuse("tensor parallelism");
  if (model.family != "gpt2" && model.family != "llama") refuse("the " + model.family + " family");
  if (job.training.grad_scaler || job.training.dtype == DType::Float16) refuse("fp16, whose loss scale moves");
  if (!job.training.seq_list.empty()) refuse("a list of lengths");
}

}  // namespace

ExecutableRanks executables_of(const ModelSpec& model, const Job& job, std::int64_t steps, const std::string& what) {
  refuse_what_cannot_run(model, job, what);
  ExecutableRanks result;
  result.shapes = build_shapes(model, job);
  for (std::int64_t rank = 0; rank < job.parallelism.dp; ++rank) {
    result.ranks.push_back(lower_to_execute(model, job, result.shapes, rank, steps));
  }
  return result;
}

}  // namespace dsplan
