#include "planner/lower/runtimes/zero3/sharding.h"

#include <algorithm>

#include "planner/lower/runtimes/zero3/swap_buffers.h"

namespace dsplan {
namespace {

// Until 0.18.0 (#7559) the host had the first sub-groups, since then it has the last.
constexpr Version kDeviceFirst{0, 18, 0};

}  // namespace

Sharding::Sharding(const Job& job, const ModelSpec& model, std::int64_t rank)
    : world_(job.parallelism.dp),
      rank_(rank),
      inside_(job.training.zero.hpz_partition_size),
      leaves_(leaves_of(model, job.training)),
      shards_(model.parameters.size()) {
  const Zero& zero = job.training.zero;
  std::int64_t persistent = 0;  // mark_persistent_parameters.
  for (const Leaf& leaf : leaves_) {
    Shard& shard = shards_[static_cast<std::size_t>(leaf.id)];
    shard = cut(leaf.elements);
    shard.trained = leaf.trainable;
    shard.replicated = model.parameters[static_cast<std::size_t>(leaf.id)].split == Split::Replicated;
    if (leaf.trainable) {
      trained_.push_back(leaf);
      shard.offset = partition_;
      partition_ = checked_add(partition_, shard.part);
    }
    if (checked_add(leaf.elements, persistent) > zero.model_persistence_threshold.value()) continue;
    if (leaf.elements > zero.param_persistence_threshold.value()) continue;
    shard.persistent = true;
    persistent_.push_back(leaf.id);
    persistent += leaf.elements;
  }
  group(zero);
  divide(job.training);
  place(job.training);
}

Shard Sharding::cut(std::int64_t elements) const {
  Shard shard;
  shard.elements = elements;
  shard.part = div_ceil(Elements(elements), world_).value();
  return shard;
}

ElementRange Sharding::real(const Shard& of, std::int64_t rank) {
  const std::int64_t from = std::min(of.elements, checked_mul(of.part, rank));
  return {from, std::min(of.part, of.elements - from)};
}

// _create_fp16_sub_groups: a sub-group is full with the parameter that reaches the size.
void Sharding::group(const Zero& zero) {
  SubGroup group;
  for (std::size_t index = 0; index < trained_.size(); ++index) {
    group.elements += of_trained(index).part;
    group.end = index + 1;
    if (group.elements < zero.sub_group_size.value() && index + 1 < trained_.size()) continue;
    groups_.push_back(group);
    group = {groups_.size(), index + 1, index + 1, group.offset + group.elements, 0, true, false};
  }
}

// subgroup_to_device; int() of a double, as Python has it.
void Sharding::divide(const Training& training) {
  if (training.zero.offload_optimizer.device == OffloadDevice::None) return;
  const double ratio = training.zero.offload_optimizer.ratio;
  const auto count = static_cast<double>(groups_.size());
  const auto of_device = static_cast<std::size_t>((1 - ratio) * count);
  const auto of_host = static_cast<std::size_t>(ratio * count);
  for (SubGroup& group : groups_) {
    group.away = training.deepspeed < kDeviceFirst ? group.number < of_host : group.number >= of_device;
  }
}

// _create_param_groups_fp16_flat_cpu_memory: the flat buffer takes whole sub-groups, of partitions on NVMe as many as
// max_in_cpu has room for. Others stay in files if they are large enough.
void Sharding::place(const Training& training) {
  const Zero& zero = training.zero;
  const bool files = zero.offload_param.device == OffloadDevice::Nvme;
  in_flat_ = files ? std::min(partition_, zero.offload_param.max_in_cpu.value()) : partition_;
  for (const Leaf& leaf : leaves_) {
    Shard& shard = shards_[static_cast<std::size_t>(leaf.id)];
    shard.in_file = files && SwapRules(zero).swaps(storage(Elements(shard.part), training.dtype));
  }
  for (SubGroup& group : groups_) {
    group.in_flat = group.offset + group.elements <= in_flat_;
    if (!group.in_flat) continue;
    for (std::size_t index = group.begin; index < group.end; ++index) {
      Shard& shard = shards_[static_cast<std::size_t>(trained_[index].id)];
      shard.in_flat = true;
      shard.in_file = false;
    }
  }
}

}  // namespace dsplan
