// The eager tape's log of a job's two steps.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "eager/runtime.h"

namespace eager {

inline std::vector<Entry> of_job(const dsplan::ModelSpec& model, const dsplan::Job& job, std::int64_t rank) {
  using namespace dsplan;
  const Training& training = job.training;
  eager::Settings settings;
  settings.batch = training.micro_batch;
  settings.seq = training.seq;
  settings.dtype = training.dtype;
  settings.tp = job.parallelism.tp;
  settings.memory_efficient = training.attention == Attention::MemoryEfficient;
  for (const CheckpointGroup& group : training.checkpoint.groups) {
    settings.checkpoints.emplace_back(group.first, group.last);
    settings.reentrant = group.kind == CheckpointKind::Reentrant;
  }
  eager::Plan plan;
  plan.deepspeed = training.runtime == dsplan::Runtime::DeepSpeed;
  plan.stage = training.zero.stage;
  plan.world = job.parallelism.dp;
  plan.rank = rank;
  plan.micro_batches = training.grad_accum;
  plan.dtype = training.dtype;
  plan.fused = training.optimizer.implementation == Implementation::Fused;
  plan.scans_overflow = training.check_grad_overflow;
  plan.overlap = training.zero.overlap_comm;
  plan.reduce_scatter = training.zero.reduce_scatter;
  plan.bucket = training.zero.reduce_bucket_size.value();
  plan.sub_group = training.zero.sub_group_size.value();
  plan.persistence = training.zero.param_persistence_threshold.value();
  plan.sequential = training.zero.allgather_sequential;
  plan.all_reduce_fetch = training.zero.all_reduce_for_fetch;
  plan.prefetch = plan.sequential ? 1 : training.zero.prefetch_bucket_size.value();
  plan.reuse = training.zero.max_reuse_distance.value();
  plan.max_live = training.zero.max_live_parameters.value();
  const ModelSpec part = tensor_parallel_part(model, settings.tp);
  return eager::train(part, settings, plan);
}

}  // namespace eager
