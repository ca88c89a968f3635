// What tensor-parallel ranks keep that one of them, or none, would need (Megatron-LM; DeepSpeed
// activation_checkpointing/checkpointing.py). Costs are of one rank, of weights in the model's dtype.
#include "planner/advise/advice_parts.h"

#include "core/format.h"

namespace dsplan {
namespace {

constexpr const char* kPartitionKey = "activation_checkpointing.partition_activations";

Bytes argument_of(const ModelSpec& model, const Training& t) {
  return storage(Elements(checked_mul(checked_mul(t.micro_batch, t.seq), model.dims.hidden)), t.dtype);
}

// On one rank alone partitioning clones each argument.
void advise_partition(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  const Training& t = job.training;
  const DeepSpeedCheckpointing& config = t.checkpoint.deepspeed;
  if (!t.checkpoint.by_deepspeed() || job.parallelism.tp > 1 || !config.partition || config.cpu) return;
  into.push_back({"partition_alone", kPartitionKey, argument_of(model, t),
                  "nothing is partitioned on one rank: each checkpoint's argument is cloned for a moment"});
}

// Elements of one rank beyond its share.
Elements beyond_share(const ModelSpec& model, const Parameter& parameter, std::int64_t tp) {
  const Elements here = local_shape(model, parameter, tp).elements();
  const Elements share = div_ceil(parameter.shape.elements(), tp);
  return here > share ? here - share : Elements(0);
}

void advise_split(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  const std::int64_t tp = job.parallelism.tp;
  if (tp == 1) return;
  Elements vocabulary;
  Elements heads;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone || parameter.split == Split::Replicated) continue;
    (parameter.split == Split::Vocabulary ? vocabulary : heads) += beyond_share(model, parameter, tp);
  }
  const DType dtype = job.training.dtype;
  if (vocabulary > Elements(0)) {
    into.push_back(
        {"padded_vocabulary", "--tp", storage(vocabulary, dtype),
         formatted("embedding and head are padded to a multiple of {} rows, 128 for each of {} ranks", tp * 128, tp)});
  }
  if (heads > Elements(0) && model.dims.kv_heads % tp != 0) {
    into.push_back({"replicated_key_values", "--tp", storage(heads, dtype),
                    formatted("{} key-value heads do not divide by {} ranks: several of them keep the same one",
                              model.dims.kv_heads, tp)});
  }
}

}  // namespace

void advise_tensor_parallel(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  if (job.training.runtime == Runtime::DeepSpeed) advise_partition(model, job, into);
  advise_split(model, job, into);
}

}  // namespace dsplan
