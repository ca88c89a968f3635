// The arguments of LLaMA-Factory's v1 (llamafactory 0.9.6.dev0, src/llamafactory/v1): config/*.py, and what its plugins
// parse (plugins/model_plugins/peft.py, quantization.py, initialization.py, kernels;
// plugins/trainer_plugins/distributed/interface.py, optimizers).
#include "core/dialects/dialects.h"
#include "core/dialects/reasons.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kHostShards = "shards in the host's memory under v1's own clipping";
constexpr std::string_view kContext = "context parallelism (Ulysses)";
constexpr std::string_view kExperts = "fsdpturbo, which shares experts among ranks";
constexpr std::string_view kMerge = "merging adapters, which trains nothing";
constexpr std::string_view kQuantization = "packed weights under v1";
constexpr std::string_view kMuon = "LLaMA-Factory's Muon";
constexpr std::string_view kV1Pairs = "it needs `llamafactory-cli dpo`, which is refused";

constexpr DialectKey kRows[] = {
    honoured("model", "MODEL", kOther<&ForeignInput::model>),
    choice(honoured("flash_attn", "attention", kSays<&Request::attention>), "eager|sdpa|flash_attention_2"),
    refused("model_class", "another class than the one for causal language modelling", "llm"),
    block("init_config"),
    choice(honoured("init_config.name", "model_init", kOther<&ForeignInput::init_on>),
           "init_on_default|init_on_meta|init_on_rank0"),
    block("peft_config"),
    choice(honoured("peft_config.name", "lora", kOther<&ForeignInput::adapters>, Reading::Method), "lora|freeze"),
    honoured("peft_config.r", "lora", kOther<&ForeignInput::lora_r>),
    honoured("peft_config.lora_alpha", "lora", kOther<&ForeignInput::lora_alpha>),
    honoured("peft_config.lora_dropout", "lora", kOther<&ForeignInput::lora_dropout>),
    honoured("peft_config.target_modules", "lora", kOther<&ForeignInput::lora_targets>, Reading::Targets),
    honoured("peft_config.use_rslora", "lora", kOther<&ForeignInput::lora_rank_stabilized>),
    refused("peft_config.modules_to_save", "modules that are trained whole beside adapters under v1"),
    refused("peft_config.use_dora", "DoRA under v1"),
    refused("peft_config.adapter_name_or_path", "adapters that are loaded"),
    refused("peft_config.export_dir", kMerge),
    block("kernel_config"),
    refused("kernel_config.name", "LLaMA-Factory's own kernels", "auto"),
    block("quant_config"),
    refused("quant_config.name", kQuantization, "auto"),
    refused("quant_config.quantization_bit", kQuantization),
    honoured("micro_batch_size", "micro_batch", kSays<&Request::micro_batch>),
    honoured("global_batch_size", "grad_accum", kOther<&ForeignInput::all_rows>),
    honoured("cutoff_len", "seq", kSays<&Request::seq>),
    honoured("bf16", "fsdp.param_dtype", kOther<&ForeignInput::in_bf16>),
    refused("batching_strategy", "micro-batches of a number of tokens, or of one packed row", "normal"),
    honoured("enable_activation_checkpointing", "checkpoint", kOther<&ForeignInput::checkpoints>),
    block("dist_config"),
    choice(honoured("dist_config.name", "runtime", kOther<&ForeignInput::distributed>), "fsdp2|deepspeed|fsdpturbo"),
    honoured("dist_config.reshard_after_forward", "fsdp.reshard_after_forward",
             kOther<&ForeignInput::trainers, &ShardingInput::reshard_after_forward>, Reading::Scalar),
    refused("dist_config.offload_params", kHostShards),
    refused("dist_config.dcp_path", "weights that are loaded as shards"),
    refused("dist_config.ep_size", kExperts, "1"),
    refused("dist_config.fsdp_ignored_modules", kExperts),
    refused("dist_config.hook_modules", kExperts),
    refused("dist_config.fsdp_implementation", kExperts, "native"),
    honoured("dp_size", "gpus", kOther<&ForeignInput::data_ranks>),
    refused("cp_size", kContext, "1"),
    honoured("mp_replicate_size", "fsdp.replicate", kOther<&ForeignInput::replicas>),
    honoured("mp_shard_size", "fsdp.shard", kOther<&ForeignInput::shards>),
    block("optim_config"),
    refused("optim_config.name", kMuon),
    refused("lr_scheduler_config", "a plugin for learning rates, of which v1 brings none"),
    refused("full_determinism", kDeterministic),
    refused("resume_from_checkpoint", "optimizer states that are there before the first step"),
};

constexpr Names kInert[] = {
    {kTokens, "custom_chat_template"},
    {kFiles,
     "trust_remote_code output_dir save_steps save_epochs save_total_limit peft_config.export_size "
     "peft_config.export_hub_model_id peft_config.infer_dtype peft_config.export_legacy_format"},
    {"at the end of training whole weights are gathered all the same", "save_ckpt_as_hf"},
    {kData, "train_dataset eval_dataset batching_workers"},
    {kSchedule, "learning_rate num_train_epochs max_steps optim_config.lr"},
    {"gradients are clipped whatever it is", "max_grad_norm"},
    {kCommunication, "dist_timeout"},
    {kRandom, "seed"},
    {kOnlyLogs, "logging_steps"},
    {"it is for generating text, not for training", "sample_backend max_new_tokens"},
    {"it needs a kernel that is refused",
     "kernel_config.include_kernels kernel_config.chunk_size kernel_config.require_logits"},
    {"it needs packed weights, which are refused",
     "quant_config.compute_dtype quant_config.double_quantization quant_config.quantization_type"},
    {"it needs peft_config.name: freeze, which is refused",
     "peft_config.freeze_trainable_layers peft_config.freeze_trainable_modules peft_config.freeze_extra_modules "
     "peft_config.cast_trainable_params_to_fp32"},
    {"it needs offload_params", "dist_config.pin_memory"},
    {"it needs dist_config.name: deepspeed, which is refused", "dist_config.config_file"},
    {"it needs dist_config.name: fsdpturbo, which is refused", "dist_config.ep_dispatcher"},
    {"it needs cp_size", "cp_mode"},
    {"it needs optim_config.name, which is refused",
     "optim_config.wd optim_config.momentum optim_config.nesterov optim_config.ns_steps optim_config.adamw_betas "
     "optim_config.adamw_eps"},
    {kV1Pairs, "pref_loss pref_beta pref_ftx simpo_gamma dpo_label_smoothing ld_alpha"},
};

}  // namespace

std::vector<DialectKey> llama_factory_v1_keys() {
  std::vector<DialectKey> keys;
  append(keys, kRows);
  append(keys, inert_keys(kInert));
  return keys;
}

}  // namespace dsplan::detail
