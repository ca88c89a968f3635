// The keys of the DeepSpeed JSON, but those few that the training file and the options name as well (settings.cpp).
// What 0.19.8 removed or added stands in its deepspeed/runtime/config.py (_reject_removed_config_keys) and
// zero/config.py; 0.19.6 is without these rules and 0.19.7 was not read. The other first versions are those of the
// tags.
#include <iterator>

#include "core/settings.h"

namespace dsplan::detail {
namespace {

using Treatment = DeepSpeedKey::Treatment;

constexpr bool kStrict = true;

constexpr std::string_view kLogging = "it only logs";
constexpr std::string_view kChecks = "it changes messages and checks, not memory";
constexpr std::string_view kSaving = "it concerns checkpoint files only";
constexpr std::string_view kSchedule = "learning rates do not change sizes";
constexpr std::string_view kScaler = "the loss scaler's state is a scalar";
constexpr std::string_view kTiming = "it synchronises and times checkpoints, and holds nothing";
constexpr std::string_view kNotCompiled = "it has an effect only with compile.deepcompile";
constexpr std::string_view kAio = "it changes the speed of NVMe transfers, not their buffers";
// Of a fingerprint.
constexpr std::string_view kPath = "where the files lie moves no byte";

template <auto... Path>
constexpr DeepSpeedAccess kOptimizerSaid = kSaid<&DeepSpeedInput::optimizer, Path...>;
template <auto... Path>
constexpr DeepSpeedAccess kActivationSaid = kSaid<&DeepSpeedInput::activation_checkpointing, Path...>;
template <auto... Path>
constexpr DeepSpeedAccess kZeroSaid = kSaid<&DeepSpeedInput::zero, Path...>;
template <auto... Path>
constexpr DeepSpeedAccess kParamSaid = kZeroSaid<&ZeroInput::offload_param, Path...>;
template <auto... Path>
constexpr DeepSpeedAccess kStateSaid = kZeroSaid<&ZeroInput::offload_optimizer, Path...>;
template <auto... Path>
constexpr JobAccess kParamField = kZeroField<&Zero::offload_param, Path...>;
template <auto... Path>
constexpr JobAccess kStateField = kZeroField<&Zero::offload_optimizer, Path...>;
template <auto... Path>
constexpr JobAccess kCheckpointing = kTrained<&Training::checkpoint, &Checkpointing::deepspeed, Path...>;

// What few keys have.
struct Also {
  std::int64_t least = 0;
  bool on = false;
  Version since = {};
  Version removed = {};
  bool written = false;
  When written_when = When::Always;
};
constexpr Also kWritten{.written = true};

constexpr SettingRow row(const DeepSpeedKey& plain, const JobColumn& job, const Also& also) {
  SettingRow made{{}, plain, job};
  made.json.least = also.least;
  made.json.since = also.since;
  made.json.removed = also.removed;
  made.json.on = also.on;
  made.json.written = also.written;
  made.json.written_when = also.written_when;
  return made;
}
// `field`: empty where the key is another name of something, or is refused by a rule of its own.
constexpr SettingRow honoured(std::string_view path, When when, const DeepSpeedAccess& field, const JobColumn& job = {},
                              const Also& also = {}) {
  return row({.path = path, .treatment = Treatment::Honoured, .when = when, .field = field}, job, also);
}
constexpr SettingRow refused(std::string_view path, When when, std::string_view feature, const JobColumn& job = {},
                             const Also& also = {}) {
  return row({.path = path, .treatment = Treatment::NotModelled, .when = when, .note = feature}, job, also);
}
constexpr SettingRow inert(std::string_view path, std::string_view reason, const Also& also = {}) {
  return row({.path = path, .treatment = Treatment::Inert, .note = reason}, {}, also);
}
constexpr SettingRow block(std::string_view path, When when, bool strict = false) {
  return row({.path = path, .treatment = Treatment::Block, .when = when, .strict = strict}, {}, {});
}

// Top level; DeepSpeed reads these with dict.get and ignores what it does not know (deepspeed/runtime/config.py).
constexpr SettingRow kTop[] = {
    honoured("train_batch_size", When::Always, kSaid<&DeepSpeedInput::train_batch_size>, {}, {.least = 1}),
    honoured("communication_data_type", When::Always, kSaid<&DeepSpeedInput::communication_dtype>,
             {kTrained<&Training::communication_dtype>, Line::Dtypes, 2}),
    honoured("prescale_gradients", When::Always, kSaid<&DeepSpeedInput::prescale_gradients>),
    honoured("gradient_predivide_factor", When::Always, kSaid<&DeepSpeedInput::gradient_predivide_factor>),
    honoured("zero_allow_untested_optimizer", When::Zero, kSaid<&DeepSpeedInput::allow_untested_optimizer>),
    refused("managed_gradient_accumulation", When::Always, "unmanaged gradient accumulation", {}, {.on = true}),
    refused("graph_harvesting", When::Always, "graph harvesting", {}, {.removed = kRulesOfKeys}),
    refused("sparse_gradients", When::Always, "sparse gradients", {}, {.removed = kRulesOfKeys}),
    refused("sparse_attention", When::Always, "sparse attention", {}, {.removed = kRulesOfKeys}),
    refused("sequence_parallel_size", When::Always, "Ulysses sequence parallelism"),
    refused("tensor_parallel", When::Always, "AutoTP"),
    refused("expert_parallel", When::Always, "AutoEP"),
    refused("pipeline", When::Always, "pipeline parallelism"),
    refused("amp", When::Always, "Apex AMP", {}, {.removed = kRulesOfKeys}),
    refused("progressive_layer_drop", When::Always, "progressive layer drop", {}, {.removed = kRulesOfKeys}),
    refused("curriculum_learning", When::Always, "curriculum learning", {}, {.removed = kRulesOfKeys}),
    refused("data_efficiency", When::Always, "the data efficiency library"),
    refused("compression_training", When::Always, "compression", {}, {.removed = kRulesOfKeys}),
    refused("quantize_training", When::Always, "MoQ", {}, {.removed = kRulesOfKeys}),
    refused("weight_quantization", When::Always, "weight quantization"),
    refused("eigenvalue", When::Always, "eigenvalue estimation", {}, {.removed = kRulesOfKeys}),
    refused("hybrid_engine", When::Always, "the hybrid engine"),
    refused("elasticity", When::Always, "elastic training", {}, {.removed = kRulesOfKeys}),
    refused("zero_force_ds_cpu_optimizer", When::CpuAdam, "an offloaded optimizer other than DeepSpeed's own", {},
            {.on = true}),
    honoured("gradient_allreduce_op", When::Always, kSaid<&DeepSpeedInput::sum_gradients>),
    honoured("bfloat16", When::Always, {}),
    inert("seq_parallel_communication_data_type", "it needs sequence parallelism"),
    inert("use_data_before_expert_parallelism", "it orders ranks and does not change sizes"),
    inert("disable_allgather", "the engine does not read it"),
    inert("allgather_size", "the all-gather bucket has no effect any more"),
    inert("scheduler", kSchedule),
    inert("autotuning", "only DeepSpeed's launcher reads it"),
    inert("steps_per_print", kLogging),
    inert("wall_clock_breakdown", kLogging),
    inert("memory_breakdown", kLogging),
    inert("dump_state", kLogging),
    inert("log_level", kLogging),
    inert("flops_profiler", kLogging),
    inert("comms_logger", kLogging),
    inert("timers", kLogging),
    inert("tensorboard", kLogging),
    inert("wandb", kLogging),
    inert("csv_monitor", kLogging),
    inert("comet", kLogging),
    inert("checkpoint", kSaving),
    inert("nebula", kSaving, {.removed = kRulesOfKeys}),
    inert("datastates_ckpt", kSaving),
    inert("disable_python_gc", "reference counts decide when tensors die"),
    inert("dataloader_drop_last", "every step is modelled with full batches"),
    inert("vocabulary_size", "DeepSpeed only warns about its alignment"),
};

constexpr SettingRow kPrecision[] = {
    block("bf16", When::Always, kStrict),
    honoured("bf16.enabled", When::Always, kSaid<&DeepSpeedInput::bf16_enabled>),
    honoured("bf16.check_grad_overflow", When::Bf16, kSaid<&DeepSpeedInput::bf16_check_grad_overflow>,
             {kTrained<&Training::check_grad_overflow>, Line::Clipping, 1}, {.since = {0, 17, 1}, .written = true}),
    honoured("bf16.immediate_grad_update", When::Bf16, kSaid<&DeepSpeedInput::bf16_immediate_grad_update>,
             {kTrained<&Training::immediate_grad_update>, Line::Immediate, 0}, {.since = {0, 17, 1}, .written = true}),
    refused("bf16.bf16_master_weights_and_grads", When::Bf16, "bf16 master weights", {},
            {.since = {0, 18, 3}, .written = true}),
    refused("bf16.bf16_optimizer_states", When::Bf16, "bf16 optimizer states", {},
            {.since = {0, 18, 3}, .written = true}),
    block("fp16", When::Always, kStrict),
    honoured("fp16.enabled", When::Always, kSaid<&DeepSpeedInput::fp16_enabled>),
    inert("fp16.auto_cast", "a language model's inputs are integers"),
    inert("fp16.loss_scale", kScaler),
    inert("fp16.initial_scale_power", kScaler),
    inert("fp16.loss_scale_window", kScaler),
    inert("fp16.hysteresis", kScaler),
    inert("fp16.consecutive_hysteresis", kScaler),
    inert("fp16.min_loss_scale", kScaler),
    refused("fp16.fp16_master_weights_and_grads", When::Fp16, "fp16 master weights", {},
            {.since = {0, 17, 1}, .written = true}),
    block("torch_autocast", When::Always),
    refused("torch_autocast.enabled", When::Always, "torch.autocast under DeepSpeed"),
    inert("torch_autocast.dtype", "it has an effect only with torch_autocast.enabled"),
    inert("torch_autocast.lower_precision_safe_modules", "it has an effect only with torch_autocast.enabled"),
    block("data_types", When::Always),
    honoured("data_types.grad_accum_dtype", When::Always, kSaid<&DeepSpeedInput::grad_accum_dtype>,
             {kTrained<&Training::grad_accum_dtype>, Line::Dtypes, 1}),
    honoured("data_types.param_dtype", When::Always, kSaid<&DeepSpeedInput::param_dtype>),
    refused("data_types.keep_in_fp32_modules", When::Always, "a list of buffers kept in fp32"),
    refused("data_types.buffer_dtype", When::Always, "a dtype for module buffers"),
};

constexpr SettingRow kJsonOptimizer[] = {
    block("optimizer", When::Always),
    honoured("optimizer.type", When::Always, kOptimizerSaid<&OptimizerInput::type>),
    refused("optimizer.legacy_fusion", When::Always, "the legacy fused fp16 wrapper"),
    block("optimizer.params", When::Always),
    honoured("optimizer.params.torch_adam", When::Always, kOptimizerSaid<&OptimizerInput::torch_adam>),
    honoured("optimizer.params.adam_w_mode", When::Always, kOptimizerSaid<&OptimizerInput::adam_w_mode>),
    honoured("optimizer.params.lr", When::Always, kOptimizerSaid<&OptimizerInput::learning_rate>),
    honoured("optimizer.params.betas", When::Always, kOptimizerSaid<&OptimizerInput::betas>),
    honoured("optimizer.params.eps", When::Always, kOptimizerSaid<&OptimizerInput::epsilon>),
    honoured("optimizer.params.max_grad_norm", When::Always, {}),
    refused("optimizer.params.fp32_optimizer_states", When::CpuAdam, "16-bit moments in CPU Adam", {}, {.on = true}),
    refused("optimizer.params.amsgrad", When::Always, "AMSGrad"),
    refused("optimizer.params.fused", When::Always, "a choice of torch's optimizer kernels in the DeepSpeed JSON"),
    refused("optimizer.params.foreach", When::Always, "a choice of torch's optimizer kernels in the DeepSpeed JSON"),
    refused("optimizer.params.capturable", When::Always, "capturable optimizers"),
    inert("optimizer.params.bias_correction", kSchedule),
    inert("optimizer.params.set_grad_none", "DeepSpeed's wrapper clears the gradients itself"),
    inert("optimizer.params.muon_lr", kSchedule),
    inert("optimizer.params.adam_lr", kSchedule),
    refused("optimizer.params.ns_method", When::Muon, "a choice of Newton-Schulz method"),
};

// Those that are written are written in this order.
constexpr SettingRow kZero[] = {
    block("zero_optimization", When::Always, kStrict),
    honoured("zero_optimization.contiguous_gradients", When::Zero, kZeroSaid<&ZeroInput::contiguous_gradients>,
             {kZeroField<&Zero::contiguous_gradients>, Line::Zero, 1}, kWritten),
    honoured("zero_optimization.reduce_scatter", When::Zero, kZeroSaid<&ZeroInput::reduce_scatter>,
             {kZeroField<&Zero::reduce_scatter>, Line::Zero, 2}, kWritten),
    honoured("zero_optimization.reduce_bucket_size", When::Zero, kZeroSaid<&ZeroInput::reduce_bucket_size>,
             {kZeroField<&Zero::reduce_bucket_size>, Line::Zero, 3}, kWritten),
    honoured("zero_optimization.use_multi_rank_bucket_allreduce", When::Stage12,
             kZeroSaid<&ZeroInput::use_multi_rank_bucket_allreduce>,
             {kZeroField<&Zero::use_multi_rank_bucket_allreduce>, Line::Zero, 4}, kWritten),
    inert("zero_optimization.allgather_partitions", "DeepSpeed's optimizers do not read it"),
    inert("zero_optimization.allgather_bucket_size",
          "the weights are gathered in place, one call per parameter group, since DeepSpeed 0.12.4"),
    honoured("zero_optimization.overlap_comm", When::Zero, kZeroSaid<&ZeroInput::overlap_comm>,
             {kZeroField<&Zero::overlap_comm>, Line::Zero, 5}, kWritten),
    honoured("zero_optimization.round_robin_gradients", When::Stage12, kZeroSaid<&ZeroInput::round_robin_gradients>,
             {kZeroField<&Zero::round_robin_gradients>, Line::Zero, 6}, kWritten),
    honoured("zero_optimization.compute_grad_norm", When::Zero, kSaid<&DeepSpeedInput::compute_grad_norm>, {},
             {.on = true, .since = kRulesOfKeys, .written = true, .written_when = When::Stage12}),
    refused("zero_optimization.parameter_alignment", When::Stage12, "parameters aligned in the flat buffers", {},
            {.since = kRulesOfKeys, .written = true}),
    honoured("zero_optimization.sub_group_size", When::Stage3, kZeroSaid<&ZeroInput::sub_group_size>,
             {kZeroField<&Zero::sub_group_size>, Line::Zero, 7}, kWritten),
    honoured("zero_optimization.stage3_prefetch_bucket_size", When::Stage3, kZeroSaid<&ZeroInput::prefetch_bucket_size>,
             {kZeroField<&Zero::prefetch_bucket_size>, Line::Zero, 8}, kWritten),
    honoured("zero_optimization.stage3_param_persistence_threshold", When::Stage3,
             kZeroSaid<&ZeroInput::param_persistence_threshold>,
             {kZeroField<&Zero::param_persistence_threshold>, Line::Zero, 9}, kWritten),
    honoured("zero_optimization.stage3_model_persistence_threshold", When::Stage3,
             kZeroSaid<&ZeroInput::model_persistence_threshold>,
             {kZeroField<&Zero::model_persistence_threshold>, Line::Zero, 10}, kWritten),
    honoured("zero_optimization.stage3_max_live_parameters", When::Stage3, kZeroSaid<&ZeroInput::max_live_parameters>,
             {kZeroField<&Zero::max_live_parameters>, Line::Zero, 11}, kWritten),
    honoured("zero_optimization.stage3_max_reuse_distance", When::Stage3, kZeroSaid<&ZeroInput::max_reuse_distance>,
             {kZeroField<&Zero::max_reuse_distance>, Line::Zero, 12}, kWritten),
    honoured("zero_optimization.stage3_gather_16bit_weights_on_model_save", When::Stage3,
             kZeroSaid<&ZeroInput::gather_16bit_weights_on_model_save>,
             {kZeroField<&Zero::gather_16bit_weights_on_model_save>, Line::Zero, 13}, kWritten),
    honoured("zero_optimization.stage3_use_all_reduce_for_fetch_params", When::Stage3,
             kZeroSaid<&ZeroInput::all_reduce_for_fetch>, {kZeroField<&Zero::all_reduce_for_fetch>, Line::Fetch, 0},
             {.since = {0, 14, 3}, .written = true}),
    honoured("zero_optimization.stage3_allgather_sequential", When::Stage3, kZeroSaid<&ZeroInput::allgather_sequential>,
             {kZeroField<&Zero::allgather_sequential>, Line::Fetch, 1}, {.since = {0, 18, 5}, .written = true}),
    honoured("zero_optimization.stage3_module_granularity_threshold", When::Stage3,
             kZeroSaid<&ZeroInput::module_granularity_threshold>,
             {kZeroField<&Zero::module_granularity_threshold>, Line::Fetch, 5}, {.since = {0, 16, 0}, .written = true}),
    refused("zero_optimization.memory_efficient_linear", When::Stage3, "stage 3 without its own linear function",
            {kZeroField<&Zero::memory_efficient_linear>, Line::Fetch, 2},
            {.on = true, .since = {0, 9, 0}, .written = true}),
    honoured("zero_optimization.zero_hpz_partition_size", When::Stage3, kZeroSaid<&ZeroInput::hpz_partition_size>,
             {kZeroField<&Zero::hpz_partition_size>, Line::Fetch, 3}, {.since = {0, 10, 0}, .written = true}),
    honoured("zero_optimization.zero_quantized_weights", When::Stage3, kZeroSaid<&ZeroInput::quantized_weights>,
             {kZeroField<&Zero::quantized_weights>, Line::Fetch, 4}, {.since = {0, 10, 0}, .written = true}),
    refused("zero_optimization.zero_quantized_nontrainable_weights", When::Stage3, "quantized frozen weights", {},
            {.since = {0, 10, 2}, .written = true}),
    refused("zero_optimization.zero_quantized_gradients", When::Stage3, "qgZ", {},
            {.since = {0, 10, 0}, .written = true}),
    refused("zero_optimization.zeropp_loco_param", When::Stage3, "LoCo", {}, {.removed = kRulesOfKeys}),
    refused("zero_optimization.mics_shard_size", When::Stage3, "MiCS", {}, {.removed = kRulesOfKeys}),
    refused("zero_optimization.mics_hierarchical_params_gather", When::Stage3, "MiCS", {}, {.removed = kRulesOfKeys}),
    inert("zero_optimization.ignore_unused_parameters", kChecks),
    honoured("zero_optimization.legacy_stage1", When::Always, {}),
    inert("zero_optimization.elastic_checkpoint", kSaving),
    inert("zero_optimization.load_from_fp32_weights", kSaving),
    inert("zero_optimization.pipeline_loading_checkpoint", kSaving),
    inert("zero_optimization.override_module_apply", "it concerns weight initialisation code"),
    inert("zero_optimization.log_trace_cache_warnings", kLogging),
    inert("zero_optimization.enable_sanity_checks", kChecks),
    refused("zero_optimization.save_muon_momentum_buffer_in_memory", When::Nvme, "Muon's momentum with NVMe"),
    block("zero_optimization.leaf_module", When::Stage3),
    honoured("zero_optimization.leaf_module.classes", When::Stage3, kZeroSaid<&ZeroInput::leaf_classes>,
             {kZeroField<&Zero::leaf_classes>, Line::Fetch, 6}),
    honoured("zero_optimization.leaf_module.names", When::Stage3, kZeroSaid<&ZeroInput::leaf_names>,
             {kZeroField<&Zero::leaf_names>, Line::Fetch, 7}),
    honoured("zero_optimization.leaf_module.name_suffixes", When::Stage3, kZeroSaid<&ZeroInput::leaf_suffixes>,
             {kZeroField<&Zero::leaf_suffixes>, Line::Fetch, 8}),
    refused("zero_optimization.zenflow", When::Zero, "ZenFlow"),
    honoured("zero_optimization.cpu_offload", When::Zero, {}),
    honoured("zero_optimization.cpu_offload_param", When::Stage3, {}),
    inert("zero_optimization.cpu_offload_use_pin_memory",
          "deprecated and ignored; say pin_memory in offload_optimizer or offload_param"),
    honoured("zero_optimization.stage3_gather_fp16_weights_on_model_save", When::Stage3, {}),
};

constexpr SettingRow kOffload[] = {
    block("zero_optimization.offload_param", When::Stage3, kStrict),
    honoured("zero_optimization.offload_param.device", When::Always, kParamSaid<&OffloadInput::device>,
             {kParamField<&Offload::device>, Line::Zero, 14}),
    honoured("zero_optimization.offload_param.nvme_path", When::Nvme, kParamSaid<&OffloadInput::nvme_path>,
             {kParamField<&Offload::nvme_path>, Line::None, 0, kPath}),
    honoured("zero_optimization.offload_param.pin_memory", When::ParamOffload, kParamSaid<&OffloadInput::pin_memory>,
             {kParamField<&Offload::pin_memory>, Line::OffloadParam, 0}, kWritten),
    honoured("zero_optimization.offload_param.buffer_count", When::Nvme, kParamSaid<&OffloadInput::buffer_count>,
             {kParamField<&Offload::buffer_count>, Line::OffloadParam, 1}, kWritten),
    honoured("zero_optimization.offload_param.buffer_size", When::Nvme, kParamSaid<&OffloadInput::buffer_size>,
             {kParamField<&Offload::buffer_size>, Line::OffloadParam, 2}, kWritten),
    honoured("zero_optimization.offload_param.max_in_cpu", When::Nvme, kParamSaid<&OffloadInput::max_in_cpu>,
             {kParamField<&Offload::max_in_cpu>, Line::OffloadParam, 3}, kWritten),
    block("zero_optimization.offload_optimizer", When::Zero, kStrict),
    honoured("zero_optimization.offload_optimizer.device", When::Always, kStateSaid<&OffloadInput::device>,
             {kStateField<&Offload::device>, Line::Zero, 15}),
    honoured("zero_optimization.offload_optimizer.nvme_path", When::Nvme, kStateSaid<&OffloadInput::nvme_path>,
             {kStateField<&Offload::nvme_path>, Line::None, 0, kPath}),
    honoured("zero_optimization.offload_optimizer.pin_memory", When::CpuAdam, kStateSaid<&OffloadInput::pin_memory>,
             {kStateField<&Offload::pin_memory>, Line::OffloadOptimizer, 0}, kWritten),
    honoured("zero_optimization.offload_optimizer.buffer_count", When::Nvme, kStateSaid<&OffloadInput::buffer_count>,
             {kStateField<&Offload::buffer_count>, Line::OffloadOptimizer, 1}, kWritten),
    honoured("zero_optimization.offload_optimizer.pipeline_read", When::Nvme, kStateSaid<&OffloadInput::pipeline_read>,
             {kStateField<&Offload::pipeline_read>, Line::OffloadOptimizer, 4}, kWritten),
    honoured("zero_optimization.offload_optimizer.pipeline_write", When::Nvme,
             kStateSaid<&OffloadInput::pipeline_write>,
             {kStateField<&Offload::pipeline_write>, Line::OffloadOptimizer, 5}, kWritten),
    refused("zero_optimization.offload_optimizer.fast_init", When::Nvme, "a start from partitions in files", {},
            kWritten),
    honoured("zero_optimization.offload_optimizer.ratio", When::CpuAdam,
             kSaid<&DeepSpeedInput::offload_optimizer_ratio>, {kStateField<&Offload::ratio>, Line::OffloadRatio, 0},
             {.since = {0, 12, 3}, .written = true, .written_when = When::Stage3}),
    refused("zero_optimization.offload_optimizer.super_offload", When::CpuAdam, "SuperOffload", {},
            {.since = {0, 18, 0}, .written = true, .written_when = When::Stage3}),
    inert("zero_optimization.offload_optimizer.cpuadam_cores_perc", "it needs SuperOffload"),
    block("aio", When::Always),
    honoured("aio.block_size", When::Nvme, kSaid<&DeepSpeedInput::aio_block_size>,
             {kZeroField<&Zero::aio_block_size>, Line::Aio, 0}, {.least = 1}),
    honoured("aio.intra_op_parallelism", When::Nvme, kSaid<&DeepSpeedInput::aio_intra_op_parallelism>,
             {kZeroField<&Zero::aio_intra_op_parallelism>, Line::Aio, 1}, {.least = 1}),
    inert("aio.queue_depth", kAio),
    inert("aio.single_submit", kAio),
    inert("aio.overlap_events", kAio),
    refused("aio.use_gds", When::Nvme, "GPUDirect Storage"),
};

constexpr SettingRow kRest[] = {
    block("activation_checkpointing", When::Always),
    honoured("activation_checkpointing.partition_activations", When::DeepSpeedCheckpointing,
             kActivationSaid<&ActivationCheckpointingInput::partition_activations>,
             {kCheckpointing<&DeepSpeedCheckpointing::partition>, Line::Checkpoint, 4}),
    honoured("activation_checkpointing.cpu_checkpointing", When::DeepSpeedCheckpointing,
             kActivationSaid<&ActivationCheckpointingInput::cpu_checkpointing>,
             {kCheckpointing<&DeepSpeedCheckpointing::cpu>, Line::Checkpoint, 5}),
    honoured("activation_checkpointing.contiguous_memory_optimization", When::DeepSpeedCheckpointing,
             kActivationSaid<&ActivationCheckpointingInput::contiguous_memory_optimization>,
             {kCheckpointing<&DeepSpeedCheckpointing::contiguous>, Line::Checkpoint, 6}),
    honoured("activation_checkpointing.number_checkpoints", When::DeepSpeedCheckpointing,
             kActivationSaid<&ActivationCheckpointingInput::number_checkpoints>,
             {kCheckpointing<&DeepSpeedCheckpointing::number_checkpoints>, Line::Checkpoint, 7}, {.least = 1}),
    inert("activation_checkpointing.synchronize_checkpoint_boundary", kTiming),
    inert("activation_checkpointing.profile", kTiming),
    block("compile", When::Always, kStrict),
    refused("compile.deepcompile", When::Always, "DeepCompile"),
    inert("compile.free_activation", kNotCompiled),
    inert("compile.free_activation_threshold", kNotCompiled),
    inert("compile.offload_activation", kNotCompiled),
    inert("compile.offload_activation_pin_memory", kNotCompiled),
    inert("compile.offload_opt_states", kNotCompiled),
    inert("compile.offload_parameters", kNotCompiled),
    inert("compile.double_buffer", kNotCompiled),
    inert("compile.symmetric_memory", kNotCompiled),
    inert("compile.debug_log", kNotCompiled),
    inert("compile.sync_before_reduce", kNotCompiled),
    inert("compile.sync_after_reduce", kNotCompiled),
    inert("compile.sync_before_allgather", kNotCompiled),
    inert("compile.sync_after_allgather", kNotCompiled),
    inert("compile.keep_int_input_tensors", kNotCompiled),
    inert("compile.keep_all_input_tensors", kNotCompiled),
    inert("compile.passes", kNotCompiled),
};

}  // namespace

const std::vector<SettingRow>& deepspeed_rows() {
  static const std::vector<SettingRow> kAll = [] {
    std::vector<SettingRow> all;
    const auto append = [&all](const auto& part) { all.insert(all.end(), std::begin(part), std::end(part)); };
    append(kTop);
    append(kPrecision);
    append(kJsonOptimizer);
    append(kZero);
    append(kOffload);
    append(kRest);
    return all;
  }();
  return kAll;
}

}  // namespace dsplan::detail
