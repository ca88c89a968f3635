// TrainingArguments (transformers 5.17.0 and 4.57.6, training_args.py, Seq2SeqTrainingArguments included), what
// training scripts have beside them, and TRL's configurations (trl 1.16.0, trainer/*_config.py, scripts/utils.py).
#include "core/dialects/dialects.h"
#include "core/dialects/reasons.h"

namespace dsplan::detail {
namespace {

using Treatment = DialectKey::Treatment;

constexpr std::string_view kHub = "it concerns uploads";
constexpr std::string_view kParts = "it says which parts of the script run; training is predicted";
constexpr std::string_view kPairs = "another loss of pairs than DPO's sigmoid";
constexpr std::string_view kOlder = "preference training of TRL before 1.0 (trl 1.16.0 has no such key)";
constexpr std::string_view kOnCpu = "training on the CPU";
constexpr std::string_view kScriptBits = "quantized weights of a script's own (say --quantization)";
constexpr std::string_view kScript = "adapters of a script's own (say --lora)";
constexpr std::string_view kScriptAttention = "an attention of the script's own (say --attention)";
constexpr std::string_view kScriptTower = "a tower that LLaVA's script adds to MODEL (name a model that has one)";
constexpr std::string_view kGenerates = "a trainer that generates, as GRPO does";

template <auto Field>
constexpr ForeignAccess kShards = kOther<&ForeignInput::trainers, Field>;

// Zero, which TrainingArguments always say, asks for nothing.
constexpr DialectKey or_none(DialectKey key) {
  key.least = 0;
  return key;
}

constexpr DialectKey kTrainerHonoured[] = {
    honoured("per_device_train_batch_size", "micro_batch", kSays<&Request::micro_batch>,
             kTrainer<&TrainingArguments::per_device_train_batch_size>),
    honoured("per_gpu_train_batch_size", "micro_batch", kSays<&Request::micro_batch>,
             kTrainer<&TrainingArguments::per_device_train_batch_size>),
    honoured("gradient_accumulation_steps", "grad_accum", kSays<&Request::grad_accum>,
             kTrainer<&TrainingArguments::gradient_accumulation_steps>),
    honoured("max_grad_norm", "max_grad_norm", kSays<&Request::max_grad_norm>,
             kTrainer<&TrainingArguments::max_grad_norm>),
    honoured("learning_rate", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::learning_rate>),
    honoured("adam_beta1", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::adam_beta1>),
    honoured("adam_beta2", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::adam_beta2>),
    honoured("adam_epsilon", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::adam_epsilon>),
    honoured("weight_decay", "optimizer.weight_decay", kTrainer<&TrainingArguments::weight_decay>),
    honoured("bf16", "autocast, dtype", kTrainer<&TrainingArguments::bf16>, Reading::On),
    honoured("bf16_full_eval", "dtype under DeepSpeed", kTrainer<&TrainingArguments::bf16>, Reading::On),
    honoured("fp16", "autocast, dtype", kTrainer<&TrainingArguments::fp16>, Reading::On),
    honoured("fp16_full_eval", "dtype under DeepSpeed", kTrainer<&TrainingArguments::fp16>, Reading::On),
    honoured("auto_find_batch_size", "compared with the DeepSpeed JSON",
             kTrainer<&TrainingArguments::auto_find_batch_size>),
    honoured("gradient_checkpointing", "checkpoint", kTrainer<&TrainingArguments::gradient_checkpointing>,
             Reading::Checkpointing),
    block("gradient_checkpointing_kwargs"),
    honoured("gradient_checkpointing_kwargs.use_reentrant", "checkpoint_impl", kSays<&Request::checkpoint_impl>,
             Reading::Reentrant),
    honoured("gradient_checkpointing_kwargs.preserve_rng_state", "preserve_rng_state",
             kSays<&Request::preserve_rng_state>),
    honoured("optim", "optimizer.name", kSays<&Request::optimizer>, kTrainer<&TrainingArguments::optim>),
    honoured("ddp_find_unused_parameters", "ddp.find_unused_parameters",
             kSays<&Request::ddp, &DdpInput::find_unused_parameters>),
    honoured("ddp_broadcast_buffers", "ddp.broadcast_buffers", kSays<&Request::ddp, &DdpInput::broadcast_buffers>),
    honoured("ddp_bucket_cap_mb", "ddp.bucket_cap_mb", kSays<&Request::ddp, &DdpInput::bucket_cap_mb>),
    honoured("ddp_static_graph", "ddp.static_graph", kSays<&Request::ddp, &DdpInput::static_graph>),
    honoured("use_cache", "use_cache", kSays<&Request::use_cache>),
    honoured("deepspeed", "deepspeed", kSays<&Request::deepspeed>, Reading::DeepSpeed),
    honoured("fsdp", "runtime", kShards<&ShardingInput::on>, Reading::Sharding),
    block("fsdp_config"),
};

// transformers drops the prefix "fsdp_" of these (training_args.py, _process_fsdp_args).
constexpr DialectKey kTrainerSharding[] = {
    honoured("fsdp_config.version", "runtime", kShards<&ShardingInput::version>, Reading::Scalar),
    honoured("fsdp_config.fsdp_version", "runtime", kShards<&ShardingInput::version>, Reading::Scalar),
    honoured("fsdp_config.reshard_after_forward", "fsdp.reshard_after_forward",
             kShards<&ShardingInput::reshard_after_forward>, Reading::Scalar),
    honoured("fsdp_config.fsdp_reshard_after_forward", "fsdp.reshard_after_forward",
             kShards<&ShardingInput::reshard_after_forward>, Reading::Scalar),
    honoured("fsdp_config.cpu_offload", "fsdp.cpu_offload", kShards<&ShardingInput::offload>),
    honoured("fsdp_config.fsdp_cpu_offload", "fsdp.cpu_offload", kShards<&ShardingInput::offload>),
    honoured("fsdp_config.auto_wrap_policy", "fsdp.wrap", kShards<&ShardingInput::wrap_policy>),
    honoured("fsdp_config.fsdp_auto_wrap_policy", "fsdp.wrap", kShards<&ShardingInput::wrap_policy>),
    honoured("fsdp_config.transformer_layer_cls_to_wrap", "fsdp.wrap", kShards<&ShardingInput::classes>),
    honoured("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp.wrap", kShards<&ShardingInput::classes>),
    honoured("fsdp_config.cpu_ram_efficient_loading", "model_init", kShards<&ShardingInput::rank0_loads>),
    honoured("fsdp_config.fsdp_cpu_ram_efficient_loading", "model_init", kShards<&ShardingInput::rank0_loads>),
    honoured("fsdp_config.state_dict_type", "compared with version", kShards<&ShardingInput::state_dict>),
    honoured("fsdp_config.fsdp_state_dict_type", "compared with version", kShards<&ShardingInput::state_dict>),
    honoured("fsdp_config.activation_checkpointing", "checkpoint", kShards<&ShardingInput::checkpoints>),
    honoured("fsdp_config.fsdp_activation_checkpointing", "checkpoint", kShards<&ShardingInput::checkpoints>),
    honoured("fsdp_config.forward_prefetch", "fsdp.forward_prefetch", kShards<&ShardingInput::forward_prefetch>),
    honoured("fsdp_config.fsdp_forward_prefetch", "fsdp.forward_prefetch", kShards<&ShardingInput::forward_prefetch>),
    honoured("fsdp_config.backward_prefetch", "fsdp.backward_prefetch", kShards<&ShardingInput::backward_prefetch>,
             Reading::Scalar),
    honoured("fsdp_config.fsdp_backward_prefetch", "fsdp.backward_prefetch", kShards<&ShardingInput::backward_prefetch>,
             Reading::Scalar),
    honoured("fsdp_config.use_orig_params", "fsdp.use_orig_params", kShards<&ShardingInput::use_orig_params>),
    honoured("fsdp_config.fsdp_use_orig_params", "fsdp.use_orig_params", kShards<&ShardingInput::use_orig_params>),
    honoured("fsdp_config.sync_module_states", "fsdp.sync_module_states", kShards<&ShardingInput::synchronises>),
    honoured("fsdp_config.fsdp_sync_module_states", "fsdp.sync_module_states", kShards<&ShardingInput::synchronises>),
    honoured("fsdp_config.limit_all_gathers", "fsdp.limit_all_gathers", kShards<&ShardingInput::limits_gathers>),
    honoured("fsdp_config.fsdp_limit_all_gathers", "fsdp.limit_all_gathers", kShards<&ShardingInput::limits_gathers>),
    or_none(honoured("fsdp_config.min_num_params", "fsdp.wrap", kShards<&ShardingInput::least_parameters>)),
    or_none(honoured("fsdp_config.fsdp_min_num_params", "fsdp.wrap", kShards<&ShardingInput::least_parameters>)),
    // What transformers 4 has beside fsdp, and 5 no longer.
    honoured("fsdp_transformer_layer_cls_to_wrap", "fsdp.wrap", kShards<&ShardingInput::classes>,
             Reading::OlderSharding),
    or_none(honoured("fsdp_min_num_params", "fsdp.wrap", kShards<&ShardingInput::least_parameters>,
                     Reading::OlderSharding)),
    refused("fsdp_config.xla", "training on TPUs"),
    honoured("use_liger_kernel", "liger_kernels", kSays<&Request::liger_kernels>, Reading::Liger),
};

constexpr DialectKey kTrainerRefused[] = {
    refused("gradient_checkpointing_kwargs.selective", "selective checkpointing by TRL"),
    refused("gradient_checkpointing_kwargs.context_fn", "a context function of checkpointing"),
    refused("torch_compile", kCompile),
    refused("torch_compile_backend", kCompile),
    refused("torch_compile_mode", kCompile),
    refused("torchdynamo", kCompile),
    refused("liger_kernel_config", "a choice among Liger's kernels (say --liger-kernels)"),
    refused("neftune_noise_alpha", "NEFTune"),
    refused("torch_empty_cache_steps", "emptying the cache"),
    refused("label_smoothing_factor", "label smoothing"),
    refused("optim_target_modules", "GaLore and APOLLO, which project the gradients of these modules"),
    refused("optim_args", "arguments of an optimizer"),
    refused("parallelism_config", "accelerate's parallelism"),
    refused("full_determinism", kDeterministic),
    refused("use_cpu", kOnCpu),
    refused("no_cuda", kOnCpu),
    refused("use_mps_device", "training on Apple's GPUs"),
    refused("tpu_num_cores", "training on TPUs"),
    refused("adafactor", "the switch adafactor (say optim: adafactor)"),
    refused("half_precision_backend", "Apex", "auto|cuda_amp|cpu_amp"),
    refused("fp16_backend", "Apex", "auto|cuda_amp|cpu_amp"),
    refused("mp_parameters", "SageMaker's model parallelism"),
    block("accelerator_config"),
    refused("accelerator_config.split_batches", "a batch that is split over the ranks"),
    refused("accelerator_config.use_configured_state", "a state of accelerate that the script makes itself"),
};

constexpr Names kTrainerInert[] = {
    {kOnlyLogs,
     "logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter logging_dir "
     "include_num_input_tokens_seen include_tokens_per_second log_level log_level_replica disable_tqdm report_to "
     "run_name project trackio_space_id trackio_bucket_id trackio_static_space_id debug skip_memory_metrics "
     "tpu_metrics_debug ray_scope"},
    {kEvaluation,
     "eval_strategy evaluation_strategy eval_steps eval_delay per_device_eval_batch_size per_gpu_eval_batch_size "
     "prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
     "include_for_metrics include_inputs_for_metrics batch_eval_metrics jit_mode_eval metric_for_best_model "
     "greater_is_better load_best_model_at_end use_legacy_prediction_loop predict_with_generate "
     "generation_max_length generation_num_beams generation_config past_index"},
    {kFiles,
     "output_dir overwrite_output_dir save_only_model save_strategy save_steps save_on_each_node save_total_limit "
     "save_safetensors enable_jit_checkpoint resume_from_checkpoint ignore_data_skip "
     "restore_callback_states_from_checkpoint"},
    {kHub,
     "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
     "push_to_hub_model_id push_to_hub_organization push_to_hub_token"},
    {kSchedule,
     "num_train_epochs max_steps lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio "
     "average_tokens_across_devices"},
    {kRandom, "seed data_seed"},
    {kData,
     "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
     "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns "
     "label_names group_by_length train_sampling_strategy length_column_name sortish_sampler "
     "accelerator_config.dispatch_batches accelerator_config.even_batches accelerator_config.use_seedable_sampler "
     "accelerator_config.non_blocking accelerator_config.gradient_accumulation_kwargs"},
    {kCommunication, "ddp_backend ddp_timeout local_rank"},
    {kParts, "do_train do_eval do_predict"},
    {"TF32 changes how products are rounded, no buffer", "tf32"},
    {"it needs xla", "fsdp_config.xla_fsdp_v2 fsdp_config.xla_fsdp_settings fsdp_config.xla_fsdp_grad_ckpt"},
    {"it needs Apex", "fp16_opt_level"},
    {"it needs use_reentrant: false, and raises or prints only",
     "gradient_checkpointing_kwargs.determinism_check gradient_checkpointing_kwargs.debug "
     "gradient_checkpointing_kwargs.early_stop"},
};

// What scripts around transformers' Trainer call the same things, and what they have of their own (transformers'
// examples/pytorch, DeepSpeed's add_config_arguments).
constexpr DialectKey kScripts[] = {
    honoured("deepspeed_config", "deepspeed", kSays<&Request::deepspeed>, Reading::DeepSpeed),
    honoured("model_name_or_path", "MODEL", kOther<&ForeignInput::model>),
    honoured("model_name", "MODEL", kOther<&ForeignInput::model>),
    honoured("attn_implementation", "attention", kSays<&Request::attention>),
    honoured("torch_dtype", "dtype", kSays<&Request::torch_dtype>),
    honoured("dtype", "dtype", kSays<&Request::torch_dtype>),
    honoured("max_seq_length", "seq", kSays<&Request::seq>),
    honoured("max_length", "seq", kSays<&Request::seq>),
    honoured("model_max_length", "seq", kSays<&Request::seq>),
    honoured("block_size", "seq", kSays<&Request::seq>),
    honoured("cutoff_len", "seq", kSays<&Request::seq>),
    honoured("seq_length", "seq", kSays<&Request::seq>),
    honoured("seq_len", "seq", kSays<&Request::seq>),
    refused("load_in_4bit", kScriptBits),
    refused("load_in_8bit", kScriptBits),
    refused("packing", "packed sequences"),
    refused("use_lora", kScript),
    refused("lora", kScript),
    refused("lora_rank", kScript),
    refused("lora_r", kScript),
    refused("lora_alpha", kScript),
    refused("lora_dropout", kScript),
    refused("lora_target_modules", kScript),
    refused("lora_enable", kScript),
    refused("lora_bias", kScript, "none"),
    refused("q_lora", kScriptBits),
    refused("bits", kScriptBits, "16"),
    refused("double_quant", kScriptBits),
    refused("quant_type", kScriptBits),
    refused("use_flash_attn", kScriptAttention),
    refused("use_flash_attention_2", kScriptAttention),
    refused("flash_attn", kScriptAttention),
    refused("mpt_attn_impl", kScriptAttention),
    refused("vision_tower", kScriptTower),
    refused("mm_projector_type", kScriptTower),
    refused("pretrain_mm_mlp_adapter", kScriptTower),
    refused("tune_mm_mlp_adapter", kScriptTower),
    refused("freeze_mm_mlp_adapter", kScriptTower),
    refused("freeze_backbone", kScriptTower),
    refused("mm_projector_lr", kScriptTower),
    refused("config_name", "another configuration than the model's own"),
    refused("config_overrides", "another configuration than the model's own"),
};
constexpr Names kScriptsInert[] = {
    {kData,
     "dataset_name dataset_config_name dataset train_file validation_file test_file data_path data_dir "
     "max_train_samples max_eval_samples validation_split_percentage streaming text_column "
     "preprocessing_num_workers overwrite_cache dataloader_workers eval_data_path lazy_preprocess "
     "group_by_modality_length image_folder image_aspect_ratio is_multimodal version"},
    {"it needs vision_tower",
     "mm_vision_select_layer mm_vision_select_feature mm_patch_merge_type mm_use_im_start_end mm_use_im_patch_token"},
    {kTokens, "tokenizer_name use_fast_tokenizer keep_linebreaks padding_side pad_to_max_length"},
    {kFiles,
     "cache_dir model_revision trust_remote_code token use_auth_token low_cpu_mem_usage model_type lora_weight_path"},
    {kCommunication, "deepspeed_mpi master_port master_addr"},
    {kOnlyLogs, "wandb_project wandb_entity wandb_run_name with_tracking"},
};

constexpr DialectKey kTrlRows[] = {
    refused("use_liger_kernel", "Liger kernels in TRL's trainers, whose losses are their own"),
    honoured("model_name_or_path", "MODEL", kOther<&ForeignInput::model>),
    honoured("dtype", "dtype", kSays<&Request::torch_dtype>),
    honoured("torch_dtype", "dtype", kSays<&Request::torch_dtype>),
    honoured("attn_implementation", "attention", kSays<&Request::attention>),
    honoured("max_length", "seq", kSays<&Request::seq>),
    honoured("max_seq_length", "seq", kSays<&Request::seq>),
    honoured("accelerate_config", "runtime", kOther<&ForeignInput::launch_file>),
    honoured("num_processes", "gpus", kSays<&Request::gpus>),
    honoured("use_peft", "lora", kOther<&ForeignInput::adapters>),
    honoured("lora_r", "lora", kOther<&ForeignInput::lora_r>),
    honoured("lora_alpha", "lora", kOther<&ForeignInput::lora_alpha>),
    honoured("lora_dropout", "lora", kOther<&ForeignInput::lora_dropout>),
    honoured("lora_target_modules", "lora", kOther<&ForeignInput::lora_targets>, Reading::Targets),
    honoured("lora_modules_to_save", "lora", kOther<&ForeignInput::lora_saved>, Reading::Targets),
    honoured("use_rslora", "lora", kOther<&ForeignInput::lora_rank_stabilized>),
    honoured("use_dora", "lora", kOther<&ForeignInput::lora_dora>),
    honoured("env", "allocator_conf", kSays<&Request::alloc_conf>, Reading::Environment),
    block("model_init_kwargs"),
    honoured("model_init_kwargs.dtype", "dtype", kSays<&Request::torch_dtype>),
    honoured("model_init_kwargs.torch_dtype", "dtype", kSays<&Request::torch_dtype>),
    honoured("model_init_kwargs.attn_implementation", "attention", kSays<&Request::attention>),
    refused("model_init_kwargs.quantization_config", kQuantized),
    refused("model_init_kwargs.use_kernels", "kernels of the hub"),
    refused("model_init_kwargs.use_cache", "a key-value cache in training"),
    honoured("load_in_4bit", "quantization", kOther<&ForeignInput::bits>, Reading::FourBits),
    honoured("load_in_8bit", "quantization", kOther<&ForeignInput::bits>, Reading::EightBits),
    choice(honoured("bnb_4bit_quant_type", "quantization", kOther<&ForeignInput::bits_kind>), "nf4|fp4"),
    honoured("bnb_4bit_quant_storage", "quant_storage", kOther<&ForeignInput::bits_storage>),
    honoured("use_bnb_nested_quant", "double_quant", kOther<&ForeignInput::bits_nested>),
    refused("lora_target_parameters", "adapters on parameters"),
    choice(honoured("lora_task_type", "lora", kOther<&ForeignInput::lora_task>), "CAUSAL_LM|SEQ_CLS"),
    honoured("packing", "micro_batch, seq", kOther<&ForeignInput::packs>),
    // "ffd" is what releases before 0.19 called "bfd".
    choice(honoured("packing_strategy", "micro_batch, seq", kOther<&ForeignInput::packing_strategy>),
           "bfd|bfd_split|wrapped|ffd"),
    refused("padding_free", "batches without padding"),
    honoured("activation_offloading", "activation_offloading", kSays<&Request::activation_offloading>,
             Reading::Offloading),
    honoured("loss_type", "loss", kOther<&ForeignInput::loss_types>),
    refused("router_aux_loss_coef", "the router's auxiliary loss"),
    refused("chat_template_path", "a chat template that may add tokens"),
    honoured("beta", "loss", kOther<&ForeignInput::trainer>, Reading::Preference),
    honoured("desirable_weight", "loss", kOther<&ForeignInput::trainer>, Reading::Preference),
    honoured("undesirable_weight", "loss", kOther<&ForeignInput::trainer>, Reading::Preference),
    honoured("precompute_ref_log_probs", "loss", kOther<&ForeignInput::precomputed>),
    refused("precompute_ref_batch_size", "another batch for the reference's pass before training"),
    refused("loss_weights", kPairs),
    refused("ld_alpha", kPairs),
    refused("f_divergence_type", kPairs, "reverse_kl"),
    refused("label_smoothing", kPairs),
    refused("use_weighting", kPairs),
    refused("sync_ref_model", "a reference that follows the model"),
    refused("rpo_alpha", kOlder),
    refused("max_prompt_length", kOlder),
    refused("max_completion_length", kGenerates),
    refused("disable_dropout", "dropout in training of pairs", "true"),
    honoured("center_rewards_coefficient", "loss", kOther<&ForeignInput::centered>, Reading::Rewards),
};
// Of GRPOConfig, RLOOConfig and their scripts.
constexpr Names kTrlGenerates[] = {
    {kGenerates,
     "num_generations num_generations_eval generation_batch_size steps_per_generation generation_kwargs "
     "ds3_gather_for_generation temperature top_p top_k min_p repetition_penalty cache_implementation "
     "use_transformers_paged use_transformers_continuous_batching transformers_continuous_batching_config use_vllm "
     "vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_guided_decoding_regex "
     "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port "
     "vllm_gpu_memory_utilization vllm_max_model_length vllm_max_model_len vllm_device vllm_dtype "
     "vllm_tensor_parallel_size vllm_importance_sampling_correction vllm_importance_sampling_mode "
     "vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap "
     "num_iterations epsilon epsilon_high delta sapo_temperature_neg sapo_temperature_pos vespo_k_pos "
     "vespo_lambda_pos vespo_k_neg vespo_lambda_neg importance_sampling_level reward_funcs reward_weights "
     "reward_model_name_or_path reward_clip_range normalize_advantages multi_objective_aggregation scale_rewards "
     "mask_truncated_completions top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min "
     "entropy_coef_max entropy_coef_delta entropy_target max_tool_calling_iterations off_policy_mask_threshold "
     "use_bias_correction_kl log_completions log_multimodal log_unique_prompts log_completions_hub_repo"},
};
constexpr Names kTrlInert[] = {
    {kData,
     "dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming dataset_text_field "
     "dataset_kwargs dataset_num_proc dataset_batch_size datasets streaming test_split_size shuffle_dataset "
     "eval_packing truncation_mode pad_to_multiple_of"},
    {"it masks labels, whose number stays", "completion_only_loss assistant_only_loss"},
    {"it needs another loss of pairs than sigmoid", "f_alpha_divergence_coef discopop_tau"},
    {"it needs sync_ref_model", "ref_model_mixup_alpha ref_model_sync_steps"},
    {kTokens, "eos_token pad_token chat_template_kwargs"},
    // Of recipes: alignment-handbook 0.4 (src/alignment/configs.py) and what it had before, open-r1 0.1
    // (src/open_r1/configs.py).
    {kData,
     "dataset_mixture dataset_mixer dataset_splits dataset_configs dataset_prompt_column preprocessing_num_workers "
     "text_column truncation_side"},
    {kTokens, "chat_template system_prompt auto_insert_empty_system_msg tokenizer_name_or_path"},
    {kOnlyLogs,
     "benchmarks callbacks wandb_entity wandb_project wandb_run_group wandb_log_unique_prompts "
     "num_completions_to_print"},
    {kHub, "hub_model_revision overwrite_hub_revision push_to_hub_revision"},
    {"it needs reward_funcs",
     "cosine_min_value_wrong cosine_max_value_wrong cosine_min_value_correct cosine_max_value_correct cosine_max_len "
     "repetition_n_grams repetition_max_penalty code_language code_eval_test_batch_size code_eval_scoring_mode "
     "parallel_code_exec_per_proc morph_router_url code_provider ioi_provider max_completion_len soft_punish_cache"},
    {kFiles,
     "base_model_revision model_code_revision model_revision trust_remote_code model_init_kwargs.revision "
     "model_init_kwargs.trust_remote_code "
     "model_init_kwargs.device_map model_init_kwargs.low_cpu_mem_usage"},
    {kCommunication, "ignore_bias_buffers"},
};

}  // namespace

std::vector<DialectKey> trainer_keys() {
  std::vector<DialectKey> keys;
  append(keys, kTrainerHonoured);
  append(keys, kTrainerSharding);
  append(keys, kTrainerRefused);
  append(keys, inert_keys(kTrainerInert));
  for (DialectKey& key : keys) key.trainers = key.treatment != Treatment::Inert;
  return keys;
}

std::vector<DialectKey> training_arguments_keys() {
  std::vector<DialectKey> keys = trainer_keys();
  append(keys, kScripts);
  append(keys, inert_keys(kScriptsInert));
  return keys;
}

std::vector<DialectKey> trl_keys() {
  std::vector<DialectKey> keys = trainer_keys();
  std::erase_if(keys, [](const DialectKey& key) { return key.path == "use_liger_kernel"; });
  append(keys, kTrlRows);
  append(keys, refused_keys(kTrlGenerates));
  append(keys, inert_keys(kTrlInert));
  return keys;
}

}  // namespace dsplan::detail
