// What ZeRO-3 keeps on NVMe, by formula (DeepSpeed runtime/swap_tensor/*.py; stage3.py, _create_fp16_sub_groups,
// _create_param_groups_fp16_flat_cpu_memory, _swappable_optimizer_subgroup).
//
// P = ceil(n / W) elements of a parameter, b and m bytes of the model's and the master's dtype, u the aligned bytes
// (1024 * aio.intra_op_parallelism), t the least that is swapped (1 MiB, or aio.block_size if that is more).
#include <algorithm>
#include <utility>
#include <vector>

#include "planner/predict/footprint.h"

namespace dsplan {
namespace {

struct Partition {
  std::int64_t whole = 0;     // n.
  std::int64_t elements = 0;  // P.
  std::int64_t real = 0;      // Of this rank, without padding.
};

struct Cut {
  std::vector<Partition> all;                  // Frozen ones too.
  std::vector<std::vector<Partition>> groups;  // Of what is trained.
};

Cut cut(const ModelSpec& model, const Job& job, std::int64_t rank) {
  const Training& t = job.training;
  Cut result;
  std::vector<Partition> group;
  std::int64_t filled = 0;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tied_to != kNone) continue;
    const std::int64_t n = local_shape(model, parameter, job.parallelism.tp).elements().value();
    const std::int64_t part = (n + job.parallelism.dp - 1) / job.parallelism.dp;
    const Partition one{n, part, std::clamp<std::int64_t>(n - part * rank, 0, part)};
    result.all.push_back(one);
    const bool frozen = std::any_of(t.freeze.begin(), t.freeze.end(),
                                    [&](const std::string& glob) { return glob_matches(glob, parameter.name); });
    if (frozen || !parameter.trainable) continue;
    group.push_back(one);
    filled += part;
    if (filled < t.zero.sub_group_size.value()) continue;
    result.groups.push_back(std::exchange(group, {}));
    filled = 0;
  }
  if (!group.empty()) result.groups.push_back(std::move(group));
  return result;
}

std::int64_t states_of(const Optimizer& optimizer) {
  switch (optimizer.kind) {
    case OptimizerKind::Sgd: return optimizer.momentum > 0 ? 1 : 0;
    case OptimizerKind::Lion:
    case OptimizerKind::Adagrad: return 1;
    default: return 2;
  }
}

std::int64_t sum_of(const std::vector<Partition>& group) {
  std::int64_t sum = 0;
  for (const Partition& one : group) sum = checked_add(sum, one.elements);
  return sum;
}

}  // namespace

NvmeFootprint nvme_footprint(const ModelSpec& model, const Job& job, std::int64_t rank) {
  NvmeFootprint result;
  const Training& t = job.training;
  if (t.runtime != Runtime::DeepSpeed || t.zero.stage != 3) return result;
  const Zero& zero = t.zero;
  const std::int64_t least = std::max<std::int64_t>(1LL << 20, zero.aio_block_size);
  const std::int64_t unit = checked_mul(1024, zero.aio_intra_op_parallelism);
  const std::int64_t b = bytes_per_element(t.dtype);
  const std::int64_t m = bytes_per_element(t.master_dtype);
  const Cut parts = cut(model, job, rank);
  if (zero.offload_param.device == OffloadDevice::Nvme) {
    for (const Partition& one : parts.all) {
      if (one.elements * b < least) continue;
      result.files += round_up(Bytes(one.elements * b), unit);
      result.largest_partition = std::max(result.largest_partition, Elements(one.elements));
    }
    result.locked += round_up(storage(zero.offload_param.buffer_size, t.dtype), unit) * zero.offload_param.buffer_count;
    std::int64_t passed = 0;
    const std::vector<Partition>* most = nullptr;
    for (const std::vector<Partition>& group : parts.groups) {
      passed = checked_add(passed, sum_of(group));
      if (passed <= zero.offload_param.max_in_cpu.value()) result.filled = Elements(passed);
      if (most == nullptr || sum_of(group) > sum_of(*most)) most = &group;
    }
    result.flat = std::min(Elements(passed), zero.offload_param.max_in_cpu);
    if (passed > zero.offload_param.max_in_cpu.value()) {
      for (const Partition& one : *most) result.locked += round_up(Bytes(one.whole * b), unit);
    }
  }
  if (zero.offload_optimizer.device != OffloadDevice::Nvme) return result;
  std::int64_t largest = 0;
  for (const std::vector<Partition>& group : parts.groups) {
    const std::int64_t elements = sum_of(group);
    largest = std::max(largest, elements);
    if (elements * m < least) continue;
    ++result.swapped_groups;
    result.optimizer_step += round_up(Bytes(elements * m), unit) * (1 + states_of(t.optimizer));
    for (const Partition& one : group) {
      if (one.real * m >= least) result.optimizer_step += Bytes(one.real * m / unit * unit);
    }
  }
  result.files += result.optimizer_step;
  result.largest_group = Elements(largest);
  result.locked += round_up(Bytes(largest * m), unit) * zero.offload_optimizer.buffer_count;
  return result;
}

}  // namespace dsplan
