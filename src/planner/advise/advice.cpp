#include "planner/advise/advice.h"

#include <algorithm>

#include "core/format.h"
#include "planner/advise/advice_parts.h"
#include "planner/predict/footprint.h"
#include "planner/predict/predict.h"
#include "planner/zero/zero_facts.h"
#include "sim/traffic.h"

namespace dsplan {
namespace {

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
  const std::int64_t elements = checked_mul(checked_mul(t.micro_batch, t.seq), model.dims.hidden) / job.parallelism.tp;
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
    const std::optional<Bytes> then = most(predict_asked(model, other));
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
