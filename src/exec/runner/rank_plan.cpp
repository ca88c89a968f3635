#include "exec/runner/rank_plan.h"

namespace dsplan::exec {

RunSettings settings_of(const Job& job) {
  RunSettings settings;
  settings.optimizer = job.training.optimizer.kind;
  settings.weight_decay = job.training.optimizer.weight_decay;
  settings.momentum = job.training.optimizer.momentum;
  settings.clip = job.training.gradient_clipping;
  settings.ranks = job.parallelism.dp;
  settings.grad_accum = job.training.grad_accum;
  settings.micro_batch = job.training.micro_batch;
  return settings;
}

}  // namespace dsplan::exec
