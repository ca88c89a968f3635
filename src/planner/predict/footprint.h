// Closed formulas for what one rank keeps and sends: the second derivation beside the schedule. It shares no code with
// planner/lower; a property test holds the two equal over random models, stages, worlds and recompute plans. Where no
// schedule can be made (offload, tensor parallelism, families without an operator graph) these are the prediction.
//
// Notation (DeepSpeed's source, see each formula): W ranks, N trained elements, b, a, c, m bytes of the model's,
// accumulation, communication and master dtype, S partition elements, B reduce_bucket_size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

struct Footprint {
  Elements parameters_total;  // Unsharded, ties once.
  Elements parameters_trainable;
  States states;            // On the device.
  ByRole persistent;        // Live after the second step.
  bool batch_known = true;  // False: the family's batch is not modelled, and `inputs` is 0.
};

// Refuses what core/model's local_shape refuses (tensor parallelism that does not divide). `rank`, a data-parallel one,
// matters under FSDP2, whose last ranks keep fewer rows.
[[nodiscard]] Footprint footprint(const ModelSpec& model, const Job& job, std::int64_t rank = 0);
// In which dtype the device holds a buffer of the model.
[[nodiscard]] DType held_dtype(const ModelSpec& model, const ModelBuffer& buffer, const Training& training);
// Whether ranks keep different bytes by these formulas: rows of shards, or states of other parameters.
[[nodiscard]] bool footprints_differ(const Training& training);
// What of it fully_shard decides, and the rows of its traffic.
void fsdp_footprint(const ModelSpec& model, const Job& job, std::int64_t rank, Footprint& result);
[[nodiscard]] std::vector<TrafficRow> fsdp_traffic(const ModelSpec& model, const Job& job);
// States of tensors that an optimizer is given as they are.
struct GivenTensor {
  Shape shape;
  DType dtype = DType::Float32;
  bool embedding = false;
};
[[nodiscard]] Bytes states_of(const Optimizer& optimizer, const std::vector<GivenTensor>& tensors);
void fsdp1_footprint(const ModelSpec& model, const Job& job, std::int64_t rank, Footprint& result);
[[nodiscard]] std::vector<TrafficRow> fsdp1_traffic(const ModelSpec& model, const Job& job);
// How often fully_shard gathers one layer's parameters in a backward pass: from the shards among all ranks, and from
// those among fewer. `reshards`: of each layer, as Fsdp::reshard_after_forward; the answer has one entry more, for what
// `tail` says stands behind them in a group of its own: beyond the gather that it needs.
struct LayerGathers {
  std::int64_t of_all = 0;
  std::int64_t of_fewer = 0;
};
[[nodiscard]] std::vector<LayerGathers> layer_gathers(const Training& training,
                                                      const std::vector<std::int64_t>& reshards, bool tail);
// What rank 0 scatters where it alone has loaded the weights: rows of its sends, or of what `rank` receives. No event
// of the schedule is one: who carries a schedule out reads its rows off the whole weight, which it has by then.
[[nodiscard]] std::vector<TrafficRow> scattered_rows(const ModelSpec& model, const Job& job, std::int64_t rank);

// This rank's logits, which a script's variable holds until its next forward has returned (LoopKind::Script); 0 where
// the loop drops them, or the loss does not have all of them at once.
[[nodiscard]] Bytes held_logits(const ModelSpec& model, const Job& job);

// What one rank keeps in files on NVMe, and in memory that DeepSpeed locks for it: the second derivation of the host's
// ledger. Zero everywhere but under ZeRO-3 with something offloaded there.
struct NvmeFootprint {
  Bytes files;
  Bytes optimizer_step;  // Read in each step, and written in each: masters, states and gradients. Of `files`.
  Bytes locked;
  // Offloaded parameters: the largest partition that goes through a buffer (0: none does); and the host's flat buffer,
  // with what the sub-groups that fit into it fill of it.
  Elements largest_partition;
  Elements flat;
  Elements filled;
  // An offloaded optimizer: how many sub-groups are swapped, and the elements of the largest sub-group of all.
  std::int64_t swapped_groups = 0;
  Elements largest_group;
};
[[nodiscard]] NvmeFootprint nvme_footprint(const ModelSpec& model, const Job& job, std::int64_t rank);

// What checkpoints around layers take beside the model's own tensors, each figure of one buffer: the second derivation
// of what only their runtime decides (torch/utils/checkpoint.py; DeepSpeed, activation_checkpointing/checkpointing.py).
// One floating-point argument, the hidden states; of micro-batches that differ in length those of one length.
struct CheckpointFootprint {
  Bytes argument;    // Whole.
  Bytes part;        // Of it, on each of the ranks that share layers; without partition_activations all of it.
  Bytes page_index;  // One int64 for each page of a part: contiguous_memory_optimization.
  Bytes shape_note;  // int64 by dimension, of as many arguments as one note is about: partition_activations.
  Bytes emptied;     // What is left where an argument was: partition_activations and cpu_checkpointing.
  Bytes host_random;
  Bytes device_random;
};
[[nodiscard]] CheckpointFootprint checkpoint_footprint(const ModelSpec& model, const Job& job, std::int64_t seq);
// In words, which buffer of the schedule has another size than these; empty: none, or the job's checkpoints are not
// around layers.
[[nodiscard]] std::string checkpoint_fault(const ModelSpec& model, const Job& job, const Schedule& schedule);

// ZeRO-1 and 2: by rank, the elements of all parameters that touch its partition (G_r): what grads_in_partition holds.
[[nodiscard]] std::vector<Elements> kept_gradients(const ModelSpec& model, const Job& job);

// What the tensor-parallel ranks send each other in one optimizer step in steady state: how many times `hidden`, the
// bytes of one hidden state of all micro-batches, is summed or gathered. Nothing on one rank. Checkpoints around layers
// are counted, those around modules are not.
struct TensorParallelSums {
  Bytes hidden;
  Bytes loss;                       // Three fp32 values for each token, in forward.
  std::int64_t forward_layers = 0;  // Beside these, one for the embedding.
  std::int64_t backward_layers = 0;
  std::int64_t head = 0;      // In backward.
  std::int64_t repeated = 0;  // By recomputation.
  std::int64_t gathered = 0;  // Arguments of checkpoints under partition_activations.
};
[[nodiscard]] TensorParallelSums tensor_parallel_sums(const ModelSpec& model, const Job& job);
// The same as rows.
[[nodiscard]] std::vector<TrafficRow> tensor_parallel_traffic(const ModelSpec& model, const Job& job);

// Payload of one optimizer step in steady state, by collective and phase, data only; calls are not derived here.
// Needs the module call order; valid wherever a schedule can be made, but for ZeRO-3's gathers in forward and backward:
// they are those of a job that fetches nothing ahead and keeps nothing (an upper bound for others), and in backward of
// one without frozen parameters: a module without a gradient is not entered there, and this formula does not follow
// gradients.
[[nodiscard]] std::vector<TrafficRow> traffic_formulas(const ModelSpec& model, const Job& job);

}  // namespace dsplan
