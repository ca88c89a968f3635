// DeepSpeed runtime/swap_tensor/{partitioned_param_swapper,optimizer_utils,partitioned_optimizer_swapper,
// pipelined_optimizer_swapper,utils}.py.
#include "planner/resolve/nvme.h"

#include <algorithm>
#include <vector>

#include "core/format.h"
#include "core/model.h"

namespace dsplan {
namespace {

// swap_tensor/utils.py, MIN_AIO_BYTES: what is smaller stays in memory.
std::int64_t least_bytes(const Zero& zero) { return std::max<std::int64_t>(1LL << 20, zero.aio_block_size); }

struct Partition {
  const Parameter* parameter = nullptr;
  std::int64_t elements = 0;
  bool trained = true;
};

std::vector<Partition> partitions_of(const Resolver& resolver) {
  const Training& training = resolver.job.training;
  std::vector<Partition> list;
  for (const Parameter& parameter : resolver.model.parameters) {
    if (parameter.tied_to != kNone) continue;
    const bool frozen = std::any_of(training.freeze.begin(), training.freeze.end(),
                                    [&](const std::string& glob) { return glob_matches(glob, parameter.name); });
    const Elements whole = local_shape(resolver.model, parameter, resolver.job.parallelism.tp).elements();
    list.push_back({&parameter, div_ceil(whole, resolver.job.parallelism.dp).value(), parameter.trainable && !frozen});
  }
  return list;
}

const Place& place_of(const Setting<std::int64_t>& size, const OffloadInput& block) {
  return size.mentioned() ? size.place : block.device.place;
}

// AsyncPartitionedParameterSwapper.get_buffer: a partition takes one buffer.
void check_parameters(Resolver& resolver) {
  const Zero& zero = resolver.job.training.zero;
  const OffloadInput& block = resolver.ds->zero.offload_param;
  const std::int64_t width = bytes_per_element(resolver.job.training.dtype);
  const Partition* largest = nullptr;
  const std::vector<Partition> all = partitions_of(resolver);
  for (const Partition& one : all) {
    if (checked_mul(one.elements, width) < least_bytes(zero)) continue;
    if (largest == nullptr || one.elements > largest->elements) largest = &one;
  }
  if (largest == nullptr) return;
  if (zero.offload_param.buffer_count == 0) {
    resolver.fault(block.buffer_count.place, "parameters on NVMe without a buffer",
                   "DeepSpeed asserts that there is one for each partition in flight");
  }
  if (largest->elements <= zero.offload_param.buffer_size.value()) return;
  resolver.fault(place_of(block.buffer_size, block),
                 formatted("\"buffer_size\" {} is less than the {} elements of {}'s partition",
                           zero.offload_param.buffer_size.value(), largest->elements, largest->parameter->name),
                 "DeepSpeed asserts that a partition fits into a buffer; give at least as many, or more ranks");
}

// Sub-groups that are swapped (stage3.py, _create_fp16_sub_groups and _swappable_optimizer_subgroup).
std::int64_t swapped_groups(const Resolver& resolver) {
  const Training& training = resolver.job.training;
  const std::int64_t width = bytes_per_element(training.master_dtype);
  std::int64_t swapped = 0;
  std::int64_t filled = 0;
  const auto close = [&] {
    if (filled > 0 && checked_mul(filled, width) >= least_bytes(training.zero)) ++swapped;
    filled = 0;
  };
  for (const Partition& one : partitions_of(resolver)) {
    if (!one.trained) continue;
    filled = checked_add(filled, one.elements);
    if (filled >= training.zero.sub_group_size.value()) close();
  }
  close();
  return swapped;
}

// A sub-group takes a buffer for its master, its gradient and each of its states. What is read ahead takes another
// set, and so does what is still being written.
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
  const bool one_state =
      training.optimizer.kind == OptimizerKind::Lion || training.optimizer.kind == OptimizerKind::Adagrad;
  const std::int64_t tensors = one_state ? 3 : 4;
  const std::int64_t wanted = 1 + (offload.pipeline_read ? 1 : 0) + (offload.pipeline_write ? 1 : 0);
  const std::int64_t need = tensors * std::min(wanted, groups);
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
