// Memory that offloading takes on the host for nothing (DeepSpeed runtime/swap_tensor/*.py; stage3.py,
// _create_param_groups_fp16_flat_cpu_memory, _create_fp32_partitions). Costs are of one rank.
#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "core/format.h"
#include "planner/advise/advice_parts.h"
#include "planner/predict/footprint.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

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

}  // namespace

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

}  // namespace dsplan
