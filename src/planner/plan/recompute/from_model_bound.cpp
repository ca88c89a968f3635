// The least that a rank's peak can be: for each moment, what must be alive then. What is uncertain counts nothing.
#include <algorithm>

#include "planner/fsdp/fsdp_facts.h"
#include "planner/plan/recompute/from_model.h"
#include "planner/predict/footprint.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// Scalars among the persistent state that a step replaces: norms, flags.
constexpr Bytes kScalars{64};

// What the runtime certainly holds beyond the persistent state.
class Held {
 public:
  Held(const Job& job, const ActivationBytes& activations) : t_(job.training), a_(activations) {
    if (is_fsdp(t_.runtime)) shards_ = sharding_ranks(job);
    own_ = flat_partition(activations.trained, job.parallelism.dp).filled;
    deepspeed_ = t_.runtime == Runtime::DeepSpeed;
    lasts_ = !t_.zero_grad_to_none || t_.ddp.gradient_as_bucket_view;
    flat_ = uses_flat_partitions(t_);
    bf16_ = uses_bf16_optimizer(t_);
    sums_ = sums_partition(t_);
    offloaded_ = offloads_optimizer(t_);
    if (flat_ && activations.trained > Elements(0)) {
      bucket_ = storage(t_.zero.reduce_bucket_size, bucket_dtype(t_)) * bucket_count(t_);
    }
  }

  // In the backward of the last micro-batch, where `before` bytes of gradients were ready before.
  [[nodiscard]] Bytes in_backward(Bytes before) const {
    return gradients(before) + (before > Bytes(0) || keeps_bucket() ? bucket_ : Bytes(0)) + accumulated();
  }
  // In its forward, and before any gradient is there.
  [[nodiscard]] Bytes in_forward() const {
    return gradients(Bytes(0)) + (keeps_bucket() ? bucket_ : Bytes(0)) + accumulated();
  }

  // When backward is over, and in the step.
  [[nodiscard]] Bytes in_step() const {
    if (shards_ > 0) return of_shard(a_.gradients);
    if (!deepspeed_) return lasts_ ? Bytes(0) : a_.gradients;
    const Bytes wide = storage(a_.trained, t_.master_dtype);
    if (bf16_) return a_.gradients;
    if (t_.zero.stage == 0 && t_.dtype == DType::Float32) return a_.gradients;
    // All casts; in the flat wrapper what they are made of besides.
    if (t_.zero.stage == 0) return a_.gradients + wide * (uses_unfused_wrapper(t_) ? 1 : 2);
    if (!flat_ || offloaded_) return Bytes(0);
    const DType kept = kept_dtype(t_);
    const Bytes own = storage(own_, kept);
    const bool second = t_.zero.stage == 2 && !(sums_ && accumulates());  // That of this micro-batch.
    const Bytes after_backward = accumulated() + bucket_ + (second ? own : Bytes(0));
    return std::max(after_backward, kept == t_.master_dtype ? own : own + storage(own_, t_.master_dtype));
  }

 private:
  [[nodiscard]] bool accumulates() const { return t_.grad_accum > 1; }
  // ZeRO-1 opens its buckets at the first gradient, for all micro-batches; ZeRO-2 for each backward.
  [[nodiscard]] bool keeps_bucket() const { return t_.zero.stage == 1 && accumulates(); }

  // `.grad`, or what stands for it.
  [[nodiscard]] Bytes gradients(Bytes before) const {
    if (shards_ > 0) return of_shard(accumulates() ? a_.gradients : before);
    if ((!deepspeed_ && lasts_) || (deepspeed_ && t_.zero.stage >= 2)) return Bytes(0);
    const bool widened = sums_ && t_.zero.stage == 1;
    const auto wide = [&](Bytes bytes) {
      return widened ? div_floor(bytes, bytes_per_element(t_.dtype)) * bytes_per_element(t_.grad_accum_dtype) : bytes;
    };
    // With overlap ZeRO-1's last micro-batch puts each gradient into the bucket at once.
    if (flat_ && t_.zero.overlap_comm) return t_.grad_accum > 2 ? wide(a_.gradients) : Bytes(0);
    return wide(accumulates() ? a_.gradients : before);
  }

  // ZeRO-2: the own partition's gradients of the micro-batches before.
  [[nodiscard]] Bytes accumulated() const {
    if (!flat_ || t_.zero.stage != 2 || offloaded_ || !accumulates()) return Bytes(0);
    return storage(own_, kept_dtype(t_));
  }

  // What fully_shard leaves of gradients on the rank that has the most rows, in the dtype that it keeps.
  [[nodiscard]] Bytes of_shard(Bytes bytes) const {
    if (t_.fsdp.cpu_offload) return Bytes(0);
    const std::int64_t kept = std::min(bytes_per_element(t_.dtype), bytes_per_element(t_.master_dtype));
    return div_floor(bytes, bytes_per_element(t_.dtype) * shards_) * kept;
  }

  const Training& t_;
  const ActivationBytes& a_;
  std::int64_t shards_ = 0;  // Ranks of fully_shard; 0: another runtime.
  Elements own_;
  Bytes bucket_;
  bool deepspeed_ = false;
  bool lasts_ = false;  // `.grad` is among the persistent state: it is zeroed, or a view of DDP's buckets.
  bool flat_ = false;   // ZeRO-1 or 2, without BF16_Optimizer.
  bool bf16_ = false;
  bool sums_ = false;  // Gradients are summed in another dtype.
  bool offloaded_ = false;
};

// What a group leaves pending beside its arguments.
Bytes kept_results(const ActivationBytes& a, const CheckpointGroup& group) {
  Bytes sum;
  if (group.kept.empty()) return sum;
  for (std::int32_t at = group.first; at <= group.last; ++at) {
    const auto kind = static_cast<std::size_t>(a.kind[static_cast<std::size_t>(at)]);
    for (const ActivationBytes::Kept& one : a.kept[kind]) {
      if (group.alternate && one.op == Op::Linear) continue;  // Some are, which a bound need not count.
      if (std::find(group.kept.begin(), group.kept.end(), one.op) != group.kept.end()) sum += one.bytes;
    }
  }
  return sum;
}

Bytes pending(const ActivationBytes& a, const CheckpointGroup& group, const Checkpointing& checkpoint,
              std::int64_t tp) {
  Bytes arguments = a.checkpointed[static_cast<std::size_t>(group.first)];
  if (group.kind == CheckpointKind::DeepSpeed) {
    if (checkpoint.deepspeed.cpu) arguments = Bytes(0);
    if (checkpoint.deepspeed.partition) arguments = div_floor(arguments, tp);
  }
  return arguments + kept_results(a, group);
}

// The largest total of any moment between the first layer's forward and the first layer's backward.
class Sweep {
 public:
  Sweep(const ActivationBytes& a, const Held& held, const Checkpointing& checkpoint, std::int64_t tp)
      : a_(a), held_(held), checkpoint_(checkpoint), tp_(tp), kept_(a.early) {}

  Bytes run() {
    auto next = checkpoint_.groups.begin();
    const auto count = static_cast<std::int32_t>(a_.stored.size());
    for (std::int32_t at = 0; at < count; ++at) {
      if (next != checkpoint_.groups.end() && next->first == at) {
        at = next->last;
        add_group(*next++);
      } else {
        add_stored(static_cast<std::size_t>(at));
      }
    }
    take(kept_ + a_.head + held_.in_forward());
    take(a_.end + held_.in_backward(a_.gradients - a_.end_gradients));
    return most_;
  }

 private:
  void take(Bytes bytes) { most_ = std::max(most_, bytes); }

  void add_stored(std::size_t at) {
    take(kept_ + a_.stored_forward[at] + held_.in_forward());
    take(kept_ + a_.stored_backward[at] + held_.in_backward(a_.gradients_before[at]));
    kept_ += a_.stored[at];
  }

  // Recomputed as a whole: what its regions save, one after the other, and the backward of each.
  void add_group(const CheckpointGroup& group) {
    const auto first = static_cast<std::size_t>(group.first);
    const auto last = static_cast<std::size_t>(group.last);
    if (first == last && group.kept.empty()) {
      take(kept_ + a_.checkpointed_backward[first] + held_.in_backward(a_.gradients_before[first]));
    } else {
      Bytes again = a_.checkpointed[first];
      for (std::size_t at = first; at <= last; ++at) {
        const Bytes own = at == first ? a_.both[first] : Bytes(0);
        take(kept_ + again + a_.recomputed_backward[at] - own + held_.in_backward(a_.gradients_before[at]));
        again += a_.stored[at] - own;
      }
    }
    kept_ += pending(a_, group, checkpoint_, tp_);
  }

  const ActivationBytes& a_;
  const Held& held_;
  const Checkpointing& checkpoint_;
  std::int64_t tp_;
  Bytes kept_;  // By the regions so far.
  Bytes most_;
};

// Whole parameters, before ZeRO-3 cuts them up, and before they are views of a flat buffer.
Bytes least_of_init(const Job& job, const ActivationBytes& a) {
  const Training& t = job.training;
  const Bytes whole = storage(a.parameters, t.dtype);
  if (t.runtime == Runtime::PyTorch || t.zero.stage == 0) return Bytes(0);
  if (t.zero.stage == 3) return t.model_init == ModelInit::Device ? whole : Bytes(0);
  return flattens_on_device(t) ? whole + storage(a.trained, t.dtype) : Bytes(0);
}

}  // namespace

Bytes least_peak(const ModelSpec& model, const Job& job, Bytes persistent, const ActivationBytes& activations,
                 const Checkpointing& checkpoint) {
  const Training& t = job.training;
  // Of logits that are held there is one set until the next forward has returned, and backward counts its own.
  Bytes base = std::max(persistent - kScalars - held_logits(model, job), Bytes(0));
  if (!t.seq_list.empty()) base = std::max(base - Bytes(checked_mul(checked_mul(t.micro_batch, t.seq), 24)), Bytes(0));
  const Held held(job, activations);
  const Bytes running = base + Sweep(activations, held, checkpoint, job.parallelism.tp).run();
  return std::max({persistent, running, base + held.in_step(), least_of_init(job, activations)});
}

}  // namespace dsplan
