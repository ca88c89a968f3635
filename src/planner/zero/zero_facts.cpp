#include "planner/zero/zero_facts.h"

#include <algorithm>
#include <numeric>

namespace dsplan {

namespace {

// Since then the device has the first sub-groups of a partial offload; before, the host had.
constexpr Version kDeviceHasFirst{0, 18, 0};

bool is_zero(const Training& training, int stage) {
  return training.runtime == Runtime::DeepSpeed && training.zero.stage == stage;
}

}  // namespace

bool uses_bf16_optimizer(const Training& training) {
  return training.runtime == Runtime::DeepSpeed && training.zero.stage <= 1 && training.dtype == DType::BFloat16 &&
         training.grad_accum_dtype == DType::Float32 && training.zero.offload_optimizer.device == OffloadDevice::None;
}

bool uses_unfused_wrapper(const Training& training) {
  const Optimizer& optimizer = training.optimizer;
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  return is_zero(training, 0) && training.dtype != DType::Float32 &&
         !(adam && optimizer.implementation == Implementation::Fused);
}

bool uses_flat_partitions(const Training& training) {
  return (is_zero(training, 1) || is_zero(training, 2)) && !uses_bf16_optimizer(training);
}

bool offloads_optimizer(const Training& training) {
  return training.runtime == Runtime::DeepSpeed && training.zero.offload_optimizer.device != OffloadDevice::None;
}

bool offloads(const Training& training) {
  return offloads_optimizer(training) || (is_fsdp(training.runtime) && training.fsdp.cpu_offload) ||
         (training.runtime == Runtime::DeepSpeed && training.zero.offload_param.device != OffloadDevice::None);
}

bool ranks_differ(const Training& training, const Parallelism& parallelism) {
  const bool redundancy = training.runtime == Runtime::PyTorch && training.ddp.zero_redundancy;
  return (is_zero(training, 1) || is_zero(training, 2) || redundancy) && parallelism.dp > 1;
}

std::vector<std::int64_t> redundancy_owners(std::span<const Elements> sizes, std::int64_t ranks) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<Elements> given(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> owners(sizes.size());
  for (const std::size_t at : order) {
    const auto least = std::min_element(given.begin(), given.end());  // The first of several.
    *least += sizes[at];
    owners[at] = least - given.begin();
  }
  return owners;
}

std::vector<RankParameter> rank_parameters(const ModelSpec& model, const Job& job) {
  std::vector<RankParameter> list;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone) continue;
    list.push_back(
        {&parameter, local_shape(model, parameter, job.parallelism.tp).elements(), job.training.trains(parameter)});
  }
  return list;
}

std::int64_t flat_alignment(std::int64_t ranks) { return checked_mul(2, ranks); }

FlatPartition flat_partition(Elements trained, std::int64_t ranks) {
  const std::int64_t alignment = flat_alignment(ranks);
  const Elements padded = round_up(trained, alignment);
  const Elements own = div_floor(padded, ranks);
  return {padded, own, std::max(own - Elements(alignment), Elements(0))};
}

bool flattens_on_device(const Training& training) {
  return training.deepspeed >= Version{0, 18, 7} || uses_bf16_optimizer(training);
}

Elements shard_of(Elements parameter, std::int64_t ranks) { return div_ceil(parameter, ranks); }

Elements gathered_of(Elements parameter, std::int64_t ranks) { return shard_of(parameter, ranks) * ranks; }

bool may_persist(Elements parameter, Elements threshold) { return parameter <= threshold; }

std::vector<Elements> sub_groups(const std::vector<Elements>& shards, Elements size) {
  std::vector<Elements> groups;
  Elements filled;
  for (const Elements shard : shards) {
    filled += shard;
    if (filled < size) continue;
    groups.push_back(filled);
    filled = Elements(0);
  }
  if (filled > Elements(0)) groups.push_back(filled);
  return groups;
}

GroupRange groups_on_device(const Training& training, std::size_t count) {
  // Python's int() of a product in double precision.
  const double ratio = training.zero.offload_optimizer.ratio;
  const auto part = [count](double share) { return static_cast<std::size_t>(share * static_cast<double>(count)); };
  if (training.deepspeed < kDeviceHasFirst) return {part(ratio), count};
  return {0, part(1 - ratio)};
}

bool sums_partition(const Training& training) {
  return uses_flat_partitions(training) && training.grad_accum_dtype != training.dtype &&
         training.deepspeed >= kSumsOfPartition;
}

DType kept_dtype(const Training& training) {
  return sums_partition(training) ? training.grad_accum_dtype : training.dtype;
}

std::int64_t bucket_count(const Training& training) {
  const Zero& zero = training.zero;
  if (!zero.contiguous_gradients) return 0;
  if (is_zero(training, 3)) return 1;
  if (!uses_flat_partitions(training)) return 0;
  return zero.overlap_comm ? 2 : 1;
}

DType bucket_dtype(const Training& training) {
  if (is_zero(training, 3)) return training.communication_dtype;
  // ZeRO-1 widens gradients before it puts them together.
  return training.zero.stage == 1 ? kept_dtype(training) : training.dtype;
}

bool reduces_to_owners(const Training& training) {
  const Zero& zero = training.zero;
  return uses_flat_partitions(training) && zero.contiguous_gradients && zero.reduce_scatter &&
         !zero.use_multi_rank_bucket_allreduce;
}

std::int64_t reductions_per_step(const Training& training) {
  return training.zero.stage >= 2 ? training.grad_accum : 1;
}

SwapRules::SwapRules(const Zero& zero)
    : least(std::max<std::int64_t>(1LL << 20, zero.aio_block_size)),
      unit(checked_mul(1024, zero.aio_intra_op_parallelism)) {}

std::int64_t swap_buffers_taken(const Training& training, std::int64_t groups) {
  const Offload& offload = training.zero.offload_optimizer;
  // DeepSpeed offloads Adam, which has two states, and Lion, which has one.
  const std::int64_t tensors = training.optimizer.kind == OptimizerKind::Lion ? 3 : 4;
  const std::int64_t sets = 1 + (offload.pipeline_read ? 1 : 0) + (offload.pipeline_write ? 1 : 0);
  return tensors * std::min(sets, groups);
}

namespace {

// _keep_in_fp32_modules_strict of models whose router is a module with such a buffer: transformers lists it since 5.0.
bool listed_for_fp32(const ModelBuffer& buffer, const Training& training) {
  return training.transformers >= Version{5, 0, 0} && buffer.name.ends_with(".gate.e_score_correction_bias");
}

}  // namespace

DType buffer_dtype(const ModelBuffer& buffer, const Training& training) {
  if (training.cast_model && is_floating(buffer.dtype)) return training.dtype;
  constexpr Version kKeepsListed{0, 19, 8};
  const bool listed = training.deepspeed >= kKeepsListed && listed_for_fp32(buffer, training);
  if (training.runtime == Runtime::DeepSpeed && listed) return DType::Float32;
  const bool wrapped = training.under_zero_init() && buffer.dtype == DType::Float32 && !buffer.converted;
  return buffer.follows_model_dtype || wrapped ? training.dtype : buffer.dtype;
}

}  // namespace dsplan
