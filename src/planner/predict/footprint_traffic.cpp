// Traffic by formula (DeepSpeed: gradients are all-reduced under ZeRO-1 and 2, reduce-scattered under ZeRO-3).

#include <algorithm>
#include <map>

#include "planner/predict/footprint.h"

namespace dsplan {
namespace {

TrafficRow row(Collective collective, Pass phase, DType dtype, Bytes payload) {
  return {collective, Group::DataParallel, phase, dtype, TrafficKind::Data, 0, payload, Bytes(0)};
}

// What ZeRO-3 gathers where nothing is fetched ahead or kept: b * A summed over the modules that are entered.
// Prefetching and the reuse window have no closed form; they gather no more than this, and each parameter once or more.
class Gathers {
 public:
  Gathers(const ModelSpec& model, const Job& job) : model_(model), own_(model.modules.size()) {
    std::int64_t counted = 0;
    std::vector<bool> persists(model.parameters.size(), false);
    const Zero& zero = job.training.zero;
    for (std::size_t at = 0; at < model.parameters.size(); ++at) {
      const Parameter& p = model.parameters[at];
      const Elements local = local_shape(model, p, job.parallelism.tp).elements();
      const std::int64_t n = local.value();
      if (p.tied_to != kNone) {
        persists[at] = persists[static_cast<std::size_t>(p.tied_to)];
      } else if (n <= zero.param_persistence_threshold.value() &&
                 checked_add(counted, n) <= zero.model_persistence_threshold.value()) {
        persists[at] = true;
        counted += n;
      }
      const Bytes whole = storage(round_up(local, job.parallelism.dp), job.training.dtype);
      if (persists[at] && p.tied_to == kNone) persistent_ += whole;
      if (persists[at]) continue;
      own_[static_cast<std::size_t>(p.module)] += whole;
    }
  }

  [[nodiscard]] Bytes persistent() const { return persistent_; }

  // One forward, or one backward: every module that has parameters asks once.
  [[nodiscard]] Bytes pass() const {
    Bytes sum;
    for (const ModuleCall& call : model_.calls) {
      if (call.enter) sum += own_[static_cast<std::size_t>(call.module)];
    }
    return sum;
  }

  // One recomputation of layers first..last: all modules once more, but for the last one with parameters, which the
  // backward pass has just gathered when it finds that it needs the recomputation. GPT-2's residual dropout comes
  // after that module and saves its mask, so that there nothing is gathered yet.
  [[nodiscard]] Bytes recomputation(const CheckpointGroup& group) const {
    Bytes sum;
    Bytes last;
    for (const ModuleCall& call : model_.calls) {
      const std::int32_t layer = model_.module_at(call.module).layer;
      if (!call.enter || layer < group.first || layer > group.last) continue;
      sum += own_[static_cast<std::size_t>(call.module)];
      if (has_parameters(call.module)) last = own_[static_cast<std::size_t>(call.module)];
    }
    return model_.dims.residual_dropout > 0 ? sum : sum - last;
  }

 private:
  [[nodiscard]] bool has_parameters(ModuleId module) const {
    return std::any_of(model_.parameters.begin(), model_.parameters.end(),
                       [&](const Parameter& p) { return p.module == module; });
  }

  const ModelSpec& model_;
  std::vector<Bytes> own_;
  Bytes persistent_;
};

// ZeRO-3's gradients of one micro-batch.
struct Reduced {
  Bytes scattered;
  Bytes in_bucket;
};

void stage3_rows(const ModelSpec& model, const Job& job, const Reduced& reduced, std::vector<TrafficRow>& rows) {
  const Training& t = job.training;
  const Gathers gathers(model, job);
  Bytes backward = gathers.pass();
  for (const CheckpointGroup& group : t.checkpoint.groups) backward += gathers.recomputation(group);
  rows.push_back(row(Collective::AllGather, Pass::Forward, t.dtype, gathers.pass() * t.grad_accum));
  rows.push_back(row(Collective::AllGather, Pass::Backward, t.dtype, backward * t.grad_accum));
  rows.push_back(
      row(Collective::ReduceScatter, Pass::Backward, t.communication_dtype, reduced.scattered * t.grad_accum));
  rows.push_back(row(Collective::AllReduce, Pass::Backward, t.communication_dtype, reduced.in_bucket * t.grad_accum));
  rows.push_back(row(Collective::AllGather, Pass::Step, t.dtype, gathers.persistent()));
}

// DistributedDataParallel._pre_forward: the model's buffers, flattened by dtype, before the first forward behind a
// reduction.
void buffer_rows(const ModelSpec& model, const Training& t, std::vector<TrafficRow>& rows) {
  if (!t.ddp.broadcast_buffers) return;
  std::map<DType, Bytes> payload;
  for (const ModelBuffer& buffer : model.buffers) {
    if (!buffer_exists(buffer, t.transformers)) continue;
    const DType dtype = held_dtype(model, buffer, t);
    payload[dtype] += storage(shape_of(buffer, t).elements(), dtype);
  }
  for (const auto& [dtype, bytes] : payload) rows.push_back(row(Collective::Broadcast, Pass::Forward, dtype, bytes));
}

void ddp_rows(const ModelSpec& model, const Training& t, Elements trained, std::vector<TrafficRow>& rows) {
  buffer_rows(model, t, rows);
  const DType sent = t.ddp.comm_hook.value_or(t.dtype);  // As a hook of the buckets casts them.
  rows.push_back(row(Collective::AllReduce, Pass::Backward, sent, storage(trained, sent)));
  // Each parameter comes from the rank that has updated it.
  if (t.ddp.zero_redundancy) rows.push_back(row(Collective::Broadcast, Pass::Step, t.dtype, storage(trained, t.dtype)));
}

}  // namespace

std::vector<TrafficRow> traffic_formulas(const ModelSpec& model, const Job& job) {
  std::vector<TrafficRow> rows = tensor_parallel_traffic(model, job);
  const std::int64_t ranks = job.parallelism.dp;
  if (ranks == 1) return rows;
  if (is_fsdp(job.training.runtime)) return fsdp_traffic(model, job);
  const Training& t = job.training;
  Elements trained;
  Reduced reduced;
  for (const Parameter& parameter : model.parameters) {
    const bool frozen = std::any_of(t.freeze.begin(), t.freeze.end(),
                                    [&](const std::string& glob) { return glob_matches(glob, parameter.name); });
    if (parameter.tied_to != kNone || !parameter.trainable || frozen) continue;
    const Elements size = local_shape(model, parameter, job.parallelism.tp).elements();
    trained += size;
    // Without reduce_scatter the bucket is all-reduced as it is; what never enters it is scattered all the same.
    const bool in_bucket = !t.zero.reduce_scatter && t.zero.contiguous_gradients && size <= t.zero.reduce_bucket_size;
    (in_bucket ? reduced.in_bucket : reduced.scattered) +=
        storage(in_bucket ? size : round_up(size, ranks), t.communication_dtype);
  }
  if (trained == Elements(0)) return rows;
  if (t.runtime == Runtime::PyTorch) {
    ddp_rows(model, t, trained, rows);
  } else if (t.zero.stage == 0) {
    rows.push_back(
        row(Collective::AllReduce, Pass::Backward, t.communication_dtype, storage(trained, t.communication_dtype)));
  } else if (t.zero.stage < 3) {
    const bool to_owners =
        t.zero.contiguous_gradients && t.zero.reduce_scatter && !t.zero.use_multi_rank_bucket_allreduce;
    const DType type = t.communication_dtype;
    // BF16_Optimizer sends its sums with their padding, in one piece.
    const bool sums = t.zero.stage == 1 && t.dtype == DType::BFloat16 && t.grad_accum_dtype == DType::Float32 &&
                      t.zero.offload_optimizer.device == OffloadDevice::None;
    rows.push_back(
        row(to_owners && !sums ? Collective::Reduce : Collective::AllReduce, Pass::Backward, type,
            storage(sums ? round_up(trained, 2 * ranks) : trained, type) * (t.zero.stage == 2 ? t.grad_accum : 1)));
    rows.push_back(row(Collective::AllGather, Pass::Step, t.dtype, storage(round_up(trained, 2 * ranks), t.dtype)));
  } else {
    stage3_rows(model, job, reduced, rows);
  }
  std::erase_if(rows, [](const TrafficRow& r) { return r.payload == Bytes(0); });
  return rows;
}

// Traffic over the tensor-parallel ranks by formula: Megatron's all-reduces of hidden states (arXiv 1909.08053, section
// 3: two in forward and two in backward for each layer), of the vocabulary's two ends and of the loss.

namespace {

// All micro-batches of the steady step.
Elements tokens_of_step(const Training& t) {
  std::int64_t positions = 0;
  for (std::int64_t k = 0; k < t.grad_accum; ++k) positions += t.seq_of((t.steps() - 1) * t.grad_accum + k);
  return Elements(checked_mul(t.rows(), positions));
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
