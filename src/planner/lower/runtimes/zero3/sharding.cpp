#include "planner/lower/runtimes/zero3/sharding.h"

#include <algorithm>

#include "planner/zero/zero_facts.h"

namespace dsplan {

Sharding::Sharding(const Job& job, const ModelSpec& model, std::int64_t rank)
    : world_(job.parallelism.dp),
      rank_(rank),
      inside_(job.training.zero.hpz_partition_size),
      named_(named_parameters(model, job.training)),
      shards_(model.parameters.size()),
      trained_dtype_(job.training.dtype) {
  const Zero& zero = job.training.zero;
  std::int64_t persistent = 0;  // mark_persistent_parameters.
  for (const NamedParameter& p : named_) {
    Shard& shard = shards_[static_cast<std::size_t>(p.id)];
    shard = cut_tensor(p.elements, p.dtype, world_);
    shard.trained = p.trainable;
    shard.replicated = model.parameter_at(p.id).split == Split::Replicated;
    if (p.trainable) {
      if (trained_.empty()) trained_dtype_ = p.dtype;
      trained_.push_back(p);
      shard.offset = partition_;
      partition_ = checked_add(partition_, shard.part);
    }
    if (checked_add(p.elements, persistent) > zero.model_persistence_threshold.value()) continue;
    if (!may_persist(Elements(p.elements), zero.param_persistence_threshold)) continue;
    shard.persistent = true;
    persistent_.push_back(p.id);
    persistent += p.elements;
  }
  group(zero);
  divide(job.training);
  place(job.training);
}

Shard cut_tensor(std::int64_t elements, DType dtype, std::int64_t ranks) {
  Shard shard;
  shard.elements = elements;
  shard.dtype = dtype;
  shard.part = shard_of(Elements(elements), ranks).value();
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
    group.dtype = trained_dtype_;
    groups_.push_back(group);
    group = {.number = groups_.size(), .begin = index + 1, .end = index + 1, .offset = group.offset + group.elements};
  }
}

// subgroup_to_device.
void Sharding::divide(const Training& training) {
  if (training.zero.offload_optimizer.device == OffloadDevice::None) return;
  const GroupRange device = groups_on_device(training, groups_.size());
  for (SubGroup& group : groups_) group.away = group.number < device.begin || group.number >= device.end;
}

// _create_param_groups_fp16_flat_cpu_memory: the flat buffer takes whole sub-groups, of partitions on NVMe as many as
// max_in_cpu has room for. Others stay in files if they are large enough.
void Sharding::place(const Training& training) {
  const Zero& zero = training.zero;
  const bool files = zero.offload_param.device == OffloadDevice::Nvme;
  in_flat_ = files ? std::min(partition_, zero.offload_param.max_in_cpu.value()) : partition_;
  for (const NamedParameter& p : named_) {
    Shard& shard = shards_[static_cast<std::size_t>(p.id)];
    shard.in_file = files && SwapRules(zero).swaps(shard.bytes(shard.part));
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
