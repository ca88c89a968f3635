// Traffic over the tensor-parallel ranks by formula: Megatron's all-reduces of hidden states (arXiv 1909.08053, section
// 3: two in forward and two in backward for each layer), of the vocabulary's two ends and of the loss.
#include <algorithm>

#include "planner/predict/footprint.h"

namespace dsplan {
namespace {

// All micro-batches of the steady step.
Elements tokens_of_step(const Training& t) {
  std::int64_t positions = 0;
  for (std::int64_t k = 0; k < t.grad_accum; ++k) positions += t.seq_of((t.steps() - 1) * t.grad_accum + k);
  return Elements(checked_mul(t.micro_batch, positions));
}

bool trains(const ModelSpec& model, const Training& t) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& parameter) {
    return parameter.trainable && std::none_of(t.freeze.begin(), t.freeze.end(), [&](const std::string& glob) {
             return glob_matches(glob, parameter.name);
           });
  });
}

// A recomputation stops once all that was saved is there again. Unless something behind it saves (dropout, gemma2's
// norms), the last sum of the region is not among it.
std::int64_t repeated(const ModelSpec& model, const Checkpointing& checkpoint) {
  const bool saves_behind = model.dims.residual_dropout > 0 || model.family == "gemma2";
  std::int64_t sums = 0;
  for (const CheckpointGroup& group : checkpoint.groups) {
    const bool early = group.kind == CheckpointKind::NonReentrant && !saves_behind;
    sums += 2 * (group.last - group.first + 1) - (early ? 1 : 0);
  }
  return sums;
}

}  // namespace

TensorParallelSums tensor_parallel_sums(const ModelSpec& model, const Job& job) {
  const Training& t = job.training;
  TensorParallelSums sums;
  if (job.parallelism.tp == 1) return sums;
  const Elements tokens = tokens_of_step(t);
  sums.hidden = storage(tokens * model.dims.hidden, t.dtype);
  sums.forward_layers = 2 * model.dims.layers;
  sums.loss = storage(tokens, DType::Float32) * 3;
  if (!trains(model, t)) return sums;
  sums.backward_layers = 2 * model.dims.layers;
  sums.head = 1;
  sums.repeated = repeated(model, t.checkpoint);
  const Checkpointing& checkpoint = t.checkpoint;
  const bool gathers = checkpoint.by_deepspeed() && checkpoint.deepspeed.partition;
  if (gathers) sums.gathered = static_cast<std::int64_t>(checkpoint.groups.size());
  return sums;
}

std::vector<TrafficRow> tensor_parallel_traffic(const ModelSpec& model, const Job& job) {
  const TensorParallelSums sums = tensor_parallel_sums(model, job);
  std::vector<TrafficRow> rows;
  const auto add = [&](Collective collective, Pass phase, DType dtype, Bytes payload) {
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const TrafficRow& row) {
      return row.collective == collective && row.phase == phase && row.dtype == dtype;
    });
    if (same != rows.end()) {
      same->payload += payload;
    } else if (payload > Bytes(0)) {
      rows.push_back({collective, Group::TensorParallel, phase, dtype, TrafficKind::Data, 0, payload, Bytes(0)});
    }
  };
  const DType dtype = job.training.dtype;
  add(Collective::AllReduce, Pass::Forward, dtype, sums.hidden * (1 + sums.forward_layers));
  add(Collective::AllReduce, Pass::Forward, DType::Float32, sums.loss);
  add(Collective::AllReduce, Pass::Backward, dtype, sums.hidden * (sums.head + sums.backward_layers + sums.repeated));
  add(Collective::AllGather, Pass::Backward, dtype, sums.hidden * sums.gathered);
  return rows;
}

}  // namespace dsplan
