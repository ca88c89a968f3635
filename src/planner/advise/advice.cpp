#include "planner/advise/advice.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/zero/zero_facts.h"
#include "sim/traffic.h"

namespace dsplan {
namespace {

// Memory that offloading takes on the host for nothing (DeepSpeed runtime/swap_tensor/*.py; stage3.py,
// _create_param_groups_fp16_flat_cpu_memory, _create_fp32_partitions). Costs are of one rank.

constexpr const char* kParam = "zero_optimization.offload_param.";
constexpr const char* kState = "zero_optimization.offload_optimizer.";

// PyTorch's pool of pinned memory takes powers of two.
Bytes pooled(Bytes bytes) {
  if (bytes == Bytes(0)) return bytes;
  return Bytes(static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes.value()))));
}

// A partition takes a buffer of its own, however small it is beside it (partitioned_param_swapper.py).
void advise_parameters(const Job& job, const NvmeFootprint& files, std::vector<Advice>& into) {
  const Training& t = job.training;
  const Offload& offload = t.zero.offload_param;
  if (offload.device != OffloadDevice::Nvme || offload.buffer_count == 0) return;
  const Bytes each = SwapRules(t.zero).aligned(storage(offload.buffer_size, t.dtype));
  if (files.largest_partition == Elements(0)) {
    into.push_back({"swap_buffers_unused", std::string(kParam) + "buffer_count", each * offload.buffer_count,
                    formatted("{} buffers of {} elements are locked, and every partition is too small for a file (1 "
                              "MiB, or aio.block_size if that is more): all of them stay in memory",
                              offload.buffer_count, grouped(offload.buffer_size.value()))});
    return;
  }
  const Bytes enough = SwapRules(t.zero).aligned(storage(files.largest_partition, t.dtype));
  if (each > enough) {
    into.push_back({"swap_buffer_size", std::string(kParam) + "buffer_size", (each - enough) * offload.buffer_count,
                    formatted("each of {} locked buffers holds one partition, the largest of which has {} elements: "
                              "write that instead of {}",
                              offload.buffer_count, grouped(files.largest_partition.value()),
                              grouped(offload.buffer_size.value()))});
  }
}

// The flat buffer takes whole sub-groups, from the first on, as far as max_in_cpu has room for them.
void advise_flat(const Job& job, const NvmeFootprint& files, std::vector<Advice>& into) {
  const Training& t = job.training;
  if (t.zero.offload_param.device != OffloadDevice::Nvme || files.filled >= files.flat) return;
  const Bytes idle = pooled(storage(files.flat, t.dtype)) - pooled(storage(files.filled, t.dtype));
  into.push_back(
      {"max_in_cpu_idle", std::string(kParam) + "max_in_cpu", idle,
       formatted("{} elements are pinned for partitions that stay on the host, and {}: write {}, or "
                 "smaller sub-groups",
                 grouped(files.flat.value()),
                 files.filled == Elements(0) ? std::string("not even the first sub-group fits")
                                             : formatted("whole sub-groups fill {}", grouped(files.filled.value())),
                 grouped(files.filled.value()))});
}

// A sub-group takes a buffer for its master, its gradient and each state; pipelining takes further sets.
void advise_optimizer(const Job& job, const NvmeFootprint& files, std::vector<Advice>& into) {
  const Training& t = job.training;
  const Offload& offload = t.zero.offload_optimizer;
  if (offload.device != OffloadDevice::Nvme) return;
  const Bytes each = SwapRules(t.zero).aligned(storage(files.largest_group, t.master_dtype));
  const std::string key = std::string(kState) + "buffer_count";
  if (files.swapped_groups == 0) {
    into.push_back({"swap_buffers_unused", key, each * offload.buffer_count,
                    formatted("{} buffers are locked, and every sub-group is too small for a file: the optimizer "
                              "stays in memory",
                              offload.buffer_count)});
    return;
  }
  const std::int64_t need = swap_buffers_taken(t, files.swapped_groups);
  if (offload.buffer_count <= need) return;
  into.push_back({"spare_swap_buffers", key, each * (offload.buffer_count - need),
                  formatted("{} buffers of the largest sub-group ({} elements) are locked, and no more than {} are "
                            "taken at a time",
                            offload.buffer_count, grouped(files.largest_group.value()), need)});
}

// Whole sub-groups are divided, so that a ratio rounds; of few sub-groups to none or all.
void advise_ratio(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  const Training& t = job.training;
  const double ratio = t.zero.offload_optimizer.ratio;
  if (ratio >= 1) return;
  Job whole = job;
  whole.training.zero.offload_optimizer.ratio = 1;
  const auto device = [&](const Job& of) {
    const Footprint states = footprint(model, of);
    return states.persistent[Role::Optimizer] + states.persistent[Role::Gradients];
  };
  if (device(job) == device(whole)) {
    into.push_back({"ratio_rounds", std::string(kState) + "ratio", Bytes(0),
                    formatted("a ratio of {} leaves no sub-group on the device: it takes whole ones, and there are "
                              "too few; lower sub_group_size, now {}",
                              ratio, grouped(t.zero.sub_group_size.value()))});
    return;
  }
  Job none = job;
  none.training.zero.offload_optimizer.ratio = 0;
  if (ratio <= 0 || device(job) != device(none)) return;
  into.push_back({"ratio_rounds", std::string(kState) + "ratio", device(job),
                  formatted("a ratio of {} leaves every sub-group on the device: it takes whole ones, and there are "
                            "too few; lower sub_group_size, now {}",
                            ratio, grouped(t.zero.sub_group_size.value()))});
}

void advise_offload(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  const Training& t = job.training;
  if (t.runtime != Runtime::DeepSpeed || t.zero.stage != 3) return;
  const bool files =
      t.zero.offload_param.device == OffloadDevice::Nvme || t.zero.offload_optimizer.device == OffloadDevice::Nvme;
  if (files) {
    const NvmeFootprint formulas = nvme_footprint(model, job, 0);
    advise_parameters(job, formulas, into);
    advise_flat(job, formulas, into);
    advise_optimizer(job, formulas, into);
  }
  if (t.zero.offload_optimizer.device != OffloadDevice::None) advise_ratio(model, job, into);
}

// What tensor-parallel ranks keep that one of them, or none, would need (Megatron-LM; DeepSpeed
// activation_checkpointing/checkpointing.py). Costs are of one rank, of weights in the model's dtype.

constexpr const char* kPartitionKey = "activation_checkpointing.partition_activations";

Bytes argument_of(const ModelSpec& model, const Training& t) {
  return storage(Elements(checked_mul(checked_mul(t.rows(), t.seq), model.dims.hidden)), t.dtype);
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

void advise_tensor_parallel(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  if (job.training.runtime == Runtime::DeepSpeed) advise_partition(model, job, into);
  advise_split(model, job, into);
}

constexpr const char* kBucket = "zero_optimization.reduce_bucket_size";

// One bucket of as many elements as there are to reduce holds all that this one ever does.
void advise_bucket(const Job& job, Elements trainable, std::vector<Advice>& into) {
  const Training& t = job.training;
  const std::int64_t buckets = bucket_count(t);
  if (buckets == 0 || job.parallelism.tp > 1 || t.zero.reduce_bucket_size <= trainable) return;
  const Bytes more = storage(t.zero.reduce_bucket_size - trainable, bucket_dtype(t)) * buckets;
  into.push_back({"bucket_larger_than_model", kBucket, more,
                  formatted("a bucket of {} elements is allocated whole, and the model trains {}: write {}{}",
                            grouped(t.zero.reduce_bucket_size.value()), grouped(trainable.value()),
                            grouped(trainable.value()), buckets > 1 ? " (two buckets)" : "")});
}

void advise_overlap(const Job& job, std::vector<Advice>& into) {
  const Training& t = job.training;
  if (bucket_count(t) < 2) return;
  into.push_back({"overlap_second_bucket", "zero_optimization.overlap_comm",
                  storage(t.zero.reduce_bucket_size, bucket_dtype(t)),
                  "overlapping fills a second bucket of reduce_bucket_size elements while the first is reduced"});
}

Bytes wire_of_step(const ModelSpec& model, const Job& job) {
  Bytes sum;
  for (const TrafficRow& row : traffic_formulas(model, job)) {
    const bool tensor = row.group == Group::TensorParallel;
    if (row.phase != Pass::Setup) {
      sum += wire_bytes(row.collective, row.payload, tensor ? job.parallelism.tp : job.parallelism.dp);
    }
  }
  return sum;
}

// Stage 2 reduces each micro-batch, into a second partition from the second one on (independent_gradient_partition_
// epilogue); stage 1 reduces once.
void advise_accumulation(const ModelSpec& model, const Job& job, std::int64_t rank, std::vector<Advice>& into) {
  const Training& t = job.training;
  if (t.runtime != Runtime::DeepSpeed || t.zero.stage != 2 || t.grad_accum < 2 || job.parallelism.tp > 1) return;
  if (t.zero.offload_optimizer.device != OffloadDevice::None) return;
  const std::vector<Elements> kept = kept_gradients(model, job);
  const Bytes second = storage(kept[static_cast<std::size_t>(job.parallelism.data_rank(rank))], kept_dtype(t));
  Job once = job;
  once.training.zero.stage = 1;
  into.push_back({"stage2_accumulation", "zero_optimization.stage", second,
                  formatted("stage 2 reduces after each of the {} micro-batches, and holds a second gradient partition "
                            "from the second one on: {} sent by a rank and step, {} with stage 1",
                            t.grad_accum, human(wire_of_step(model, job)), human(wire_of_step(model, once)))});
}

// Slots that no checkpoint of a forward takes live as long as the others, from the first checkpoint to the backward.
void advise_slots(const ModelSpec& model, const Job& job, std::vector<Advice>& into) {
  const Training& t = job.training;
  const DeepSpeedCheckpointing& config = t.checkpoint.deepspeed;
  const auto made = static_cast<std::int64_t>(t.checkpoint.groups.size());
  if (!t.checkpoint.by_deepspeed() || !config.contiguous || config.number_checkpoints <= made) return;
  const std::int64_t elements = checked_mul(checked_mul(t.rows(), t.seq), model.dims.hidden) / job.parallelism.tp;
  into.push_back({"spare_checkpoints", "activation_checkpointing.number_checkpoints",
                  storage(Elements(elements), t.dtype) * (config.number_checkpoints - made),
                  formatted("{} contiguous checkpoints are allocated at the first layer{}, and a forward takes {}",
                            config.number_checkpoints, config.cpu ? ", on the host" : "", made)});
}

void sort_by_cost(std::vector<Advice>& advice) {
  std::stable_sort(advice.begin(), advice.end(), [](const Advice& a, const Advice& b) { return a.costs > b.costs; });
}

// The largest process of what the job asks for; absent without a schedule.
std::optional<Bytes> most(const std::vector<Prediction>& predictions) {
  std::optional<Bytes> largest;
  for (const Prediction& p : predictions) {
    if (p.peak && p.peak->process && (!largest || *p.peak->process > *largest)) largest = p.peak->process;
  }
  return largest;
}

struct Comparison {
  const ModelSpec& model;
  Bytes now;
  std::vector<Advice> advice;

  // Adds the advice if `other` takes less. `text` says what `other` is, and is followed by both figures.
  void against(Job other, std::string rule, std::string key, const std::string& text) {
    other.explain_advice = other.explain_fragmentation = false;
    const std::optional<Bytes> then = most(predict_asked(model, other, Detail::Fate));
    if (!then || *then >= now) return;
    advice.push_back({std::move(rule), std::move(key), now - *then,
                      formatted("{}: the process peaks at {} instead of {}", text, human(*then), human(now))});
  }
};

void compare_stage(const Job& job, Comparison& comparison) {
  const Zero& zero = job.training.zero;
  const bool elsewhere =
      zero.offload_param.device != OffloadDevice::None || zero.offload_optimizer.device == OffloadDevice::Nvme;
  if (zero.stage < 2 || elsewhere) return;
  Job other = job;
  other.training.zero.stage = 1;
  if (zero.stage == 3) other.training.zero.overlap_comm = false;  // The default of the others.
  comparison.against(
      std::move(other), "smaller_stage", "zero_optimization.stage",
      formatted("stage 1 needs less than stage {}, whose buffers outweigh what it partitions", zero.stage));
}

void compare_scatter(const Job& job, Comparison& comparison) {
  const Zero& zero = job.training.zero;
  if (zero.stage == 3 || !zero.reduce_scatter || bucket_count(job.training) == 0) return;
  Job other = job;
  other.training.zero.reduce_scatter = false;
  comparison.against(std::move(other), "reduce_scatter_copy", "zero_optimization.reduce_scatter",
                     "without reduce_scatter the bucket is reduced in place, with the same traffic");
}

void compare_sub_groups(const Job& job, Comparison& comparison) {
  constexpr Elements kSmaller{100'000'000};
  const Zero& zero = job.training.zero;
  if (zero.stage != 3 || zero.sub_group_size <= kSmaller) return;
  Job other = job;
  other.training.zero.sub_group_size = kSmaller;
  comparison.against(std::move(other), "sub_group_cast", "zero_optimization.sub_group_size",
                     formatted("a step casts the gradients of a sub-group at once; with {} elements in each",
                               grouped(kSmaller.value())));
}

// The block is there and nobody reads it.
void compare_checkpointing(const Job& job, Comparison& comparison) {
  const bool block = std::any_of(job.notices.begin(), job.notices.end(), [](const Notice& notice) {
    return notice.rule == "inert_key" && notice.key.starts_with("activation_checkpointing.");
  });
  if (!block || job.training.checkpoint.text != "none") return;
  Job other = job;
  Checkpointing& checkpoint = other.training.checkpoint;
  checkpoint.text = "full";
  const bool reentrant = job.training.transformers < Version{5, 0, 0};
  const CheckpointKind kind = reentrant ? CheckpointKind::Reentrant : CheckpointKind::NonReentrant;
  for (std::int32_t layer = 0; layer < comparison.model.dims.layers; ++layer) {
    checkpoint.groups.push_back({layer, layer, kind});
  }
  comparison.against(std::move(other), "checkpointing_without_code", "activation_checkpointing",
                     "the block checkpoints nothing; with each layer checkpointed by the code (--checkpoint full)");
}

}  // namespace

std::vector<Advice> advice_by_formula(const ModelSpec& model, const Job& job, std::int64_t rank, Elements trainable) {
  std::vector<Advice> advice;
  if (trainable > Elements(0)) {
    advise_bucket(job, trainable, advice);
    advise_overlap(job, advice);
    advise_accumulation(model, job, rank, advice);
    advise_slots(model, job, advice);
    advise_offload(model, job, advice);
    advise_tensor_parallel(model, job, advice);
  }
  for (const Notice& notice : job.notices) {
    if (notice.rule.empty()) continue;
    const Bytes costs = std::max(notice.bytes.value_or(Bytes(0)), Bytes(0));
    advice.push_back({notice.rule, notice.key, costs, notice.message});
  }
  sort_by_cost(advice);
  return advice;
}

void add_predicted_advice(const ModelSpec& model, const Job& job, std::vector<Prediction>& predictions) {
  const std::optional<Bytes> now = most(predictions);
  if (!now || job.training.runtime != Runtime::DeepSpeed) return;
  Comparison comparison{model, *now, {}};
  compare_stage(job, comparison);
  compare_scatter(job, comparison);
  compare_sub_groups(job, comparison);
  compare_checkpointing(job, comparison);
  for (Prediction& p : predictions) {
    p.advice.insert(p.advice.end(), comparison.advice.begin(), comparison.advice.end());
    sort_by_cost(p.advice);
  }
}

}  // namespace dsplan
