// torchtitan's TOML (torchtitan 0.2.2, config/job_config.py, JobConfig, and 0.1.0, config_manager.py; of its
// train_configs also what they had before and between these). 0.3.0 reads none: its configurations are Python.
#include "core/dialects/dialects.h"
#include "core/dialects/reasons.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kTitanMesh = "fsdp.shard, fsdp.replicate, runtime";
constexpr std::string_view kNeedsConverter = "it needs model.converters";
constexpr std::string_view kNeedsPipeline = "it needs pipeline_parallel_degree";
constexpr std::string_view kTitanTp = "tensor parallelism under torchtitan";
constexpr std::string_view kFlux = "FLUX";
constexpr std::string_view kOtherModule = "keys and code of a module of one's own";

constexpr DialectKey any_number(DialectKey key) {
  key.least = -1;
  return key;
}

constexpr DialectKey kTitanRows[] = {
    block("job"),
    block("profiling"),
    block("metrics"),
    block("model"),
    block("optimizer"),
    block("lr_scheduler"),
    block("training"),
    block("training.dataloader"),
    block("parallelism"),
    block("checkpoint"),
    block("activation_checkpoint"),
    block("compile"),
    block("quantize"),
    block("quantize.linear"),
    block("quantize.linear.float8"),
    block("quantize.linear.mx"),
    block("quantize.grouped_mm"),
    block("quantize.grouped_mm.float8"),
    block("quantize.grouped_mm.mx"),
    block("float8"),
    block("mx"),
    block("comm"),
    block("memory_estimation"),
    block("fault_tolerance"),
    block("experimental"),
    block("validation"),
    block("validation.dataloader"),
    block("debug"),
    honoured("model.name", "MODEL", kOther<&ForeignInput::model>),
    honoured("model.flavor", "MODEL", kOther<&ForeignInput::flavor>),
    choice(honoured("optimizer.name", "optimizer.name", kSays<&Request::optimizer>), "Adam|AdamW"),
    choice(honoured("optimizer.implementation", "optimizer.implementation", kSays<&Request::implementation>),
           "for-loop|foreach|fused"),
    honoured("optimizer.weight_decay", "optimizer.weight_decay", kSays<&Request::weight_decay>),
    honoured("training.local_batch_size", "micro_batch", kSays<&Request::micro_batch>),
    any_number(honoured("training.global_batch_size", "grad_accum", kOther<&ForeignInput::all_rows>)),
    honoured("training.batch_size", "micro_batch", kSays<&Request::micro_batch>),
    honoured("training.seq_len", "seq", kSays<&Request::seq>),
    honoured("training.max_norm", "max_grad_norm", kSays<&Request::max_grad_norm>),
    choice(honoured("training.dtype", "dtype", kSays<&Request::torch_dtype>), "bfloat16|float32"),
    choice(honoured("training.mixed_precision_param", "fsdp.param_dtype, or autocast",
                    kSays<&Request::fsdp, &FsdpInput::param_dtype>),
           "bfloat16|float32"),
    refused("training.mixed_precision_reduce", "gradients that are reduced in 16 bits", "float32"),
    any_number(honoured("parallelism.data_parallel_shard_degree", kTitanMesh, kOther<&ForeignInput::shards>)),
    honoured("parallelism.data_parallel_replicate_degree", kTitanMesh, kOther<&ForeignInput::replicas>),
    any_number(honoured("training.data_parallel_degree", kTitanMesh, kOther<&ForeignInput::shards>)),
    any_number(honoured("training.data_parallel_shard_degree", kTitanMesh, kOther<&ForeignInput::shards>)),
    honoured("training.data_parallel_replicate_degree", kTitanMesh, kOther<&ForeignInput::replicas>),
    choice(honoured("parallelism.fsdp_reshard_after_forward", "fsdp.reshard_after_forward",
                    kSays<&Request::fsdp, &FsdpInput::reshard_after_forward>),
           "default|always|never"),
    choice(honoured("activation_checkpoint.mode", "checkpoint", kSays<&Request::checkpoint>),
           "none|selective|full|memory_budget"),
    honoured("activation_checkpoint.selective_ac_option", "checkpoint", kOther<&ForeignInput::every_nth>),
    honoured("activation_checkpoint.early_stop", "early_stop", kSays<&Request::early_stop>),
    honoured("activation_checkpoint.preserve_rng_state", "preserve_rng_state", kSays<&Request::preserve_rng_state>),
    refused("job.custom_config_module", kOtherModule),
    refused("experimental.custom_import", kOtherModule),
    refused("experimental.custom_args_module", kOtherModule),
    refused("model.converters", "converted models (float8, mx)"),
    refused("optimizer.early_step_in_backward", "optimizer steps inside backward"),
    honoured("training.enable_cpu_offload", "fsdp.cpu_offload", kOther<&ForeignInput::offload>),
    refused("training.compile", kCompile),
    refused("training.deterministic", kDeterministic),
    refused("debug.deterministic", kDeterministic),
    refused("compile.enable", kCompile),
    refused("parallelism.enable_compiled_autograd", kCompile),
    refused("model.norm_type", "another norm than the model's own", "rmsnorm|fused_rmsnorm"),
    refused("float8.enable_float8_linear", "converted models (float8, mx)"),
    refused("training.tensor_parallel_degree", kTitanTp, "1"),
    refused("training.classifer_free_guidance_prob", kFlux),
    refused("training.img_size", kFlux),
    refused("encoder", kFlux),
    refused("eval", kFlux),
    refused("hf_transformers", "a model of transformers under torchtitan"),
    refused("experimental.pipeline_parallel_degree", "pipeline parallelism", "1"),
    refused("experimental.context_parallel_degree", "context parallelism", "1"),
    refused("experimental.enable_async_tensor_parallel", kTitanTp),
    refused("experimental.enable_compiled_autograd", kCompile),
    refused("parallelism.tensor_parallel_degree", kTitanTp, "1"),
    refused("parallelism.pipeline_parallel_degree", "pipeline parallelism", "1"),
    refused("parallelism.context_parallel_degree", "context parallelism", "1"),
    refused("parallelism.expert_parallel_degree", "expert parallelism", "1"),
    refused("parallelism.expert_tensor_parallel_degree", kTitanTp, "1"),
    refused("parallelism.enable_async_tensor_parallel", kTitanTp),
    refused("comm.mode", "communication that is not carried out", "default"),
    refused("memory_estimation.enable", "torchtitan's own estimation, which trains nothing"),
    refused("memory_estimation.enabled", "torchtitan's own estimation, which trains nothing"),
    refused("fault_tolerance.enable", "TorchFT"),
    refused("checkpoint.create_seed_checkpoint", "a run that only writes a checkpoint"),
};

constexpr Names kTitanInert[] = {
    {kOnlyLogs,
     "job.description job.print_config job.print_args job.use_for_integration_test profiling.enable_profiling "
     "profiling.save_traces_folder profiling.profile_freq profiling.profiler_active profiling.profiler_warmup "
     "profiling.enable_memory_snapshot profiling.save_memory_snapshot_folder metrics.log_freq "
     "metrics.enable_tensorboard metrics.disable_color_printing metrics.save_tb_folder metrics.save_for_all_ranks "
     "metrics.enable_wandb metrics.enable_color_printing model.print_after_conversion activation_checkpoint.debug "
     "activation_checkpoint.determinism_check"},
    {kFiles,
     "job.config_file job.dump_folder job.save_config_file model.hf_assets_path model.tokenizer_path "
     "checkpoint.enable checkpoint.enable_checkpoint checkpoint.enable_ft_dataloader_checkpoints checkpoint.folder "
     "checkpoint.interval checkpoint.initial_load_path checkpoint.initial_load_model_only "
     "checkpoint.initial_load_model_weights_only checkpoint.initial_load_in_hf "
     "checkpoint.initial_load_in_hf_quantized checkpoint.last_save_model_only "
     "checkpoint.last_save_model_weights_only checkpoint.last_save_in_hf checkpoint.export_dtype "
     "checkpoint.async_mode checkpoint.keep_latest_k checkpoint.load_step checkpoint.exclude_from_loading "
     "checkpoint.enable_first_step_checkpoint checkpoint.load_only checkpoint.initial_load_dequantize "
     "checkpoint.interval_type checkpoint.model_weights_only"},
    {kSchedule,
     "optimizer.lr optimizer.beta1 optimizer.beta2 optimizer.eps lr_scheduler.warmup_steps lr_scheduler.total_steps "
     "lr_scheduler.decay_ratio lr_scheduler.decay_type lr_scheduler.min_lr_factor lr_scheduler.lr_min "
     "training.steps training.warmup_steps"},
    {kData,
     "training.dataset training.dataset_path training.dataloader.num_workers training.dataloader.persistent_workers "
     "training.dataloader.pin_memory training.dataloader.prefetch_factor"},
    {"Python's collector frees no tensor that training still holds", "training.gc_freq training.gc_debug"},
    {kRandom, "training.seed debug.seed"},
    {"it needs debug.deterministic", "debug.deterministic_warn_only"},
    {"it needs a mixture of experts", "debug.moe_force_load_balance parallelism.expert_parallel_comm_backend"},
    {"it needs tensor_parallel_degree", "parallelism.disable_loss_parallel"},
    {"it needs context_parallel_degree",
     "parallelism.context_parallel_load_balancer parallelism.context_parallel_rotate_method"},
    {kNeedsPipeline,
     "parallelism.module_fqns_per_model_part parallelism.pipeline_parallel_split_points "
     "parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers "
     "parallelism.pipeline_parallel_layers_per_stage parallelism.pipeline_parallel_schedule "
     "parallelism.pipeline_parallel_schedule_csv parallelism.pipeline_parallel_microbatch_size "
     "parallelism.pipeline_parallel_expert_parallel_overlap"},
    {"it needs mode = \"memory_budget\"",
     "activation_checkpoint.memory_budget activation_checkpoint.visualize_memory_budget_pareto"},
    {"it needs selective_ac_option = \"op\"", "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns"},
    {"it needs compile.enable", "compile.components compile.backend"},
    {kNeedsConverter,
     "quantize.linear.float8.enable_fsdp_float8_all_gather "
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp quantize.linear.float8.recipe_name "
     "quantize.linear.float8.filter_fqns quantize.linear.float8.emulate "
     "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice quantize.linear.mx.recipe_name "
     "quantize.linear.mx.filter_fqns quantize.grouped_mm.float8.fqns quantize.grouped_mm.mx.recipe_name "
     "quantize.grouped_mm.mx.fqns float8.enable_fsdp_float8_all_gather "
     "float8.precompute_float8_dynamic_scale_for_fsdp float8.force_recompute_fp8_weight_in_bwd float8.recipe_name "
     "float8.filter_fqns float8.emulate mx.use_fp8_dim1_cast_triton_kernel mx.recipe_name mx.filter_fqns "
     "quantize.dense quantize.moe quantize.linear.fp8 float8.moe_fqns"},
    {kCommunication,
     "comm.init_timeout_seconds comm.train_timeout_seconds comm.trace_buf_size comm.save_traces_folder "
     "comm.save_traces_file_prefix"},
    {"it needs memory_estimation.enable", "memory_estimation.disable_fake_mode"},
    {"it needs fault_tolerance.enable",
     "fault_tolerance.process_group fault_tolerance.process_group_timeout_ms fault_tolerance.replica_id "
     "fault_tolerance.group_size fault_tolerance.min_replica_size fault_tolerance.semi_sync_method "
     "fault_tolerance.sync_steps fault_tolerance.should_quantize fault_tolerance.fragment_sync_delay "
     "fault_tolerance.fragment_update_alpha"},
    {kEvaluation,
     "validation.enable validation.dataset validation.dataset_path validation.local_batch_size validation.seq_len "
     "validation.freq validation.steps validation.dataloader.num_workers validation.dataloader.persistent_workers "
     "validation.dataloader.pin_memory validation.dataloader.prefetch_factor"},
};

}  // namespace

std::vector<DialectKey> torchtitan_keys() {
  std::vector<DialectKey> keys;
  append(keys, kTitanRows);
  append(keys, inert_keys(kTitanInert));
  return keys;
}

}  // namespace dsplan::detail
