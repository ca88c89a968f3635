// What the user said, as read and before anything is decided: every field is optional and remembers where it came
// from, so that a later contradiction points at the right line. `io` fills these structs from files and launch
// lines, `cli` from options, and `planner/resolve` turns them into a Job.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/calibration.h"
#include "core/error.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

// Where an input stands: a position in a file, or (line 0) the name of an option or of a part of a launch line.
struct Place {
  std::string path;
  std::size_t line = 0;
  std::size_t column = 0;
  std::string source_line = {};

  [[nodiscard]] Diagnostic says(std::string message, std::string hint = {}) const {
    return {path, line, column, source_line, std::move(message), std::move(hint)};
  }
  // "ds.json:4:9" or "--seq".
  [[nodiscard]] std::string text() const {
    return line == 0 ? path : path + ":" + std::to_string(line) + ":" + std::to_string(column);
  }
};

// A value that may be absent, or the word "auto" that Hugging Face fills in.
template <class T>
struct Setting {
  std::optional<T> value;
  bool is_auto = false;
  Place place;

  Setting() = default;
  Setting(T given, Place where) : value(std::move(given)), place(std::move(where)) {}

  [[nodiscard]] bool given() const { return value.has_value(); }
  [[nodiscard]] bool mentioned() const { return value.has_value() || is_auto; }
  [[nodiscard]] const T& operator*() const { return *value; }
  [[nodiscard]] const T* operator->() const { return &*value; }
  [[nodiscard]] T value_or(T fallback) const { return value.value_or(std::move(fallback)); }
};

// Something to tell the user that is not a fault.
struct Notice {
  enum class Kind : std::uint8_t {
    Inert,         // Read, and without effect on bytes or traffic; the message says why.
    Unknown,       // A key that nobody knows, where the owner of the file ignores such keys too.
    Warning,       // It will run, but not as the user may think.
    Announcement,  // A silent rule of a framework that decided something, said aloud.
  };
  Kind kind = Kind::Inert;
  Place place;
  std::string message;
  std::optional<Bytes> bytes;  // What the rule changes, where that is a number of bytes per rank.
  // What turns it into advice (core/prediction.h): the rule's name and the key; empty: it is none.
  std::string rule = {};
  std::string key = {};
};
[[nodiscard]] std::string_view name(Notice::Kind kind);

// offload_param and offload_optimizer. Counts are in elements, as DeepSpeed counts them.
struct OffloadInput {
  bool present = false;
  Place place;
  Setting<OffloadDevice> device;
  Setting<std::string> nvme_path;
  Setting<bool> pin_memory;
  Setting<std::int64_t> buffer_count;
  Setting<std::int64_t> buffer_size;  // offload_param only.
  Setting<std::int64_t> max_in_cpu;   // offload_param only.
  Setting<bool> pipeline_read;        // offload_optimizer only, as the next.
  Setting<bool> pipeline_write;
};

// activation_checkpointing. Nobody reads it unless the training code calls deepspeed.checkpointing.
struct ActivationCheckpointingInput {
  bool present = false;
  Place place;
  Setting<bool> partition_activations;
  Setting<bool> cpu_checkpointing;
  Setting<bool> contiguous_memory_optimization;
  Setting<std::int64_t> number_checkpoints;
};

// zero_optimization. Names are DeepSpeed's without the prefix "stage3_".
struct ZeroInput {
  bool present = false;
  Place place;
  Setting<std::int64_t> stage;
  Setting<bool> contiguous_gradients;
  Setting<bool> reduce_scatter;
  Setting<std::int64_t> reduce_bucket_size;
  Setting<bool> use_multi_rank_bucket_allreduce;
  Setting<bool> overlap_comm;
  Setting<bool> round_robin_gradients;
  Setting<std::int64_t> sub_group_size;
  Setting<std::int64_t> prefetch_bucket_size;
  Setting<std::int64_t> param_persistence_threshold;
  Setting<std::int64_t> model_persistence_threshold;
  Setting<std::int64_t> max_live_parameters;
  Setting<std::int64_t> max_reuse_distance;
  Setting<bool> gather_16bit_weights_on_model_save;
  Setting<bool> all_reduce_for_fetch;
  Setting<bool> allgather_sequential;
  Setting<std::int64_t> hpz_partition_size;
  Setting<bool> quantized_weights;
  Setting<std::int64_t> module_granularity_threshold;
  Setting<std::vector<std::string>> leaf_classes;
  Setting<std::vector<std::string>> leaf_names;
  Setting<std::vector<std::string>> leaf_suffixes;
  OffloadInput offload_param;
  OffloadInput offload_optimizer;
};

// What fully_shard is given, in words: "true", "4", "bf16". Its MixedPrecisionPolicy and offload policy besides.
struct FsdpInput {
  Setting<std::string> wrap;                   // layers|ends|root|CLASS+CLASS
  Setting<std::string> reshard_after_forward;  // true|false|N
  Setting<std::string> reshard_root;           // true|false
  Setting<std::string> reshard_tail;           // true|false
  Setting<std::string> reshard_last;           // true|false
  Setting<std::string> param_dtype;            // bf16|fp16|fp32
  Setting<std::string> reduce_dtype;
  Setting<std::string> output_dtype;
  Setting<std::string> gradient_sync;  // last|every
  Setting<std::string> shard;          // N ranks
  Setting<std::string> replicate;
  Setting<std::string> cpu_offload;        // true|false
  Setting<std::string> forward_prefetch;   // N layers; of FSDP1 true|false
  Setting<std::string> backward_prefetch;  // N layers; of FSDP1 pre|post|none
  Setting<std::string> ignored;            // GLOB+GLOB of parameters, or "packed"
  Setting<std::string> state_dict;         // sharded|full|full-device
  // FSDP1's alone, true|false.
  Setting<std::string> use_orig_params;
  Setting<std::string> limit_all_gathers;
  Setting<std::string> sync_module_states;
  Setting<std::string> buffer_dtype;  // bf16|fp32
};

// What DistributedDataParallel is given.
struct DdpInput {
  Setting<bool> find_unused_parameters;
  Setting<bool> broadcast_buffers;
  Setting<std::int64_t> bucket_cap_mb;  // MiB
  Setting<bool> gradient_as_bucket_view;
  Setting<bool> static_graph;
  Setting<std::string> comm_hook;  // none|fp16|bf16
  Setting<bool> zero_redundancy;
};

// The optimizer block. `implementation` follows from torch_adam; `weight_mode` is adam_w_mode.
struct OptimizerInput {
  bool present = false;
  Place place;
  Setting<std::string> type;  // As written: "Adam", "AdamW", "Lion", ...
  Setting<bool> torch_adam;
  Setting<bool> adam_w_mode;
  Setting<double> momentum;       // torch.optim.SGD.
  Setting<double> learning_rate;  // The last five matter only against TrainingArguments, as in Hugging Face.
  Setting<std::vector<double>> betas;
  Setting<double> epsilon;
  Setting<double> weight_decay;
};

// When a key of the DeepSpeed file can have an effect at all.
enum class When : std::uint8_t {
  Always,
  PyTorch,
  Zero,
  Stage12,
  Stage3,
  CpuAdam,
  ParamOffload,
  Nvme,
  Muon,
  Bf16,
  Fp16,
  DeepSpeedCheckpointing
};
[[nodiscard]] std::string_view describe(When when);  // "ZeRO stage 3", "NVMe offload", ...

// A key that dsplan does not model, with a value that would matter, if `when` applies.
struct NotModelled {
  Place place;
  When when = When::Always;
  std::string key;      // "zero_optimization.zero_hpz_partition_size"
  std::string feature;  // "hpZ"
};

// A key that was read and honoured but whose block may turn out not to be in use.
struct ConditionalKey {
  Place place;
  When when = When::Always;
  std::string key;
};

// A DeepSpeed configuration as DeepSpeed reads it. "auto" is kept as such.
struct DeepSpeedInput {
  std::string path;
  Place place;  // The beginning of the file.
  Setting<std::int64_t> train_batch_size;
  Setting<std::int64_t> micro_batch;
  Setting<std::int64_t> grad_accum;
  Setting<double> gradient_clipping;
  Setting<bool> bf16_enabled;
  Setting<bool> bf16_check_grad_overflow;
  Setting<bool> bf16_immediate_grad_update;
  Setting<bool> fp16_enabled;
  Setting<DType> grad_accum_dtype;
  Setting<DType> param_dtype;
  Setting<DType> communication_dtype;
  Setting<bool> prescale_gradients;
  Setting<double> gradient_predivide_factor;
  Setting<bool> sum_gradients;  // gradient_allreduce_op: "sum".
  Setting<bool> allow_untested_optimizer;
  Setting<std::int64_t> aio_block_size;
  Setting<std::int64_t> aio_intra_op_parallelism;
  Setting<bool> compute_grad_norm;  // zero_optimization; stages 1 and 2 only.
  Setting<double> offload_optimizer_ratio;
  OptimizerInput optimizer;
  ZeroInput zero;
  ActivationCheckpointingInput activation_checkpointing;
  std::vector<NotModelled> not_modelled;
  std::vector<ConditionalKey> conditional;
  std::vector<ConditionalKey> removed;  // Keys whose mere presence later versions refuse.
  std::vector<ConditionalKey> added;    // Keys that earlier versions forbid.
  std::vector<Notice> notices;
};

// One entry of a checkpointing file: layers first..last, counted from 0, as one group.
struct CheckpointEntry {
  std::int64_t first = 0;
  std::int64_t last = 0;
  bool recompute = true;                    // "recompute"; false: "store".
  std::optional<CheckpointKind> kind = {};  // "reentrant", "non_reentrant"; absent: the run's.
  Place place;
  std::vector<Op> kept = {};  // "keep:OP+OP"; then `kind` is the non-reentrant one.
};

// A row of a routing file: the tokens of each expert of one mixture.
struct TokenCounts {
  std::vector<std::int64_t> tokens;
  Place place;
};

// Hugging Face's TrainingArguments, from a file or from the script's part of a launch line. Absent fields have
// Hugging Face's defaults, which count as values when they are compared with a DeepSpeed JSON
// (transformers, integrations/deepspeed.py, HfTrainerDeepSpeedConfig).
struct TrainingArguments {
  Place place;
  Setting<std::int64_t> per_device_train_batch_size;  // 8
  Setting<std::int64_t> gradient_accumulation_steps;  // 1
  Setting<double> max_grad_norm;                      // 1.0
  Setting<double> learning_rate;                      // 5e-5
  Setting<double> adam_beta1;                         // 0.9
  Setting<double> adam_beta2;                         // 0.999
  Setting<double> adam_epsilon;                       // 1e-8
  Setting<double> weight_decay;                       // 0.0
  Setting<bool> bf16;                                 // false
  Setting<bool> fp16;                                 // false
  Setting<bool> auto_find_batch_size;                 // false
  Setting<bool> gradient_checkpointing;               // false
  Setting<std::string> optim;                         // "adamw_torch_fused"
};

struct LoraPlaces {
  std::optional<Place> targets;
  std::optional<Place> saved;
};

// Everything that a training file, TrainingArguments, a launch line and the options can say. Each of them makes one
// Request; `overlay` lays them over each other. Field comments name the option and, where it differs, the key of the
// training file; the table in core/settings.h has a row for each field.
struct Request {
  // Files, opened by whoever has the file system.
  Setting<std::string> deepspeed;    // --deepspeed
  Setting<std::string> training;     // --training
  Setting<std::string> hardware;     // --hardware
  Setting<std::string> cluster;      // --cluster
  Setting<std::string> env;          // --env
  Setting<std::string> calibration;  // --calibration
  Setting<Calibration> measured;     // The content of --calibration.
  // Ranks.
  Setting<std::int64_t> gpus;           // --gpus, all ranks
  Setting<std::int64_t> gpus_per_node;  // --gpus-per-node (gpus_per_node)
  Setting<std::int64_t> tp;             // --tp
  Setting<std::int64_t> sp;             // --sp
  Setting<std::int64_t> ep;             // --ep
  Setting<std::int64_t> nodes;          // Launch lines only.
  // Runtime and batch.
  Setting<std::string> runtime;       // --runtime pytorch|ddp|deepspeed|fsdp2|hsdp
  Setting<std::int64_t> zero_stage;   // --zero-stage (zero_stage)
  Setting<std::int64_t> micro_batch;  // --micro-batch (micro_batch)
  Setting<std::int64_t> grad_accum;   // --grad-accum (grad_accum)
  Setting<std::int64_t> seq;          // --seq
  Setting<std::string> seq_list;      // --seq-list (seq_list)
  Setting<std::int64_t> target_seq;   // --target-seq (target_seq)
  Setting<std::int64_t> images;       // --images
  Setting<std::string> image_size;    // --image-size N|HEIGHTxWIDTH
  Setting<std::string> dtype;         // --dtype bf16|fp16|fp32
  Setting<std::string> torch_dtype;   // In which the script loads the model: TrainingArguments and launch lines only.
  Setting<std::string> mixed_precision;  // accelerate's bf16 or fp16: launch lines only.
  Setting<std::string> autocast;         // --autocast
  Setting<std::string> optimizer;        // --optimizer NAME[:IMPLEMENTATION] (optimizer.name)
  Setting<std::string> implementation;   // (optimizer.implementation) fused|foreach|for-loop
  Setting<double> momentum;              // (optimizer.momentum)
  Setting<double> weight_decay;          // (optimizer.weight_decay)
  Setting<std::string> param_groups;     // (param_groups) single|decay
  Setting<std::string> model_init;       // (model_init) zero_init|device|host|meta|rank0; also --set
  Setting<bool> zero_grad_set_to_none;   // (zero_grad_set_to_none) true; also --set
  Setting<double> max_grad_norm;         // (max_grad_norm)
  FsdpInput fsdp;                        // (fsdp.wrap, fsdp.reshard_after_forward, ...); also --set
  DdpInput ddp;                          // (ddp.find_unused_parameters, ...); also --set
  // Model and its execution.
  Setting<std::vector<std::string>> freeze;                 // --freeze GLOB, repeatable
  Setting<std::string> lora;                                // --lora
  LoraPlaces lora_places;                                   // Of its parts, where a file says each for itself.
  Setting<std::string> quantization;                        // --quantization none|nf4|fp4|int8
  Setting<bool> double_quant;                               // --double-quant true|false
  Setting<std::string> quant_compute_dtype;                 // --quant-compute-dtype
  Setting<std::string> quant_storage;                       // --quant-storage
  Setting<bool> kbit_prepare;                               // --kbit-prepare true|false
  Setting<std::string> checkpoint;                          // --checkpoint none|full|every:K|segments:K|nth:K|auto|FILE
  Setting<std::vector<CheckpointEntry>> checkpoint_groups;  // The content of --checkpoint FILE.
  Setting<std::string> checkpoint_impl;            // --checkpoint-impl reentrant|non_reentrant (checkpoint_impl)
  Setting<std::string> activation_offloading;      // --activation-offloading none|streams|single-stream
  Setting<bool> preserve_rng_state;                // (preserve_rng_state)
  Setting<bool> early_stop;                        // (early_stop)
  Setting<bool> use_cache;                         // (use_cache); also --set
  Setting<bool> labels_are_ids;                    // (labels_are_ids); also --set
  Setting<bool> cast_model;                        // (cast_model); also --set
  Setting<bool> input_require_grads;               // (input_require_grads)
  Setting<bool> layers_require_grads;              // (layers_require_grads)
  Setting<std::string> attention;                  // --attention eager|math|flash|mem-efficient|cudnn|sdpa
  Setting<std::string> loss;                       // --loss hf
  Setting<std::string> loop;                       // --loop trainer|minimal|loss|script|torchtitan|...
  Setting<std::string> level;                      // --level kernel|dispatch (level)
  Setting<std::string> experts;                    // --experts grouped_mm|eager|batched_mm
  Setting<std::string> routing;                    // --routing balanced|worst|capacity:F|counts:...|FILE
  Setting<std::vector<TokenCounts>> token_counts;  // The content of --routing FILE.
  // Allocator.
  Setting<std::string> alloc_conf;    // --alloc-conf (allocator_conf)
  Setting<std::string> stream_frees;  // --stream-frees at-sync|immediate (stream_frees)
  Setting<std::string> placement;     // --placement caching|planned
  // Versions.
  Setting<std::string> deepspeed_version;     // --deepspeed-version (deepspeed_version)
  Setting<std::string> torch_version;         // --torch-version (torch_version)
  Setting<std::string> transformers_version;  // --transformers-version (transformers_version)
  Setting<std::string> liger_version;         // --liger-version (liger_version)
  Setting<std::string> liger_kernels;         // --liger-kernels (liger_kernels)
  Setting<std::string> lora_kernels;          // --lora-kernels (lora_kernels)
  Setting<std::string> model_code;            // --model-code transformers|torchtitan (model_code)
  Setting<std::string> torchtitan_version;    // --torchtitan-version (torchtitan_version)
  // Limits.
  Setting<Bytes> host_memory;  // --host-memory, per node (host_memory)
  Setting<Bytes> nvme_memory;  // --nvme-memory, per node (nvme_memory)
  Setting<Bytes> capacity;     // --capacity
  Setting<Bytes> reserve;      // --reserve
  // What to report.
  Setting<std::string> rank;              // --rank R|all|worst
  Setting<std::string> phase;             // --phase
  Setting<bool> strict;                   // --strict
  Setting<std::vector<std::string>> set;  // --set KEY=VALUE, repeatable
  Setting<std::string> format;            // --format table|json|csv|md
  Setting<std::string> out;               // --out FILE
  // Sources. A training file or a launch line means Hugging Face's rules for "auto".
  bool has_training_file = false;
  bool has_launch_line = false;
  std::optional<TrainingArguments> training_arguments;
  std::optional<DeepSpeedInput> inline_deepspeed;  // TrainingArguments may hold the configuration itself.
  std::vector<NotModelled> not_modelled;
  std::vector<Notice> notices;

  [[nodiscard]] bool hugging_face_rules() const {
    return has_training_file || has_launch_line || training_arguments.has_value();
  }
};

// `above` wins wherever it says something. The order is: option over launch line over training file over
// TrainingArguments; the DeepSpeed JSON lies below all of them and is not a Request. An optimizer's name carries its
// implementation, momentum and weight decay with it, and a --checkpoint its file.
[[nodiscard]] Request overlay(const Request& below, const Request& above);

// Place of an option or of a part of a launch line.
[[nodiscard]] Place option(std::string name);

// "70GiB", "512 MiB", "80GB" (powers of ten), "1024" (bytes), "1.5GiB"; nullopt for anything else, for a fraction of a
// byte and for what does not fit in 63 bits.
[[nodiscard]] std::optional<Bytes> parse_bytes(std::string_view text);

}  // namespace dsplan
