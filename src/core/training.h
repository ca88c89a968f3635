// The training run as it will be predicted: every field has its final value. `planner/resolve` makes it from what the
// user gave (core/inputs.h) and remembers for each input whether it was given, derived or assumed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/units.h"

namespace dsplan {

// The released triple that produced the committed witness data; the one place that names it.
inline constexpr const char* kTorchVersion = "2.11.0";
inline constexpr const char* kTransformersVersion = "5.17.0";
inline constexpr const char* kDeepSpeedVersion = "0.19.8";
inline constexpr const char* kLigerVersion = "0.8.5";
inline constexpr const char* kTorchtitanVersion = "0.2.2";

struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
  friend auto operator<=>(const Version&, const Version&) = default;
  [[nodiscard]] std::string text() const;
  // "2.11.0", "2.11", "2.11.0+cu130"; nullopt for anything else.
  [[nodiscard]] static std::optional<Version> parse(std::string_view text);
};

// The same as numbers, for whoever asks for nothing else.
inline constexpr Version kWitnessTorch{2, 11, 0};
inline constexpr Version kWitnessTransformers{5, 17, 0};
inline constexpr Version kWitnessLiger{0, 8, 5};
inline constexpr Version kWitnessTorchtitan{0, 2, 2};

// Fsdp1: FullyShardedDataParallel, which flattens what Fsdp2's fully_shard leaves as it is.
enum class Runtime : std::uint8_t { PyTorch, DeepSpeed, Fsdp2, Fsdp1 };
[[nodiscard]] constexpr bool is_fsdp(Runtime runtime) { return runtime == Runtime::Fsdp2 || runtime == Runtime::Fsdp1; }

enum class OptimizerKind : std::uint8_t {
  Adam,
  AdamW,
  Sgd,
  Adafactor,
  Lion,
  Adam8bit,
  Muon,
  Adagrad,
  RmsProp,
  AdamW32bit,  // From here on bitsandbytes', as Lion and Adam8bit are under plain PyTorch.
  Lion8bit,
  AdEmaMix,
  AdEmaMix8bit,
  AoAdamW8bit,  // From here on torchao's AdamW with few bits a state.
  AoAdamW4bit,
  AoAdamWFp8
};
inline constexpr OptimizerKind kLastOptimizer = OptimizerKind::AoAdamWFp8;
enum class Implementation : std::uint8_t { Fused, Foreach, ForLoop };

struct Optimizer {
  OptimizerKind kind = OptimizerKind::AdamW;
  Implementation implementation = Implementation::Fused;
  double momentum = 0;      // Sgd, RmsProp: a buffer exists iff > 0.
  double weight_decay = 0;  // Matters where it is added to the gradient: Adam, Sgd, Adagrad, RmsProp.
  // An 8-bit one made by transformers' Trainer, which registers embeddings as 32-bit. Plain PyTorch only.
  bool embeddings_32bit = false;
  // bitsandbytes keeps states of 100,000 elements and more in managed memory, which the driver moves to and fro.
  bool paged = false;
};

enum class OffloadDevice : std::uint8_t { None, Cpu, Nvme };

// Defaults are offload_optimizer's where the two blocks differ; the resolver fills in those of the block it reads.
struct Offload {
  OffloadDevice device = OffloadDevice::None;
  bool pin_memory = true;
  std::string nvme_path;
  // NVMe only (reference: DeepSpeed runtime/zero/offload_config.py).
  std::int64_t buffer_count = 4;
  Elements buffer_size{100'000'000};   // offload_param.
  Elements max_in_cpu{1'000'000'000};  // offload_param.
  bool pipeline_read = false;          // offload_optimizer.
  bool pipeline_write = false;
  double ratio = 1;  // offload_optimizer under ZeRO-3: what share of the sub-groups the host updates.
  friend bool operator==(const Offload&, const Offload&) = default;
};

// zero_optimization with defaults filled in. Sizes are ELEMENTS, as DeepSpeed counts them
// (reference: DeepSpeed runtime/zero/config.py).
struct Zero {
  int stage = 0;
  bool contiguous_gradients = true;
  bool reduce_scatter = true;
  Elements reduce_bucket_size{500'000'000};
  bool use_multi_rank_bucket_allreduce = true;
  bool overlap_comm = false;
  bool round_robin_gradients = false;
  Elements sub_group_size{1'000'000'000};
  Elements prefetch_bucket_size{50'000'000};
  Elements param_persistence_threshold{100'000};
  Elements model_persistence_threshold{INT64_MAX};
  Elements max_live_parameters{1'000'000'000};
  Elements max_reuse_distance{1'000'000'000};
  bool gather_16bit_weights_on_model_save = false;
  // How stage 3 fetches parameters.
  bool all_reduce_for_fetch = false;
  bool allgather_sequential = false;
  bool memory_efficient_linear = true;
  std::int64_t hpz_partition_size = 1;  // Ranks that hold a second shard of every parameter among them; 1: none do.
  bool quantized_weights = false;       // Gathered as int8.
  // Modules that are fetched whole. `class`: by the framework's class, with its Python module ("a.b.Class") or without.
  Elements module_granularity_threshold;
  std::vector<std::string> leaf_classes;
  std::vector<std::string> leaf_names;
  std::vector<std::string> leaf_suffixes;
  Offload offload_param;
  Offload offload_optimizer;
  std::int64_t aio_block_size = 1'048'576;  // Bytes; NVMe only, as the next.
  std::int64_t aio_intra_op_parallelism = 1;
};

// fully_shard's ignored_params are words with "+" between: a parameter's name with wildcards, or "packed", which means
// what is kept in whole numbers.
inline constexpr std::string_view kPackedParameters = "packed";
[[nodiscard]] std::vector<std::string_view> ignored_words(std::string_view ignored);
[[nodiscard]] bool means(std::string_view ignored_word, const Parameter& parameter);

// When FullyShardedDataParallel gathers the unit that backward comes to next: before the backward of the one at hand,
// after it, or as it is needed. In Fsdp::backward_prefetch as a number.
enum class BackwardPrefetch : std::int64_t { Pre, Post, None };

// torch.distributed.fsdp.fully_shard, over modules and then over the model: what its arguments say. Its
// MixedPrecisionPolicy is in the run's dtypes: `dtype` is param_dtype, `communication_dtype` reduce_dtype, and
// `master_dtype` that of the model and its shards.
struct Fsdp {
  // Which modules have a group of their own, in the order of the calls, with "+" between: "layers"; "ends", embeddings,
  // and norm and head together; classes, "LlamaMLP+LlamaDecoderLayer". "root": none but the model. "ends" alone has the
  // layers behind it.
  std::string wrap = "layers";
  std::int64_t reshard_after_forward = 1;  // Of those: 0 false, 1 true, n to n ranks.
  bool reshard_root = false;               // Of what is left to the model's own group.
  bool reshard_tail = false;               // Of the group of norm and head, which "ends" makes.
  bool reshard_last = true;                // Of the last layer, as the others: torchtitan before 0.2 left it whole.
  bool casts_parameters = false;  // param_dtype is given: whatever a parameter is kept in, it is gathered in that.
  bool sync_every = false;        // Gradients are reduced in each micro-batch, not in the last one alone.
  bool casts_outputs = false;     // output_dtype is given, and is `dtype`: the loss is cast to it.
  std::int64_t replicate = 1;     // Ranks that hold the same shard (HSDP); 1: none do.
  bool cpu_offload = false;       // CPUOffloadPolicy: shards, their gradients and the optimizer are the host's.
  // set_modules_to_forward_prefetch and _backward_prefetch: of each layer that has so many after it, or before it, the
  // next ones are gathered as it begins. 0: nobody calls it; in backward the group before is gathered all the same.
  std::int64_t forward_prefetch = 0;
  std::int64_t backward_prefetch = 0;
  std::string ignored;  // ignored_words.
  // FullyShardedDataParallel's own. Its forward_prefetch is 0 or 1; SHARD_GRAD_OP does not reshard after forward.
  bool use_orig_params = false;  // The optimizer is given views of the shards, one for each parameter.
  bool limit_all_gathers = true;
  bool sync_module_states = false;
  bool casts_buffers = false;  // buffer_dtype is given, and is `dtype`.
  bool widens_shards = false;  // They are made in `dtype`, as the model was loaded, and accelerate casts them to fp32.
  [[nodiscard]] BackwardPrefetch backward() const { return static_cast<BackwardPrefetch>(backward_prefetch); }
  // What is made of the model at save: "sharded", nothing; "full", each weight whole in its turn and on rank 0's host;
  // "full-device", all of them whole on the device.
  std::string state_dict = "sharded";
  [[nodiscard]] bool saves_whole() const { return state_dict != "sharded"; }
  [[nodiscard]] bool ignores(const Parameter& parameter) const;
};

// What DistributedDataParallel is given.
struct Ddp {
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  std::int64_t bucket_cap_mb = 0;  // MiB; 0: not given, and then the first bucket is smaller than the others.
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  // fp16_compress_hook and bf16_compress_hook: gradients travel in this dtype.
  std::optional<DType> comm_hook;
  // The optimizer is ZeroRedundancyOptimizer's: each rank updates some of the parameters and sends them to the others.
  bool zero_redundancy = false;
  friend bool operator==(const Ddp&, const Ddp&) = default;
};

// torch.utils.checkpoint's two implementations, and deepspeed.checkpointing.checkpoint.
enum class CheckpointKind : std::uint8_t { NonReentrant, Reentrant, DeepSpeed };

// What deepspeed.checkpointing was configured with (runtime/activation_checkpointing/checkpointing.py, configure).
struct DeepSpeedCheckpointing {
  bool partition = false;
  bool cpu = false;
  bool contiguous = false;              // Needs `partition` and `number_checkpoints`.
  std::int64_t number_checkpoints = 0;  // 0: not given.
  friend bool operator==(const DeepSpeedCheckpointing&, const DeepSpeedCheckpointing&) = default;
};

// Which layers are checkpointed. Groups are consecutive runs of layers (in an op-graph: regions), [first, last]
// inclusive.
struct CheckpointGroup {
  std::int32_t first = 0;
  std::int32_t last = 0;
  CheckpointKind kind = CheckpointKind::NonReentrant;
  bool preserve_rng_state = true;
  // Operators whose results are kept in forward and not computed again (create_selective_checkpoint_contexts);
  // non-reentrant only.
  std::vector<Op> kept = {};
  bool alternate = false;  // Of products without a bias only the first, the third, ... of each layer are.
  friend bool operator==(const CheckpointGroup&, const CheckpointGroup&) = default;
};

struct Checkpointing {
  std::string text = "none";            // As given: "none", "full", "every:4", "segments:2", "nth:2".
  std::vector<CheckpointGroup> groups;  // Resolved against the model's layers; those not named are stored.
  // Instead of layers: modules by the last part of their path, each call of one its own checkpoint.
  std::vector<std::string> modules;
  CheckpointKind kind = CheckpointKind::NonReentrant;  // Of `modules`.
  bool preserve_rng_state = true;                      // Likewise.
  bool stops_early = true;           // Non-reentrant: what is made again ends with what backward needs.
  DeepSpeedCheckpointing deepspeed;  // Matters to groups of that kind.

  [[nodiscard]] bool by_deepspeed() const {
    return !groups.empty() && groups.front().kind == CheckpointKind::DeepSpeed;
  }
};

// TRL's OffloadActivations (trl/models/activation_offloading.py) around each training step: what autograd saves is
// copied to pinned memory and comes back in backward, on a stream of its own or on the one that computes.
enum class ActivationOffloading : std::uint8_t { None, Streams, SingleStream };

// The last two are of models whose kinds of attention differ. t5's: math where a bias is learned, and between the
// stacks, where it is zeros, a fused kernel. mllama's: math among the text's grouped heads, fused under masks.
enum class Attention : std::uint8_t { Eager, Math, Flash, MemoryEfficient, CuDnn, MathOrEfficient, MathOrCuDnn };
[[nodiscard]] constexpr bool takes_two_kernels(Attention attention) {
  return attention == Attention::MathOrEfficient || attention == Attention::MathOrCuDnn;
}

// How a mixture's experts are computed: transformers' experts_implementation.
enum class ExpertsImplementation : std::uint8_t { GroupedMm, Loop, BatchedMm };

// How many tokens go to each expert.
struct Routing {
  // Balanced: the same number. Worst: as few experts as there can be take all tokens. Capacity: the fullest take
  // `factor` times the mean, and the next what is left. Counts: as `counts` says.
  enum class Kind : std::uint8_t { Balanced, Worst, Capacity, Counts };
  Kind kind = Kind::Balanced;
  double factor = 1;
  std::vector<std::vector<std::int64_t>> counts;  // By mixture, or one for all, then by expert.
  friend bool operator==(const Routing&, const Routing&) = default;
};
// "balanced", "worst", "capacity:1.5", "counts:3,1,2/2,2,2".
[[nodiscard]] std::string name(const Routing& routing);
struct Choices {
  std::int64_t tokens = 0;
  std::int64_t each = 0;  // Experts that a token takes, all of them different.
  std::int64_t experts = 0;
};
// Of the mixture with this number, counted from 0. The sum is tokens * each, and no expert takes a token twice.
[[nodiscard]] std::vector<std::int64_t> tokens_of_experts(const Routing& routing, std::size_t mixture,
                                                          const Choices& choices);

// The causal loss. HuggingFace: transformers', logits upcast to fp32. Native: the same without the upcast. Chunked:
// torchtune's CEWithChunkedOutputLoss: head and upcast piece by piece along the sequence. Liger: its fused linear
// cross-entropy, and nothing else of it. Trl: SFTTrainer's, of the head piece by piece. Dpo: DPOTrainer's, of pairs,
// whose reference is another model, or the model without its adapters; DpoPrecomputed: the reference's part comes with
// the batch. DpoLogits: the same from whole logits in fp32, as LLaMA-Factory's trainer has them, and Orpo-, Simpo- and
// KtoLogits its others; DpoRows: row by row of them, as axolotl's, and Ipo-, Orpo-, Simpo- and KtoRows its others,
// BareSimpoRows without a supervised part. Kto: KTOTrainer's, of the head piece by piece. Reward: RewardTrainer's, of
// pairs. CenteredReward: with a term that draws rewards to 0. RewardValues: LLaMA-Factory's, of a value head beside the
// language model's. Summed: torchtitan's, of labels that the batch has shifted: a sum over logits in fp32, divided by
// the tokens of all ranks. Cut: cut_cross_entropy's, as axolotl's plugin puts it into a model. Weighted: that of
// LLaMA-Factory v1's SFTTrainer, of each token with a weight, beside the model's own.
enum class Loss : std::uint8_t {
  HuggingFace,
  Native,
  Chunked,
  Liger,
  Trl,
  Dpo,
  DpoPrecomputed,
  DpoLogits,
  DpoRows,
  Reward,
  CenteredReward,
  Summed,
  OrpoLogits,
  SimpoLogits,
  KtoLogits,
  RewardValues,
  IpoRows,
  OrpoRows,
  SimpoRows,
  BareSimpoRows,
  KtoRows,
  Kto,
  Cut,
  Weighted
};
// Computed in the model's own forward, and no logits are made.
[[nodiscard]] constexpr bool without_logits(Loss loss) { return loss == Loss::Liger || loss == Loss::Cut; }
// Computed in the model's own forward: one of its outputs.
[[nodiscard]] constexpr bool is_of_model(Loss loss) { return loss == Loss::HuggingFace || without_logits(loss); }
[[nodiscard]] constexpr bool of_rewards(Loss loss) { return loss == Loss::Reward || loss == Loss::CenteredReward; }
// Of rows that are desirable or not, beside which there are rows for the KL.
[[nodiscard]] constexpr bool of_tagged_rows(Loss loss) {
  return loss == Loss::KtoLogits || loss == Loss::KtoRows || loss == Loss::Kto;
}
// TRL's experimental trainers, whose collator gives prompts beside whole rows.
[[nodiscard]] constexpr bool asks_for_prompts(Loss loss) {
  return loss == Loss::OrpoRows || loss == Loss::SimpoRows || loss == Loss::BareSimpoRows;
}
[[nodiscard]] constexpr std::int64_t prompt_length(std::int64_t seq) { return seq / 2; }
// Of a model that is its own reference.
[[nodiscard]] constexpr bool without_reference(Loss loss) {
  return loss == Loss::OrpoLogits || loss == Loss::SimpoLogits || asks_for_prompts(loss);
}
[[nodiscard]] constexpr bool row_by_row(Loss loss) {
  return loss == Loss::DpoRows || loss == Loss::IpoRows || loss == Loss::KtoRows || asks_for_prompts(loss);
}
[[nodiscard]] constexpr bool of_whole_logits(Loss loss) {
  return loss == Loss::DpoLogits || loss == Loss::OrpoLogits || loss == Loss::SimpoLogits || loss == Loss::KtoLogits ||
         row_by_row(loss);
}
[[nodiscard]] constexpr bool asks_reference(Loss loss) {
  return loss == Loss::Dpo || loss == Loss::Kto || (of_whole_logits(loss) && !without_reference(loss));
}
[[nodiscard]] constexpr bool of_pairs(Loss loss) {
  const bool whole = of_whole_logits(loss) && !of_tagged_rows(loss);
  return loss == Loss::Dpo || loss == Loss::DpoPrecomputed || whole || of_rewards(loss) || loss == Loss::RewardValues;
}
// TRL's fused head stands in the place of the model's own.
[[nodiscard]] constexpr bool scores_in_pieces(Loss loss) {
  return loss == Loss::Trl || loss == Loss::Dpo || loss == Loss::DpoPrecomputed || loss == Loss::Kto;
}
// By a trainer of its own, beside which no other loss is asked for.
[[nodiscard]] constexpr bool of_trainer(Loss loss) {
  return scores_in_pieces(loss) || of_pairs(loss) || of_tagged_rows(loss) || loss == Loss::Weighted;
}
// Trainer: transformers' own. Minimal: nothing outlives its line. Script: `outputs = model(**batch);
// outputs.loss.backward()`, whose variable holds loss and logits until the next forward has returned. Torchtitan: its
// train_step, whose variables hold each micro-batch's ids and loss until the step is over. Loss: `loss =
// model(**batch).loss`, whose variable holds that alone until the next forward has returned. FactoryV1: LLaMA-Factory
// v1's BaseTrainer.fit, which holds the loss as well, a list of the gradients and their norm until the next step makes
// others, and no batch.
enum class LoopKind : std::uint8_t { Trainer, Minimal, Script, Torchtitan, Loss, FactoryV1 };
// Which temporaries count: all, or only those that PyTorch's dispatcher sees, as a witness without a GPU does.
enum class Level : std::uint8_t { Kernel, Dispatch };

// Where a model is when a framework is given it: cut up as zero.Init made it (ZeRO-3), whole on the device, whole in
// the host's memory, from where it is moved, or nowhere, on the device "meta" (FSDP2); or in the host's memory of rank
// 0, which sends the others what they shard (FSDP2, as accelerate's cpu_ram_efficient_loading).
enum class ModelInit : std::uint8_t { ZeroInit, Device, Host, Meta, Rank0 };

// How parameters are handed to the optimizer: all in one group, or as transformers' Trainer does, biases and norms
// apart. Plain PyTorch only.
enum class ParamGroups : std::uint8_t { Single, Decay };

// Which of a model's own operators are Liger's.
struct LigerKernels {
  bool rotary = false;
  bool norms = false;
  bool swiglu = false;

  [[nodiscard]] bool any() const { return rotary || norms || swiglu; }
  friend bool operator==(const LigerKernels&, const LigerKernels&) = default;
};
// As --liger-kernels takes them: "rope,rms_norm,swiglu"; "none".
[[nodiscard]] std::string name(const LigerKernels& kernels);

// Which adapted projections are axolotl's own functions (kernels/lora.py) in place of peft's modules.
struct AdapterKernels {
  bool qkv = false;
  bool o = false;
  bool mlp = false;

  [[nodiscard]] bool any() const { return qkv || o || mlp; }
  friend bool operator==(const AdapterKernels&, const AdapterKernels&) = default;
};
// As --lora-kernels takes them: "qkv,o,mlp"; "none".
[[nodiscard]] std::string name(const AdapterKernels& kernels);

struct Training {
  Runtime runtime = Runtime::PyTorch;
  Zero zero;
  Fsdp fsdp;
  Ddp ddp;                        // Plain PyTorch over several ranks.
  DType dtype = DType::BFloat16;  // Working parameters.
  // torch.autocast around the forward, in this dtype; accelerate's besides makes the outputs fp32.
  std::optional<DType> autocast;
  bool outputs_to_fp32 = false;
  DType grad_accum_dtype = DType::BFloat16;
  DType communication_dtype = DType::BFloat16;
  DType master_dtype = DType::Float32;  // DeepSpeed's copies, FSDP2's shards.
  Optimizer optimizer;
  std::int64_t micro_batch = 1;  // Rows per rank and forward; of a loss of pairs, pairs.
  std::int64_t grad_accum = 1;   // Micro-batches per optimizer step.
  std::int64_t seq = 0;          // Tokens per row; all rows full, no mask.
  std::int64_t target_seq = 0;   // Tokens per target row of an encoder-decoder; others have none.
  // Several shapes through one allocator: micro-batches take these lengths in turn, and `seq` is the longest.
  std::vector<std::int64_t> seq_list;
  std::int64_t images = 0;  // Pictures per row of a model that reads text besides; their tokens are among `seq`.
  // Height and width of each, as the processor gives it to a tower that takes all sizes; empty where it has its own.
  std::vector<std::int64_t> image_size;
  double gradient_clipping = 0;
  bool check_grad_overflow = false;    // bf16, ZeRO-1/2.
  bool immediate_grad_update = false;  // BF16_Optimizer.
  Checkpointing checkpoint;
  ActivationOffloading activation_offloading = ActivationOffloading::None;
  ModelInit model_init = ModelInit::ZeroInit;  // Below ZeRO-3 as Device.
  Attention attention = Attention::Flash;
  // flash_attention_2, whose kernel sees to a sliding window itself: transformers makes no mask for it.
  bool windows_in_kernel = false;
  ExpertsImplementation experts = ExpertsImplementation::GroupedMm;
  Routing routing;  // ExpertsImplementation::Loop only: of no other do sizes depend on it.
  Loss loss = Loss::HuggingFace;
  std::int64_t loss_chunks = 0;  // Chunked only.
  LoopKind loop = LoopKind::Trainer;
  bool labels_are_ids = false;  // model(ids, labels=ids): one tensor of the batch is both.
  bool cast_model = false;      // model.to(dtype) after it was made: with it all buffers that float.
  // model.enable_input_require_grads() was called, as axolotl does for adapters; checkpoints do so by themselves.
  bool input_require_grads = false;
  // Instead a layer of which something is trained does so to what it is given, as LLaMA-Factory's checkpoints do.
  bool layers_require_grads = false;
  bool use_cache = false;  // The model keeps keys and values as for generation, and gives them back (DynamicCache).
  ParamGroups param_groups = ParamGroups::Single;
  bool zero_grad_to_none = true;  // Plain PyTorch, as is the next.
  bool grad_scaler = false;       // torch.amp.GradScaler around backward and step: fp16 autocast.
  Level level = Level::Kernel;
  std::vector<std::string> freeze;  // Globs over parameter names.
  Version torch = kWitnessTorch;
  Version transformers = kWitnessTransformers;
  Version deepspeed;
  Version liger = kWitnessLiger;  // Where the loss is its.
  LigerKernels liger_kernels;
  AdapterKernels lora_kernels;
  ModelCode model_code = ModelCode::Transformers;
  Version torchtitan = kWitnessTorchtitan;  // Where the model's code is its.

  // Rows that the model sees: of a pair the chosen and the rejected one.
  [[nodiscard]] std::int64_t rows() const { return of_pairs(loss) ? 2 * micro_batch : micro_batch; }
  // Tokens per row of micro-batch `k`, counted from the first step's first.
  [[nodiscard]] std::int64_t seq_of(std::int64_t k) const {
    return seq_list.empty() ? seq : seq_list[static_cast<std::size_t>(k) % seq_list.size()];
  }
  // Optimizer steps that are simulated: the first, and then as many as it takes to see every length once more. With a
  // static graph one more comes first: DistributedDataParallel notes in the second backward in which order gradients
  // come, and makes its buckets anew before the third forward (reducer.cpp, autograd_hook). With a hook one more: what
  // it sent is let go of before buckets are made anew, and in each later step not before the first of them is sent.
  [[nodiscard]] std::int64_t steps() const {
    const auto lengths = static_cast<std::int64_t>(seq_list.size());
    const bool ddp_runs = runtime == Runtime::PyTorch;
    const std::int64_t settled = 1 + (ddp_runs && ddp.static_graph ? 1 : 0) + (ddp_runs && ddp.comm_hook ? 1 : 0);
    return settled + std::max<std::int64_t>(1, div_ceil(lengths, grad_accum));
  }
  // DeepSpeed casts the whole model; since 0.19.2 not one that was made under zero.Init, to which peft has added its
  // adapters since (engine.py, _cast_module_mixed_precision).
  [[nodiscard]] bool casts_parameters() const {
    if (is_fsdp(runtime)) return fsdp.casts_parameters;
    return runtime == Runtime::DeepSpeed && !(under_zero_init() && deepspeed >= Version{0, 19, 2});
  }
  // In which a parameter is when it is used.
  [[nodiscard]] DType dtype_of(const Parameter& parameter) const {
    const DType own = parameter.dtype.value_or(dtype);
    const bool cast = (casts_parameters() && !is_ignored(parameter)) || (parameter.made_by_class && under_zero_init());
    return cast && is_floating(own) ? dtype : own;  // Packed weights are whole numbers, which nothing casts.
  }
  // Its gradient is asked for: it is not frozen in itself, nor by a glob of `freeze`.
  [[nodiscard]] bool trains(const Parameter& parameter) const {
    return parameter.trainable && (freeze.empty() || !freezes(parameter));
  }
  [[nodiscard]] bool freezes(const Parameter& parameter) const;
  // fully_shard is told to leave it as it is: every rank has all of it, and nobody casts, gathers or reduces it.
  [[nodiscard]] bool is_ignored(const Parameter& parameter) const {
    return !fsdp.ignored.empty() && fsdp.ignores(parameter);
  }
  // In which the model is made: FSDP2 gathers parameters in another dtype than it keeps them in.
  [[nodiscard]] DType made_dtype(const Parameter& parameter) const {
    return is_fsdp(runtime) ? parameter.dtype.value_or(loaded_dtype()) : dtype_of(parameter);
  }
  // Of what is made under FSDP, before accelerate casts the shards.
  [[nodiscard]] DType loaded_dtype() const { return fsdp.widens_shards ? dtype : master_dtype; }
  // What constructors of tensors make is wrapped: the model's own tables come in its dtype.
  [[nodiscard]] bool under_zero_init() const {
    return runtime == Runtime::DeepSpeed && zero.stage == 3 && model_init == ModelInit::ZeroInit;
  }
  // In which matrix products and attention run.
  [[nodiscard]] DType compute_dtype() const { return autocast.value_or(dtype); }
};

// Modules of transformers 4 keep their first RoPE frequencies as an attribute of the same tensor; since 5.0 they are a
// buffer of their own.
[[nodiscard]] bool buffer_exists(const ModelBuffer& buffer, const Version& transformers);
// torchtitan's loss is a sum over the tokens that all ranks count, since 0.2.2; before, a mean of one rank's. One rank
// leaves the number on the device.
[[nodiscard]] bool counts_tokens(const Training& training);
[[nodiscard]] bool counts_tokens_on_device(const Training& training, std::int64_t ranks);
// As this job has it.
[[nodiscard]] Shape shape_of(const ModelBuffer& buffer, const Training& training);
// Whether the batch brings a mask of ones, as transformers' collators make it. Without one, 4.53 to 4.57 take any batch
// for a packed one and build S x S masks for sdpa.
[[nodiscard]] bool batch_has_mask(const Version& transformers);

[[nodiscard]] std::string_view name(Runtime runtime);
[[nodiscard]] std::string_view name(OptimizerKind kind);
[[nodiscard]] bool quantizes_states(OptimizerKind kind);
// torchao's, whose step torch.compile makes.
[[nodiscard]] bool is_torchao(OptimizerKind kind);  // In 8 bits, from 4,096 elements on.
[[nodiscard]] std::string_view name(Implementation implementation);
// "adamw (fused)"; with the optimizer on the host DeepSpeed's own runs there, whatever was asked for:
// "adamw (DeepSpeedCPUAdam)".
[[nodiscard]] std::string optimizer_text(const Training& training);
[[nodiscard]] std::string loss_text(const Training& training);  // As it is asked for: "hf", "chunked:8".
[[nodiscard]] std::string_view name(OffloadDevice device);
[[nodiscard]] std::string_view name(Attention attention);
[[nodiscard]] std::string_view name(ExpertsImplementation experts);  // "grouped_mm", "eager", "batched_mm"
[[nodiscard]] std::string_view name(Loss loss);
// Those of trainers, by name; nothing for another word.
[[nodiscard]] std::optional<Loss> trainers_loss(std::string_view text);
[[nodiscard]] std::vector<std::string_view> names_of_trainers_losses();
[[nodiscard]] std::string_view name(CheckpointKind kind);              // "non_reentrant", "reentrant", "deepspeed"
[[nodiscard]] std::string_view name(ActivationOffloading offloading);  // "none", "streams", "single-stream"
[[nodiscard]] std::string_view name(ModelInit init);                   // "zero_init", "device", "host", "meta", "rank0"
// A variable of the loop keeps the loss, and by it autograd's nodes, until the next forward has returned.
[[nodiscard]] constexpr bool holds_loss(LoopKind loop) {
  return loop == LoopKind::Script || loop == LoopKind::Loss || loop == LoopKind::FactoryV1;
}
// Likewise the norm that clipping has found.
[[nodiscard]] constexpr bool holds_norm(LoopKind loop) {
  return loop == LoopKind::Trainer || loop == LoopKind::FactoryV1;
}
// "trainer", "minimal", "script", "torchtitan", "loss", "llama-factory-v1"
[[nodiscard]] std::string_view name(LoopKind loop);
[[nodiscard]] std::string_view name(ParamGroups groups);  // "single", "decay"

// '*' and '?' over whole parameter names; nothing else is special.
[[nodiscard]] bool glob_matches(std::string_view glob, std::string_view text);

// How the loss of fp16 training is scaled, and how the scale moves. No byte depends on it; only an executor asks.

struct LossScaling {
  // Static: fixed; a step whose gradients are not finite is left out nevertheless.
  enum class Kind : std::uint8_t {
    None,        // 1, and nobody looks.
    Static,      // fp16.loss_scale.
    Fused,       // DeepSpeed's FP16_Optimizer, without ZeRO: no hysteresis.
    Dynamic,     // DeepSpeed's DynamicLossScaler, under ZeRO.
    GradScaler,  // torch.amp.GradScaler.
  };
  Kind kind = Kind::None;
  double scale = 1;  // At first. All powers of two are exact.
  std::int64_t window = 1000;
  double least = 1;
  std::int64_t hysteresis = 2;  // So many overflows halve the scale. Dynamic only, as is the next.
  bool refills = false;         // fp16.consecutive_hysteresis.
};

}  // namespace dsplan
