// DeepSpeed runtime/swap_tensor/{partitioned_param_swapper,optimizer_utils,partitioned_optimizer_swapper,
// pipelined_optimizer_swapper,utils}.py.
#include "planner/resolve/nvme.h"

#include <algorithm>
#include <vector>

#include "core/format.h"
#include "core/model.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

const Place& place_of(const Setting<std::int64_t>& size, const OffloadInput& block) {
  return size.mentioned() ? size.place : block.device.place;
}

// AsyncPartitionedParameterSwapper.get_buffer: a partition takes one buffer.
void check_parameters(Resolver& resolver) {
  const Zero& zero = resolver.job.training.zero;
  const OffloadInput& block = resolver.ds->zero.offload_param;
  const SwapRules rules(zero);
  const Parameter* whose = nullptr;
  Elements largest;
  for (const RankParameter& one : rank_parameters(resolver.model, resolver.job)) {
    const Elements shard = shard_of(one.elements, resolver.job.parallelism.dp);
    if (!rules.swaps(storage(shard, resolver.job.training.dtype)) || shard <= largest) continue;
    whose = one.parameter;
    largest = shard;
  }
  if (whose == nullptr) return;
  if (zero.offload_param.buffer_count == 0) {
    resolver.fault(block.buffer_count.place, "parameters on NVMe without a buffer",
                   "DeepSpeed asserts that there is one for each partition in flight");
  }
  if (largest <= zero.offload_param.buffer_size) return;
  resolver.fault(place_of(block.buffer_size, block),
                 formatted("\"buffer_size\" {} is less than the {} elements of {}'s partition",
                           zero.offload_param.buffer_size.value(), largest.value(), whose->name),
                 "DeepSpeed asserts that a partition fits into a buffer; give at least as many, or more ranks");
}

// Sub-groups that are swapped (stage3.py, _swappable_optimizer_subgroup).
std::int64_t swapped_groups(const Resolver& resolver) {
  const Training& training = resolver.job.training;
  std::vector<Elements> shards;
  for (const RankParameter& one : rank_parameters(resolver.model, resolver.job)) {
    if (one.trained) shards.push_back(shard_of(one.elements, resolver.job.parallelism.dp));
  }
  const std::vector<Elements> groups = sub_groups(shards, training.zero.sub_group_size);
  const SwapRules rules(training.zero);
  return std::count_if(groups.begin(), groups.end(),
                       [&](Elements group) { return rules.swaps(storage(group, training.master_dtype)); });
}

void check_optimizer(Resolver& resolver) {
  const Training& training = resolver.job.training;
  const Offload& offload = training.zero.offload_optimizer;
  const OffloadInput& block = resolver.ds->zero.offload_optimizer;
  const std::int64_t groups = swapped_groups(resolver);
  if (offload.buffer_count == 0) {
    resolver.fault(block.buffer_count.place, "an optimizer on NVMe without a buffer",
                   "DeepSpeed looks at the first of them when it makes them");
  }
  if (groups == 0 || offload.buffer_count == 0) return;
  const std::int64_t need = swap_buffers_taken(training, groups);
  if (offload.buffer_count >= need) return;
  resolver.fault(place_of(block.buffer_count, block),
                 formatted("\"buffer_count\" {} is less than the {} buffers that the optimizer takes at a time",
                           offload.buffer_count, need),
                 "DeepSpeed runs out of swap buffers; each sub-group takes one for its master, its gradient and each "
                 "state, and pipelining a further set");
}

}  // namespace

void check_nvme_buffers(Resolver& resolver) {
  if (resolver.ds == nullptr || !resolver.deepspeed() || resolver.stage() != 3) return;
  const Zero& zero = resolver.job.training.zero;
  if (zero.offload_param.device == OffloadDevice::Nvme) check_parameters(resolver);
  if (zero.offload_optimizer.device == OffloadDevice::Nvme) check_optimizer(resolver);
}

}  // namespace dsplan
