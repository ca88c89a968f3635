// What options and training files say, in the order of --help, and the fields of a job that nobody names.
#include "core/settings.h"

#include <algorithm>
#include <iterator>

namespace dsplan {
namespace {

constexpr std::string_view kVerdict = "the verdict and the reports read it; the schedule does not";
constexpr std::string_view kShown = "it says what is shown";
constexpr std::string_view kFollows = "it follows from the other ranks";
constexpr std::string_view kNotThere = "DeepSpeed has no such key here";

template <auto... Path>
constexpr RequestAccess kAsked = kField<RequestAccess, Path...>;
template <auto... Path>
constexpr JobAccess kRanks = kJobField<&Job::parallelism, Path...>;
template <auto... Path>
constexpr JobAccess kOptimizer = kTrained<&Training::optimizer, Path...>;
template <auto... Path>
constexpr JobAccess kFsdp = kTrained<&Training::fsdp, Path...>;
template <auto... Path>
constexpr JobAccess kDdp = kTrained<&Training::ddp, Path...>;
template <auto... Path>
constexpr JobAccess kCheckpoint = kTrained<&Training::checkpoint, Path...>;

// An option, and the key of the training file.
constexpr RequestColumn asked(const RequestAccess& field, const char* option, const char* type, const char* help,
                              std::string_view key, std::string_view choices = {}, std::int64_t least = 1) {
  return {field, option, type, help, key, choices, least, false};
}
// The same for what says what to print, or names a file.
constexpr RequestColumn behind(RequestColumn column) {
  column.stays_behind = true;
  return column;
}
// A key of the training file, without an option of one value.
constexpr RequestColumn keyed(const RequestAccess& field, std::string_view key, std::string_view choices = {}) {
  return {field, nullptr, "", "", key, choices, 1, false};
}
// What fully_shard is given.
template <auto Field>
constexpr RequestColumn sharded(std::string_view key) {
  return keyed(kAsked<&Request::fsdp, Field>, key);
}
constexpr DeepSpeedKey in_json(std::string_view path, const DeepSpeedAccess& field, std::int64_t least = 0) {
  return {.path = path, .treatment = DeepSpeedKey::Treatment::Honoured, .field = field, .least = least};
}

constexpr SettingRow kRun[] = {
    {behind(
        asked(kAsked<&Request::deepspeed>, "--deepspeed", "FILE", "DeepSpeed JSON, or a bundled name", "deepspeed"))},
    {behind(asked(kAsked<&Request::training>, "--training", "FILE", "Training file or TrainingArguments", {}))},
    {asked(kAsked<&Request::hardware>, "--hardware", "NAME|FILE", "One device: `dsplan show hardware`", "hardware"),
     {},
     {kJobField<&Job::hardware>, Line::Workspaces, 0}},
    {asked(kAsked<&Request::cluster>, "--cluster", "NAME|FILE", "Nodes and devices: `dsplan show clusters`", "cluster"),
     {},
     {kJobField<&Job::cluster>, Line::None, 0, kVerdict}},
    {asked(kAsked<&Request::calibration>, "--calibration", "FILE", "Measured figures of the device", "calibration"),
     {},
     {kJobField<&Job::calibration>, Line::Workspaces, 1}},
    {asked(kAsked<&Request::gpus>, "--gpus", "N", "All ranks", "gpus"),
     {},
     {kRanks<&Parallelism::world>, Line::Ranks, 0}},
    {asked(kAsked<&Request::gpus_per_node>, "--gpus-per-node", "N", "Ranks per node", "gpus_per_node"),
     {},
     {kRanks<&Parallelism::gpus_per_node>, Line::Ranks, 1}},
    {asked(kAsked<&Request::tp>, "--tp", "N", "Tensor-parallel ranks", "tp"),
     {},
     {kRanks<&Parallelism::tp>, Line::Ranks, 2}},
    {asked(kAsked<&Request::sp>, "--sp", "N", "Sequence-parallel ranks", "sp"),
     {},
     {kRanks<&Parallelism::sp>, Line::Ranks, 3}},
    {asked(kAsked<&Request::ep>, "--ep", "N", "Expert-parallel ranks", "ep"),
     {},
     {kRanks<&Parallelism::ep>, Line::Ranks, 4}},
    {asked(kAsked<&Request::zero_stage>, "--zero-stage", "0|1|2|3", "ZeRO stage", "zero_stage", {}, 0),
     in_json("zero_optimization.stage", kSaid<&DeepSpeedInput::zero, &ZeroInput::stage>),
     {kZeroField<&Zero::stage>, Line::Zero, 0}},
    {asked(kAsked<&Request::runtime>, "--runtime", "NAME", "pytorch, ddp, deepspeed, fsdp1, fsdp2 or hsdp", "runtime",
           "pytorch|ddp|deepspeed|fsdp1|fsdp2|hsdp"),
     {},
     {kTrained<&Training::runtime>, Line::Runtime, 0}},
    {asked(kAsked<&Request::micro_batch>, "--micro-batch", "N", "Rows per rank and forward", "micro_batch"),
     in_json("train_micro_batch_size_per_gpu", kSaid<&DeepSpeedInput::micro_batch>, 1),
     {kTrained<&Training::micro_batch>, Line::Batch, 0}},
    {asked(kAsked<&Request::grad_accum>, "--grad-accum", "N", "Micro-batches per optimizer step", "grad_accum"),
     in_json("gradient_accumulation_steps", kSaid<&DeepSpeedInput::grad_accum>, 1),
     {kTrained<&Training::grad_accum>, Line::Batch, 1}},
    {asked(kAsked<&Request::seq>, "--seq", "N", "Tokens per row", "seq"),
     {},
     {kTrained<&Training::seq>, Line::Batch, 2}},
    {asked(kAsked<&Request::seq_list>, "--seq-list", "LIST", "Lengths that micro-batches take in turn", "seq_list"),
     {},
     {kTrained<&Training::seq_list>, Line::Lengths, 0}},
    {asked(kAsked<&Request::target_seq>, "--target-seq", "N", "Tokens per target row of an encoder-decoder",
           "target_seq"),
     {},
     {kTrained<&Training::target_seq>, Line::TargetSeq, 0}},
    {asked(kAsked<&Request::images>, "--images", "N", "Pictures per row, whose tokens are among --seq", "images", {},
           0),
     {},
     {kTrained<&Training::images>, Line::Images, 0}},
    {asked(kAsked<&Request::image_size>, "--image-size", "SIZE", "Of each picture: N or HEIGHTxWIDTH, in pixels",
           "image_size"),
     {},
     {kTrained<&Training::image_size>, Line::ImageSize, 0}},
    {asked(kAsked<&Request::dtype>, "--dtype", "bf16|fp16|fp32", "Type of the working parameters", "dtype",
           "bf16|fp16|fp32"),
     {},
     {kTrained<&Training::dtype>, Line::Dtypes, 0}},
    {asked(kAsked<&Request::autocast>, "--autocast", "bf16|fp16", "torch.autocast around the forward, or none",
           "autocast", "none|bf16|fp16"),
     {},
     {kTrained<&Training::autocast>, Line::Autocast, 0}},
    {asked(kAsked<&Request::lora>, "--lora", "SPEC", "r=8,targets=q_proj+v_proj,dtype=fp32", "lora")},
    {asked(kAsked<&Request::quantization>, "--quantization", "KIND", "Packed weights (QLoRA): none, nf4, fp4, int8",
           "quantization", "none|nf4|fp4|int8")},
    {asked(kAsked<&Request::double_quant>, "--double-quant", "true|false", "Quantize the scales of 4-bit blocks, too",
           "double_quant")},
    {asked(kAsked<&Request::quant_compute_dtype>, "--quant-compute-dtype", "TYPE", "In which 4-bit products run",
           "quant_compute_dtype")},
    {asked(kAsked<&Request::quant_storage>, "--quant-storage", "TYPE", "Of which elements packed weights are",
           "quant_storage")},
    {asked(kAsked<&Request::kbit_prepare>, "--kbit-prepare", "true|false",
           "prepare_model_for_kbit_training runs (it does)", "kbit_prepare")},
    {asked(kAsked<&Request::checkpoint>, "--checkpoint", "MODE|FILE", "none, full, every:K, keep:OP+OP, ..., FILE",
           "checkpoint"),
     {},
     {kCheckpoint<&Checkpointing::groups>, Line::Checkpoint, 0}},
    {asked(kAsked<&Request::checkpoint_impl>, "--checkpoint-impl", "KIND", "reentrant or non_reentrant",
           "checkpoint_impl", "reentrant|non_reentrant|deepspeed"),
     {},
     {kCheckpoint<&Checkpointing::kind>, Line::Checkpoint, 1}},
    {asked(kAsked<&Request::attention>, "--attention", "KIND", "eager, math, flash, mem-efficient, cudnn, sdpa",
           "attention"),
     {},
     {kTrained<&Training::attention>, Line::Attention, 0}},
    {{}, {}, {kTrained<&Training::windows_in_kernel>, Line::WindowsInKernel, 0}},
    {asked(kAsked<&Request::loss>, "--loss", "KIND", "hf, native, chunked:N, liger, trl, dpo, reward", "loss"),
     {},
     {kTrained<&Training::loss>, Line::Loss, 0}},
    {asked(kAsked<&Request::optimizer>, "--optimizer", "NAME[:IMPL]", "adamw:fused, sgd:foreach, lion, ...",
           "optimizer.name"),
     {},
     {kOptimizer<&Optimizer::kind>, Line::Optimizer, 0}},
    {asked(kAsked<&Request::level>, "--level", "kernel|dispatch", "dispatch: without temporaries inside kernels",
           "level", "kernel|dispatch"),
     {},
     {kTrained<&Training::level>, Line::Level, 0}},
    {asked(kAsked<&Request::experts>, "--experts", "KIND", "How experts run: grouped_mm, eager or batched_mm",
           "experts", "grouped_mm|eager|batched_mm"),
     {},
     {kTrained<&Training::experts>, Line::Experts, 0}},
    {asked(kAsked<&Request::routing>, "--routing", "RULE|FILE", "Tokens of experts: balanced, worst, capacity:F, FILE",
           "routing"),
     {},
     {kTrained<&Training::routing>, Line::Routing, 0}},
    {asked(kAsked<&Request::activation_offloading>, "--activation-offloading", "KIND",
           "What autograd saves goes to the host, as TRL does it: none, streams, single-stream",
           "activation_offloading", "none|streams|single-stream"),
     {},
     {kTrained<&Training::activation_offloading>, Line::ActivationOffloading, 0}},
    {asked(kAsked<&Request::loop>, "--loop", "KIND",
           "What the training loop's own variables hold: trainer, minimal, loss, script, torchtitan, llama-factory-v1",
           "loop", "trainer|minimal|loss|script|torchtitan"),
     {},
     {kTrained<&Training::loop>, Line::Loop, 0}},
    {asked(kAsked<&Request::alloc_conf>, "--alloc-conf", "CONF", "The keys of PYTORCH_CUDA_ALLOC_CONF",
           "allocator_conf"),
     {},
     {kJobField<&Job::allocator_conf>, Line::None, 0, "these are the words; Job::allocator has their meaning"}},
    {asked(kAsked<&Request::stream_frees>, "--stream-frees", "WHEN", "Waiting frees: at-sync or immediate",
           "stream_frees", "at-sync|immediate"),
     {},
     {kJobField<&Job::stream_frees>, Line::Frees, 0}},
    {asked(kAsked<&Request::placement>, "--placement", "KIND", "caching or planned", "placement", "caching|planned"),
     {},
     {kJobField<&Job::placement>, Line::Placement, 0}},
    {asked(kAsked<&Request::deepspeed_version>, "--deepspeed-version", "V", "Version of DeepSpeed",
           "deepspeed_version"),
     {},
     {kTrained<&Training::deepspeed>, Line::Versions, 2}},
    {asked(kAsked<&Request::torch_version>, "--torch-version", "V", "Version of PyTorch", "torch_version"),
     {},
     {kTrained<&Training::torch>, Line::Versions, 0}},
    {asked(kAsked<&Request::transformers_version>, "--transformers-version", "V", "Version of transformers",
           "transformers_version"),
     {},
     {kTrained<&Training::transformers>, Line::Versions, 1}},
    {asked(kAsked<&Request::liger_version>, "--liger-version", "V", "Version of Liger Kernel", "liger_version"),
     {},
     {kTrained<&Training::liger>, Line::Liger, 0}},
    {asked(kAsked<&Request::liger_kernels>, "--liger-kernels", "LIST",
           "Liger's in place of the model's: all, or of rope, rms_norm, swiglu", "liger_kernels"),
     {},
     {kTrained<&Training::liger_kernels>, Line::LigerKernels, 0}},
    {asked(kAsked<&Request::lora_kernels>, "--lora-kernels", "LIST",
           "axolotl's in place of peft's modules: all, or of qkv, o, mlp", "lora_kernels"),
     {},
     {kTrained<&Training::lora_kernels>, Line::AdapterKernels, 0}},
    {asked(kAsked<&Request::model_code>, "--model-code", "CODE",
           "Whose Python the model is: transformers or torchtitan", "model_code", "transformers|torchtitan"),
     {},
     {kTrained<&Training::model_code>, Line::ModelCode, 0}},
    {asked(kAsked<&Request::torchtitan_version>, "--torchtitan-version", "V", "Version of torchtitan",
           "torchtitan_version"),
     {},
     {kTrained<&Training::torchtitan>, Line::Torchtitan, 0}},
    {asked(kAsked<&Request::env>, "--env", "FILE", "pip freeze (not modelled yet)", "env")},
    {asked(kAsked<&Request::host_memory>, "--host-memory", "SIZE", "Host memory of one node, such as 512GiB",
           "host_memory"),
     {},
     {kJobField<&Job::host_memory>, Line::None, 0, kVerdict}},
    {asked(kAsked<&Request::nvme_memory>, "--nvme-memory", "SIZE", "What files of one node may take, such as 8TB",
           "nvme_memory"),
     {},
     {kJobField<&Job::nvme_memory>, Line::None, 0, kVerdict}},
    {asked(kAsked<&Request::capacity>, "--capacity", "SIZE", "Memory of one device, such as 80GiB", "capacity"),
     {},
     {kJobField<&Job::capacity>, Line::None, 0, kVerdict}},
    {asked(kAsked<&Request::reserve>, "--reserve", "SIZE", "Kept free on each device, such as 1GiB", "reserve"),
     {},
     {kJobField<&Job::reserve>, Line::None, 0, kVerdict}},
    {behind(asked(kAsked<&Request::rank>, "--rank", "R|all|worst", "Which rank to report", "rank")),
     {},
     {kJobField<&Job::rank>, Line::None, 0, kShown}},
    {behind(asked(kAsked<&Request::phase>, "--phase", "NAME", "Peaks of init, steady, forward, record, ...", "phase")),
     {},
     {kJobField<&Job::phase>, Line::None, 0, kShown}},
    {behind(asked(kAsked<&Request::format>, "--format", "table|json|csv|md", "How to print; csv: rank,path,value",
                  "format", "table|json|csv|md"))},
    {behind(asked(kAsked<&Request::out>, "--out", "FILE", "Print to a file, which appears when complete", "out"))},
};

// Options that may be repeated or have no value, keys of the training file alone, and what launch lines,
// TrainingArguments and opened files say.
constexpr SettingRow kKeys[] = {
    {keyed(kAsked<&Request::freeze>, "freeze"), {}, {kTrained<&Training::freeze>, Line::Freeze, 0}},
    {keyed(kAsked<&Request::set>, "set")},
    {keyed(kAsked<&Request::strict>, "strict")},
    {keyed(kAsked<&Request::implementation>, "optimizer.implementation", "fused|foreach|for-loop"),
     {},
     {kOptimizer<&Optimizer::implementation>, Line::Optimizer, 1}},
    {keyed(kAsked<&Request::momentum>, "optimizer.momentum"),
     in_json("optimizer.params.momentum", kSaid<&DeepSpeedInput::optimizer, &OptimizerInput::momentum>),
     {kOptimizer<&Optimizer::momentum>, Line::Optimizer, 2}},
    {keyed(kAsked<&Request::weight_decay>, "optimizer.weight_decay"),
     in_json("optimizer.params.weight_decay", kSaid<&DeepSpeedInput::optimizer, &OptimizerInput::weight_decay>),
     {kOptimizer<&Optimizer::weight_decay>, Line::WeightDecay, 0}},
    {keyed(kAsked<&Request::param_groups>, "param_groups", "single|decay"),
     {},
     {kTrained<&Training::param_groups>, Line::ParamGroups, 0}},
    {keyed(kAsked<&Request::model_init>, "model_init", "zero_init|device|host|meta|rank0"),
     {},
     {kTrained<&Training::model_init>, Line::ModelInit, 0}},
    {keyed(kAsked<&Request::zero_grad_set_to_none>, "zero_grad_set_to_none"),
     {},
     {kTrained<&Training::zero_grad_to_none>, Line::ZeroGrad, 0}},
    {keyed(kAsked<&Request::max_grad_norm>, "max_grad_norm"),
     in_json("gradient_clipping", kSaid<&DeepSpeedInput::gradient_clipping>),
     {kTrained<&Training::gradient_clipping>, Line::Clipping, 0}},
    {keyed(kAsked<&Request::preserve_rng_state>, "preserve_rng_state"),
     {},
     {kCheckpoint<&Checkpointing::preserve_rng_state>, Line::Checkpoint, 2}},
    {keyed(kAsked<&Request::early_stop>, "early_stop"),
     {},
     {kCheckpoint<&Checkpointing::stops_early>, Line::Checkpoint, 8}},
    {keyed(kAsked<&Request::use_cache>, "use_cache"), {}, {kTrained<&Training::use_cache>, Line::UseCache, 0}},
    {keyed(kAsked<&Request::labels_are_ids>, "labels_are_ids"),
     {},
     {kTrained<&Training::labels_are_ids>, Line::LabelsAreIds, 0}},
    {keyed(kAsked<&Request::cast_model>, "cast_model"), {}, {kTrained<&Training::cast_model>, Line::CastModel, 0}},
    {keyed(kAsked<&Request::input_require_grads>, "input_require_grads"),
     {},
     {kTrained<&Training::input_require_grads>, Line::InputRequireGrads, 0}},
    {keyed(kAsked<&Request::layers_require_grads>, "layers_require_grads"),
     {},
     {kTrained<&Training::layers_require_grads>, Line::LayersRequireGrads, 0}},
    {keyed(kAsked<&Request::mixed_precision>, "mixed_precision", "bf16|fp16"),
     {},
     {kTrained<&Training::outputs_to_fp32>, Line::Autocast, 1}},
    {sharded<&FsdpInput::wrap>("fsdp.wrap"), {}, {kFsdp<&Fsdp::wrap>, Line::Fsdp, 0}},
    {sharded<&FsdpInput::reshard_after_forward>("fsdp.reshard_after_forward"),
     {},
     {kFsdp<&Fsdp::reshard_after_forward>, Line::Fsdp, 1}},
    {sharded<&FsdpInput::reshard_root>("fsdp.reshard_root"), {}, {kFsdp<&Fsdp::reshard_root>, Line::Fsdp, 2}},
    {sharded<&FsdpInput::reshard_tail>("fsdp.reshard_tail"), {}, {kFsdp<&Fsdp::reshard_tail>, Line::FsdpTail, 0}},
    {sharded<&FsdpInput::reshard_last>("fsdp.reshard_last"), {}, {kFsdp<&Fsdp::reshard_last>, Line::FsdpLast, 0}},
    {sharded<&FsdpInput::param_dtype>("fsdp.param_dtype"), {}, {kFsdp<&Fsdp::casts_parameters>, Line::Fsdp, 5}},
    {sharded<&FsdpInput::reduce_dtype>("fsdp.reduce_dtype")},
    {sharded<&FsdpInput::output_dtype>("fsdp.output_dtype"), {}, {kFsdp<&Fsdp::casts_outputs>, Line::FsdpOutputs, 0}},
    {sharded<&FsdpInput::gradient_sync>("fsdp.gradient_sync"), {}, {kFsdp<&Fsdp::sync_every>, Line::Fsdp, 3}},
    {sharded<&FsdpInput::shard>("fsdp.shard")},
    {sharded<&FsdpInput::replicate>("fsdp.replicate"), {}, {kFsdp<&Fsdp::replicate>, Line::Fsdp, 4}},
    {sharded<&FsdpInput::cpu_offload>("fsdp.cpu_offload"), {}, {kFsdp<&Fsdp::cpu_offload>, Line::FsdpOffload, 0}},
    {sharded<&FsdpInput::forward_prefetch>("fsdp.forward_prefetch"),
     {},
     {kFsdp<&Fsdp::forward_prefetch>, Line::FsdpPrefetch, 0}},
    {sharded<&FsdpInput::backward_prefetch>("fsdp.backward_prefetch"),
     {},
     {kFsdp<&Fsdp::backward_prefetch>, Line::FsdpPrefetch, 1}},
    {sharded<&FsdpInput::ignored>("fsdp.ignored"), {}, {kFsdp<&Fsdp::ignored>, Line::FsdpIgnored, 0}},
    {sharded<&FsdpInput::state_dict>("fsdp.state_dict"), {}, {kFsdp<&Fsdp::state_dict>, Line::FsdpStateDict, 0}},
    {sharded<&FsdpInput::use_orig_params>("fsdp.use_orig_params"),
     {},
     {kFsdp<&Fsdp::use_orig_params>, Line::FsdpFlat, 0}},
    {sharded<&FsdpInput::limit_all_gathers>("fsdp.limit_all_gathers"),
     {},
     {kFsdp<&Fsdp::limit_all_gathers>, Line::FsdpFlat, 1}},
    {sharded<&FsdpInput::sync_module_states>("fsdp.sync_module_states"),
     {},
     {kFsdp<&Fsdp::sync_module_states>, Line::FsdpFlat, 2}},
    {sharded<&FsdpInput::buffer_dtype>("fsdp.buffer_dtype"), {}, {kFsdp<&Fsdp::casts_buffers>, Line::FsdpFlat, 3}},
    {keyed(kAsked<&Request::ddp, &DdpInput::find_unused_parameters>, "ddp.find_unused_parameters"),
     {},
     {kDdp<&Ddp::find_unused_parameters>, Line::Ddp, 0}},
    {keyed(kAsked<&Request::ddp, &DdpInput::broadcast_buffers>, "ddp.broadcast_buffers"),
     {},
     {kDdp<&Ddp::broadcast_buffers>, Line::Ddp, 1}},
    {keyed(kAsked<&Request::ddp, &DdpInput::bucket_cap_mb>, "ddp.bucket_cap_mb"),
     {},
     {kDdp<&Ddp::bucket_cap_mb>, Line::Ddp, 2}},
    {keyed(kAsked<&Request::ddp, &DdpInput::gradient_as_bucket_view>, "ddp.gradient_as_bucket_view"),
     {},
     {kDdp<&Ddp::gradient_as_bucket_view>, Line::DdpReduction, 0}},
    {keyed(kAsked<&Request::ddp, &DdpInput::static_graph>, "ddp.static_graph"),
     {},
     {kDdp<&Ddp::static_graph>, Line::DdpReduction, 1}},
    {keyed(kAsked<&Request::ddp, &DdpInput::comm_hook>, "ddp.comm_hook"),
     {},
     {kDdp<&Ddp::comm_hook>, Line::DdpReduction, 2}},
    {keyed(kAsked<&Request::ddp, &DdpInput::zero_redundancy>, "ddp.zero_redundancy"),
     {},
     {kDdp<&Ddp::zero_redundancy>, Line::DdpOptimizer, 0}},
    {keyed(kAsked<&Request::nodes>, {}), {}, {kRanks<&Parallelism::nodes>, Line::None, 0, kFollows}},
    {keyed(kAsked<&Request::torch_dtype>, {})},
    {keyed(kAsked<&Request::checkpoint_groups>, {})},
    {keyed(kAsked<&Request::token_counts>, {})},
    {keyed(kAsked<&Request::measured>, {})},
};

constexpr SettingRow derived(const JobColumn& job) { return {{}, {}, job}; }
constexpr SettingRow no_byte(const JobAccess& field, std::string_view why) {
  return {{}, {}, {field, Line::None, 0, why}};
}

// Fields of a job that no surface names.
constexpr SettingRow kDerived[] = {
    derived({kTrained<&Training::master_dtype>, Line::Dtypes, 3}),
    derived({kFsdp<&Fsdp::widens_shards>, Line::FsdpFlat, 4}),
    derived({kOptimizer<&Optimizer::embeddings_32bit>, Line::Embeddings32bit, 0}),
    derived({kOptimizer<&Optimizer::paged>, Line::PagedStates, 0}),
    derived({kTrained<&Training::loss_chunks>, Line::LossChunks, 0}),
    derived({kTrained<&Training::grad_scaler>, Line::GradScaler, 0}),
    derived({kCheckpoint<&Checkpointing::modules>, Line::Checkpoint, 3}),
    no_byte(kCheckpoint<&Checkpointing::text>, "these are the words; groups and modules have their meaning"),
    // A fingerprint holds the fields of both blocks, whichever of them DeepSpeed reads.
    derived({kZeroField<&Zero::offload_param, &Offload::pipeline_read>, Line::OffloadParam, 4}),
    derived({kZeroField<&Zero::offload_param, &Offload::pipeline_write>, Line::OffloadParam, 5}),
    no_byte(kZeroField<&Zero::offload_param, &Offload::ratio>, kNotThere),
    derived({kZeroField<&Zero::offload_optimizer, &Offload::buffer_size>, Line::OffloadOptimizer, 2}),
    derived({kZeroField<&Zero::offload_optimizer, &Offload::max_in_cpu>, Line::OffloadOptimizer, 3}),
    no_byte(kRanks<&Parallelism::dp>, kFollows),
    derived({kJobField<&Job::allocator>, Line::Allocator, 0}),
    no_byte(kJobField<&Job::context>, kVerdict),
    no_byte(kJobField<&Job::communicators>, kVerdict),
    no_byte(kJobField<&Job::explain_fragmentation>, kShown),
    no_byte(kJobField<&Job::explain_advice>, kShown),
    no_byte(kJobField<&Job::inputs>, kShown),
    no_byte(kJobField<&Job::notices>, kShown),
};

// DEFAULT_LEAF_MODULE_CLASSES (deepspeed/runtime/zero/leaf_module_config.py).
constexpr const char* kLeafClasses[] = {"transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
                                        "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
                                        "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock"};

}  // namespace

std::span<const SettingRow> settings() {
  static const std::vector<SettingRow> kAll = [] {
    std::vector<SettingRow> all(std::begin(kRun), std::end(kRun));
    const auto append = [&all](const auto& part) { all.insert(all.end(), std::begin(part), std::end(part)); };
    append(kKeys);
    append(detail::deepspeed_rows());
    append(kDerived);
    return all;
  }();
  return kAll;
}

const SettingRow* find_deepspeed_key(std::string_view path) {
  const std::span<const SettingRow> all = settings();
  const auto at = std::find_if(all.begin(), all.end(), [path](const SettingRow& row) { return row.json.path == path; });
  return at == all.end() || path.empty() ? nullptr : &*at;
}

Zero usual_zero(const Version& deepspeed, int stage) {
  Zero zero;
  zero.stage = stage;
  zero.overlap_comm = stage == 3;
  zero.leaf_classes.assign(std::begin(kLeafClasses), std::end(kLeafClasses));
  // One all-reduce per bucket since 0.12.4; before that one reduce per owner.
  zero.use_multi_rank_bucket_allreduce = deepspeed >= Version{0, 12, 4};
  zero.offload_param.pin_memory = zero.offload_optimizer.pin_memory = deepspeed >= Version{0, 19, 5};
  zero.offload_param.buffer_count = 5;  // offload_optimizer has 4 (runtime/zero/offload_config.py).
  return zero;
}

}  // namespace dsplan
