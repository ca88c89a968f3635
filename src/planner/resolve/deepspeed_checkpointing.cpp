// deepspeed.checkpointing.configure from the JSON (runtime/activation_checkpointing/checkpointing.py).
#include "planner/resolve/resolver.h"

#include "core/format.h"

namespace dsplan {
namespace {

void check_slots(Resolver& resolver, const ActivationCheckpointingInput& in, const Checkpointing& checkpoint) {
  const std::int64_t slots = checkpoint.deepspeed.number_checkpoints;
  const auto made = static_cast<std::int64_t>(checkpoint.groups.size());
  if (slots < made) {
    resolver.fault(in.number_checkpoints.place,
                   formatted("{} contiguous checkpoints, but a forward makes {}: DeepSpeed fails with \"list index out "
                             "of range\" at the next one",
                             slots, made),
                   formatted("write at least {}", made));
  }
}

// get_partition_size: "Doesn't handle if partition activation if item is not divisible by mp size".
void check_division(Resolver& resolver, const Place& place) {
  const Training& training = resolver.job.training;
  const std::int64_t tp = resolver.job.parallelism.tp;
  const std::int64_t elements = checked_mul(checked_mul(training.rows(), training.seq), resolver.model.dims.hidden);
  if (elements % tp != 0) {
    resolver.fault(place,
                   formatted("partition_activations: {} elements are not divisible by tp {}", grouped(elements), tp),
                   "DeepSpeed asserts that they are");
  }
}

}  // namespace

void configure_deepspeed_checkpointing(Resolver& resolver) {
  Checkpointing& checkpoint = resolver.training().checkpoint;
  if (resolver.ds == nullptr || !checkpoint.by_deepspeed()) return;
  const ActivationCheckpointingInput& in = resolver.ds->activation_checkpointing;
  DeepSpeedCheckpointing& config = checkpoint.deepspeed;
  config.partition = in.partition_activations.value_or(false);
  config.cpu = in.cpu_checkpointing.value_or(false);
  config.contiguous = in.contiguous_memory_optimization.value_or(false);
  config.number_checkpoints = in.number_checkpoints.value_or(0);
  if (config.contiguous) check_slots(resolver, in, checkpoint);
  if (config.cpu && resolver.model.family == "gpt2" && resolver.job.training.attention == Attention::Eager) {
    resolver.fault(in.cpu_checkpointing.place, "cpu_checkpointing with GPT-2 and eager attention",
                   "transformers gives each block the same floating-point mask by position, and the first empties it");
  }
  if (!config.partition) return;
  // merge_tensors takes the size beside each argument for another one unless the argument is a tensor.
  if (resolver.model.family == "gpt2") {
    resolver.fault(in.partition_activations.place, "partition_activations with GPT-2",
                   "transformers gives its blocks None by position, and DeepSpeed's merge_tensors hands it on twice: a "
                   "TypeError");
  }
  if (resolver.job.parallelism.tp > 1) return check_division(resolver, in.partition_activations.place);
  if (config.cpu) return;
  resolver.announce(
      in.partition_activations.place,
      "partition_activations saves nothing: the model-parallel size is 1, and the whole argument is cloned");
}

}  // namespace dsplan
