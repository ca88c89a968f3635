// What DeepSpeed's ZeRO decides about a job before anything runs: partitions and paddings, buckets and their dtypes,
// sub-groups, which optimizer class it takes. Pure functions of the training, the ranks and sizes. resolve, advice,
// times, the bounds of a search and the lowering read them here. predict/footprint*.cpp derive the same a second time
// and must not include this header (tools/layering.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

// --- which class of DeepSpeed's holds the optimizer ---

// bf16 with sums in fp32 and at most ZeRO-1: BF16_Optimizer (engine.py, _configure_zero_optimizer).
[[nodiscard]] bool uses_bf16_optimizer(const Training& training);
// 16 bit without ZeRO: FP16_Optimizer is for FusedAdam; others get one master for each parameter (engine.py,
// _configure_fp16_optimizer).
[[nodiscard]] bool uses_unfused_wrapper(const Training& training);
// DeepSpeedZeroOptimizer: one flat buffer of all parameters, of which each rank updates a partition (ZeRO-1 and 2).
[[nodiscard]] bool uses_flat_partitions(const Training& training);
// Whether the optimizer's states, or parameters too, are kept on the host or in files.
[[nodiscard]] bool offloads_optimizer(const Training& training);
[[nodiscard]] bool offloads(const Training& training);
// Ranks that keep different bytes: each has another partition of the flat buffer, and so other gradients; or updates
// other parameters (ZeroRedundancyOptimizer).
[[nodiscard]] bool ranks_differ(const Training& training, const Parallelism& parallelism);

// --- partitions ---

// ZeroRedundancyOptimizer, _partition_parameters: parameters in order, the largest first, each to the rank that has the
// fewest elements yet. By parameter its owner.
[[nodiscard]] std::vector<std::int64_t> redundancy_owners(std::span<const Elements> sizes, std::int64_t ranks);

// A parameter as a tensor-parallel rank holds it; each once.
struct RankParameter {
  const Parameter* parameter = nullptr;
  Elements elements;
  bool trained = true;
};
// In registration order. Refuses what core/model's local_shape refuses.
[[nodiscard]] std::vector<RankParameter> rank_parameters(const ModelSpec& model, const Job& job);

// A flat buffer is padded to 2 W elements (stage_1_and_2.py and bf16_optimizer.py, nccl_start_alignment_factor).
[[nodiscard]] std::int64_t flat_alignment(std::int64_t ranks);
struct FlatPartition {
  Elements padded;  // All of it.
  Elements own;     // One rank's.
  Elements filled;  // By parameters, at the least: padding ends the last rank's.
};
[[nodiscard]] FlatPartition flat_partition(Elements trained, std::int64_t ranks);
// The flat buffer is made on the device since 0.18.7; before, parameters go through the host.
[[nodiscard]] bool flattens_on_device(const Training& training);

// ZeRO-3: a rank's part of a parameter, and what a gather of all parts makes (partition_parameters.py).
[[nodiscard]] Elements shard_of(Elements parameter, std::int64_t ranks);
[[nodiscard]] Elements gathered_of(Elements parameter, std::int64_t ranks);
// A parameter no larger than this stays whole, as far as model_persistence_threshold has room
// (parameter_offload.py, mark_persistent_parameters).
[[nodiscard]] bool may_persist(Elements parameter, Elements threshold);

// ZeRO-3 updates shards in groups: each is closed once it has `size` elements (stage3.py, _create_fp16_sub_groups).
[[nodiscard]] std::vector<Elements> sub_groups(const std::vector<Elements>& shards, Elements size);
// Which of `count` sub-groups a partial offload leaves on the device, [begin, end): the first ones since 0.18.0, the
// last ones before (stage3.py, offload_optimizer's ratio).
struct GroupRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};
[[nodiscard]] GroupRange groups_on_device(const Training& training, std::size_t count);

// --- gradients ---

// ZeRO-1 and 2 sum in another dtype than the model's, in a partition of its own. Before, ZeRO-2 kept the model's
// whatever was asked.
inline constexpr Version kSumsOfPartition{0, 19, 8};
[[nodiscard]] bool sums_partition(const Training& training);
// In which a partition's gradients are kept.
[[nodiscard]] DType kept_dtype(const Training& training);
// Buckets of reduce_bucket_size elements: ZeRO-1 and 2 make the second one of overlap_comm even where gradients are not
// copied together (setup_buckets); BF16_Optimizer has none.
[[nodiscard]] std::int64_t bucket_count(const Training& training);
[[nodiscard]] DType bucket_dtype(const Training& training);
// ZeRO-1 and 2: each owner's part is reduced to it alone; else everybody gets everything (average_tensor).
[[nodiscard]] bool reduces_to_owners(const Training& training);
// Times that gradients travel in one optimizer step: ZeRO-1 waits for the last micro-batch.
[[nodiscard]] std::int64_t reductions_per_step(const Training& training);
// Of allgather_bucket_size: elements of one gather of updated parameters.
inline constexpr Elements kGatherBucket{500'000'000};

// --- buffers ---

// In which dtype the engine leaves a buffer of the model. zero.Init wraps the constructors of tensors, so that tables
// come in the model's dtype; elsewhere DeepSpeed leaves them as they are. Routers' biases that transformers lists to be
// kept in fp32 are cast back since 0.19.8 (runtime/keep_in_fp32.py).
[[nodiscard]] DType buffer_dtype(const ModelBuffer& buffer, const Training& training);

// --- files on NVMe ---

// What may be swapped, and in which pieces (swap_tensor/utils.py: MIN_AIO_BYTES, AIO_ALIGNED_BYTES).
struct SwapRules {
  explicit SwapRules(const Zero& zero);
  Bytes least;  // What is smaller stays in memory.
  Bytes unit;   // Files and buffers are multiples of it.
  [[nodiscard]] bool swaps(Bytes bytes) const { return bytes >= least; }
  [[nodiscard]] Bytes aligned(Bytes bytes) const { return round_up(bytes, unit.value()); }
};
// Buffers that the optimizer takes at a time, of `groups` sub-groups that are swapped: one for a sub-group's master,
// its gradient and each state. What is read ahead takes another set, and so does what is still being written.
[[nodiscard]] std::int64_t swap_buffers_taken(const Training& training, std::int64_t groups);

}  // namespace dsplan
