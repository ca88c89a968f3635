// accelerate 1.15.0: its YAML (commands/config/config_args.py, ClusterConfig; the blocks as commands/config/cluster.py
// writes them) and the options of `accelerate launch` (commands/launch.py), which say the same.
#include "core/dialects/dialects.h"
#include "core/dialects/reasons.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kRendezvous = "it says how ranks find each other";
constexpr std::string_view kCounted = "num_processes says how many ranks there are";
constexpr std::string_view kMegatron = "Megatron-LM under accelerate";
constexpr std::string_view kAccelerateFp8 = "fp8 mixed precision";

template <auto Field>
constexpr ForeignAccess kLaunched = kOther<&ForeignInput::launched, Field>;

constexpr DialectKey kAccelerateRows[] = {
    honoured("num_processes", "gpus", kSays<&Request::gpus>),
    honoured("num_machines", "nodes", kSays<&Request::nodes>),
    choice(honoured("mixed_precision", "mixed_precision", kSays<&Request::mixed_precision>, Reading::MixedPrecision),
           "no|fp16|bf16|fp8"),
    choice(honoured("distributed_type", "runtime", kOther<&ForeignInput::distribution>, Reading::Distribution),
           "NO|MULTI_GPU|DEEPSPEED|FSDP|MEGATRON_LM|MULTI_CPU|MULTI_NPU|MULTI_XPU|MULTI_MLU|MULTI_SDAA|MULTI_MUSA|"
           "MULTI_HPU|MULTI_NEURON|XLA"),
    block("deepspeed_config"),
    honoured("deepspeed_config.deepspeed_config_file", "deepspeed", kSays<&Request::deepspeed>),
    honoured("deepspeed_config.zero_stage", "zero_stage", kSays<&Request::zero_stage>, Reading::Plugin),
    honoured("deepspeed_config.gradient_accumulation_steps", "grad_accum", RequestAccess(), Reading::Plugin),
    honoured("deepspeed_config.gradient_clipping", "max_grad_norm", RequestAccess(), Reading::Plugin),
    choice(honoured("deepspeed_config.offload_optimizer_device", "offload_optimizer.device", RequestAccess(),
                    Reading::Plugin),
           "none|cpu|nvme"),
    choice(honoured("deepspeed_config.offload_param_device", "offload_param.device", RequestAccess(), Reading::Plugin),
           "none|cpu|nvme"),
    honoured("deepspeed_config.offload_optimizer_nvme_path", "offload_optimizer.nvme_path", RequestAccess(),
             Reading::Plugin),
    honoured("deepspeed_config.offload_param_nvme_path", "offload_param.nvme_path", RequestAccess(), Reading::Plugin),
    honoured("deepspeed_config.zero3_save_16bit_model", "stage3_gather_16bit_weights_on_model_save", RequestAccess(),
             Reading::Plugin),
    honoured("deepspeed_config.zero3_init_flag", "model_init", RequestAccess(), Reading::Plugin),
    refused("deepspeed_config.deepspeed_moe_layer_cls_names", "leaf modules named to accelerate"),
    honoured("use_deepspeed", "runtime", kOther<&ForeignInput::distribution>, Reading::Distribution),
    honoured("use_fsdp", "runtime", kOther<&ForeignInput::distribution>, Reading::Distribution),
    honoured("multi_gpu", "runtime", kOther<&ForeignInput::distribution>, Reading::Distribution),
    block("fsdp_config"),
    honoured("fsdp_config.fsdp_version", "runtime", kLaunched<&ShardingInput::version>, Reading::Scalar),
    honoured("fsdp_config.fsdp_reshard_after_forward", "fsdp.reshard_after_forward",
             kLaunched<&ShardingInput::reshard_after_forward>, Reading::Scalar),
    honoured("fsdp_config.fsdp_sharding_strategy", "fsdp.reshard_after_forward", kLaunched<&ShardingInput::strategy>,
             Reading::Scalar),
    honoured("fsdp_config.fsdp_backward_prefetch", "fsdp.backward_prefetch",
             kLaunched<&ShardingInput::backward_prefetch>, Reading::Scalar),
    honoured("fsdp_config.fsdp_forward_prefetch", "fsdp.forward_prefetch", kLaunched<&ShardingInput::forward_prefetch>),
    honoured("fsdp_config.fsdp_use_orig_params", "fsdp.use_orig_params", kLaunched<&ShardingInput::use_orig_params>),
    honoured("fsdp_config.fsdp_min_num_params", "fsdp.wrap", kLaunched<&ShardingInput::least_parameters>),
    honoured("fsdp_config.fsdp_offload_params", "fsdp.cpu_offload", kLaunched<&ShardingInput::offload>),
    choice(honoured("fsdp_config.fsdp_auto_wrap_policy", "fsdp.wrap", kLaunched<&ShardingInput::wrap_policy>),
           "TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP|NO_WRAP"),
    honoured("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp.wrap", kLaunched<&ShardingInput::classes>),
    honoured("fsdp_config.fsdp_cpu_ram_efficient_loading", "model_init", kLaunched<&ShardingInput::rank0_loads>),
    honoured("fsdp_config.fsdp_sync_module_states", "fsdp.sync_module_states", kLaunched<&ShardingInput::synchronises>),
    choice(honoured("fsdp_config.fsdp_state_dict_type", "compared with fsdp_version",
                    kLaunched<&ShardingInput::state_dict>),
           "FULL_STATE_DICT|SHARDED_STATE_DICT|LOCAL_STATE_DICT"),
    honoured("fsdp_config.fsdp_activation_checkpointing", "checkpoint", kLaunched<&ShardingInput::checkpoints>),
    refused("fsdp_config.fsdp_activation_checkpointing_offload", "checkpoints whose arguments go to the host"),
    refused("fsdp_config.fsdp_ignored_modules", "modules that fully_shard is told to leave alone"),
    refused("megatron_lm_config", kMegatron),
    refused("use_megatron_lm", kMegatron),
    block("parallelism_config"),
    honoured("parallelism_config.parallelism_config_dp_replicate_size", "fsdp.replicate",
             kLaunched<&ShardingInput::replicas>),
    honoured("parallelism_config.parallelism_config_dp_shard_size", "fsdp.shard", kLaunched<&ShardingInput::shards>),
    refused("parallelism_config.parallelism_config_tp_size", "tensor parallelism under accelerate", "1"),
    refused("parallelism_config.parallelism_config_cp_size", "context parallelism", "1"),
    refused("parallelism_config.parallelism_config_sp_size", "sequence parallelism under accelerate", "1"),
    refused("fp8_config", kAccelerateFp8),
    refused("fp16", "accelerate's old key fp16 (say mixed_precision: fp16)"),
    block("dynamo_config"),
    refused("dynamo_config.dynamo_backend", "torch.compile", "no|NO"),
    refused("dynamo_backend", "torch.compile", "no|NO"),
    refused("use_cpu", "training on the CPU"),
    refused("cpu", "training on the CPU"),
    refused("tpu", "training on TPUs"),
    refused("downcast_bf16", "training on TPUs", "no"),
    refused("compute_environment", "Amazon SageMaker's configuration", "LOCAL_MACHINE"),
    refused("env", "environment variables of accelerate's own option"),
};

constexpr Names kAccelerateInert[] = {
    {kRendezvous,
     "machine_rank main_process_ip main_process_port rdzv_backend rdzv_conf same_network main_training_function "
     "max_restarts monitor_interval mpirun_config commands command_file module no_python quiet role"},
    {"it binds processes to cores", "enable_cpu_affinity num_cpu_threads_per_process"},
    {kCounted,
     "gpu_ids deepspeed_config.deepspeed_hostfile "
     "deepspeed_config.deepspeed_exclusion_filter deepspeed_config.deepspeed_inclusion_filter "
     "deepspeed_config.deepspeed_multinode_launcher"},
    {"it needs dynamo_backend",
     "dynamo_config.dynamo_mode dynamo_config.dynamo_use_dynamic dynamo_config.dynamo_use_fullgraph "
     "dynamo_config.dynamo_use_regional_compilation"},
    {"the sizes of parallelism_config say it", "use_parallelism_config"},
    {"it needs sequence parallelism", "deepspeed_config.seq_parallel_communication_data_type"},
    {"it needs parallelism_config_cp_size",
     "parallelism_config.parallelism_config_cp_backend parallelism_config.parallelism_config_cp_comm_strategy"},
    {"it needs parallelism_config_sp_size",
     "parallelism_config.parallelism_config_sp_backend parallelism_config.parallelism_config_sp_seq_length "
     "parallelism_config.parallelism_config_sp_seq_length_is_variable "
     "parallelism_config.parallelism_config_sp_attn_implementation"},
    {kOnlyLogs, "debug tee log_dir help"},
    {kOtherDevices,
     "tpu_name tpu_zone tpu_use_cluster tpu_use_sudo tpu_vm tpu_env tpu_cluster no_tpu_cluster vm aws_access_key_id "
     "aws_secret_access_key"},
};

}  // namespace

std::vector<DialectKey> accelerate_keys() {
  std::vector<DialectKey> keys;
  append(keys, kAccelerateRows);
  append(keys, inert_keys(kAccelerateInert));
  return keys;
}

}  // namespace dsplan::detail
