// axolotl's configuration (axolotl 0.19.0, utils/schemas/*.py, AxolotlInputConfig).
#include "core/dialects/dialects.h"
#include "core/dialects/reasons.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kPacking = "packed sequences";
constexpr std::string_view kKernels = "axolotl's own kernels";
constexpr std::string_view kOtherParallelism = "parallelism other than data parallelism";
constexpr std::string_view kVocabulary = "a resized vocabulary";
constexpr std::string_view kLisa = "LISA";
constexpr std::string_view kAxolotlFp8 = "fp8 training";
constexpr std::string_view kAttention = "an attention of axolotl's own";
constexpr std::string_view kLoss = "another loss than the model's own";

constexpr std::string_view kNeedsPacking = "it needs sample_packing";
constexpr std::string_view kNeedsPreference = "it needs rl, and a trainer that is refused, or evaluation";
constexpr std::string_view kNeedsPose = "it needs use_pose";
constexpr std::string_view kNeedsBitsAndBytes = "it needs load_in_4bit or load_in_8bit";

constexpr DialectKey kAxolotlHonoured[] = {
    honoured("base_model", "MODEL", kOther<&ForeignInput::model>),
    honoured("micro_batch_size", "micro_batch", kSays<&Request::micro_batch>,
             kTrainer<&TrainingArguments::per_device_train_batch_size>),
    honoured("gradient_accumulation_steps", "grad_accum", kSays<&Request::grad_accum>,
             kTrainer<&TrainingArguments::gradient_accumulation_steps>),
    honoured("sequence_len", "seq", kSays<&Request::seq>),
    honoured("sample_packing", "micro_batch, seq", kOther<&ForeignInput::packs>),
    honoured("image_size", "image_size", kOther<&ForeignInput::image_sides>, Reading::Sides),
    honoured("ddp_find_unused_parameters", "ddp.find_unused_parameters",
             kSays<&Request::ddp, &DdpInput::find_unused_parameters>),
    honoured("ddp_broadcast_buffers", "ddp.broadcast_buffers", kSays<&Request::ddp, &DdpInput::broadcast_buffers>),
    honoured("ddp_bucket_cap_mb", "ddp.bucket_cap_mb", kSays<&Request::ddp, &DdpInput::bucket_cap_mb>),
    choice(honoured("adapter", "lora", kOther<&ForeignInput::adapters>, Reading::Method),
           "lora|qlora|llama-adapter|loha|lokr|oft|vera"),
    honoured("load_in_4bit", "quantization", kOther<&ForeignInput::bits>, Reading::FourBits),
    honoured("load_in_8bit", "quantization", kOther<&ForeignInput::bits>, Reading::EightBits),
    block("bnb_config_kwargs"),
    choice(honoured("bnb_config_kwargs.bnb_4bit_quant_type", "quantization", kOther<&ForeignInput::bits_kind>),
           "nf4|fp4"),
    honoured("bnb_config_kwargs.bnb_4bit_use_double_quant", "double_quant", kOther<&ForeignInput::bits_nested>),
    honoured("bnb_config_kwargs.bnb_4bit_quant_storage", "quant_storage", kOther<&ForeignInput::bits_storage>),
    honoured("lora_r", "lora", kOther<&ForeignInput::lora_r>),
    honoured("lora_alpha", "lora", kOther<&ForeignInput::lora_alpha>),
    honoured("lora_dropout", "lora", kOther<&ForeignInput::lora_dropout>),
    honoured("lora_target_modules", "lora", kOther<&ForeignInput::lora_targets>, Reading::Targets),
    honoured("lora_target_linear", "lora", kOther<&ForeignInput::lora_all_linear>),
    honoured("lora_modules_to_save", "lora", kOther<&ForeignInput::lora_saved>, Reading::Targets),
    honoured("peft_use_rslora", "lora", kOther<&ForeignInput::lora_rank_stabilized>),
    honoured("peft_use_dora", "lora", kOther<&ForeignInput::lora_dora>),
    honoured("peft_autocast_adapter_dtype", "lora", kOther<&ForeignInput::lora_in_fp32>),
    honoured("lora_mlp_kernel", "lora", kOther<&ForeignInput::lora_kernels>, Reading::Kernels),
    honoured("lora_qkv_kernel", "lora", kOther<&ForeignInput::lora_kernels>, Reading::Kernels),
    honoured("lora_o_kernel", "lora", kOther<&ForeignInput::lora_kernels>, Reading::Kernels),
    honoured("lora_embedding_kernel", "lora", kOther<&ForeignInput::lora_kernels>, Reading::Kernels),
    choice(honoured("rl", "loss", kOther<&ForeignInput::trainer>), "dpo|ipo|orpo|kto|simpo|grpo|gdpo|ebft"),
    honoured("reward_model", "loss", kOther<&ForeignInput::rewards>),
    honoured("center_rewards_coefficient", "loss", kOther<&ForeignInput::centered>),
    honoured("cpo_alpha", "loss", kOther<&ForeignInput::supervised>),
    refused("dpo_loss_type", "another loss of pairs than sigmoid", "sigmoid"),
    honoured("optimizer", "optimizer.name", kSays<&Request::optimizer>, kTrainer<&TrainingArguments::optim>),
    honoured("learning_rate", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::learning_rate>),
    honoured("weight_decay", "optimizer.weight_decay", kTrainer<&TrainingArguments::weight_decay>),
    honoured("adam_beta1", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::adam_beta1>),
    honoured("adam_beta2", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::adam_beta2>),
    honoured("adam_epsilon", "compared with the DeepSpeed JSON", kTrainer<&TrainingArguments::adam_epsilon>),
    honoured("max_grad_norm", "max_grad_norm", kSays<&Request::max_grad_norm>,
             kTrainer<&TrainingArguments::max_grad_norm>),
    honoured("bf16", "autocast, dtype", kTrainer<&TrainingArguments::bf16>, Reading::OnOrAuto),
    honoured("bfloat16", "as bf16", kOther<&ForeignInput::also_bf16>),
    honoured("fp16", "autocast, dtype", kTrainer<&TrainingArguments::fp16>, Reading::On),
    honoured("auto_find_batch_size", "compared with the DeepSpeed JSON",
             kTrainer<&TrainingArguments::auto_find_batch_size>),
    choice(honoured("gradient_checkpointing", "checkpoint", kTrainer<&TrainingArguments::gradient_checkpointing>,
                    Reading::Checkpointing),
           "offload|offload_disk"),
    block("gradient_checkpointing_kwargs"),
    honoured("gradient_checkpointing_kwargs.use_reentrant", "checkpoint_impl", kSays<&Request::checkpoint_impl>,
             Reading::Reentrant),
    honoured("gradient_checkpointing_kwargs.preserve_rng_state", "preserve_rng_state",
             kSays<&Request::preserve_rng_state>),
    honoured("attn_implementation", "attention", kSays<&Request::attention>),
    honoured("flash_attention", "attention", kSays<&Request::attention>, Reading::Attention),
    honoured("sdp_attention", "attention", kSays<&Request::attention>, Reading::Attention),
    honoured("eager_attention", "attention", kSays<&Request::attention>, Reading::Attention),
    honoured("deepspeed", "deepspeed", kSays<&Request::deepspeed>, Reading::DeepSpeed),
};

template <auto Field>
constexpr ForeignAccess kToTrainer = kOther<&ForeignInput::trainers, Field>;

// axolotl drops the prefix "fsdp_" of keys in fsdp_config (utils/schemas/validation.py), sets accelerate's variables
// (utils/trainer.py, setup_fsdp_envs) and hands the rest to the Trainer (core/builders/base.py).
constexpr std::string_view kWrapPolicies = "TRANSFORMER_BASED_WRAP|SIZE_BASED_WRAP";
constexpr std::string_view kStateDictTypes = "FULL_STATE_DICT|LOCAL_STATE_DICT|SHARDED_STATE_DICT";
constexpr DialectKey kAxolotlSharding[] = {
    honoured("fsdp", "runtime", kToTrainer<&ShardingInput::on>, Reading::Sharding),
    honoured("fsdp_version", "runtime", kToTrainer<&ShardingInput::version>, Reading::Scalar),
    block("fsdp_config"),
    honoured("fsdp_config.fsdp_version", "runtime", kToTrainer<&ShardingInput::inner_version>, Reading::Scalar),
    honoured("fsdp_config.version", "runtime", kToTrainer<&ShardingInput::inner_version>, Reading::Scalar),
    honoured("fsdp_config.reshard_after_forward", "fsdp.reshard_after_forward",
             kToTrainer<&ShardingInput::reshard_after_forward>, Reading::Scalar),
    honoured("fsdp_config.fsdp_reshard_after_forward", "fsdp.reshard_after_forward",
             kToTrainer<&ShardingInput::reshard_after_forward>, Reading::Scalar),
    honoured("fsdp_config.offload_params", "fsdp.cpu_offload", kToTrainer<&ShardingInput::offload>),
    honoured("fsdp_config.fsdp_offload_params", "fsdp.cpu_offload", kToTrainer<&ShardingInput::offload>),
    honoured("fsdp_config.cpu_offload_pin_memory", "fsdp.cpu_offload", kToTrainer<&ShardingInput::pins>),
    honoured("fsdp_config.fsdp_cpu_offload_pin_memory", "fsdp.cpu_offload", kToTrainer<&ShardingInput::pins>),
    choice(honoured("fsdp_config.auto_wrap_policy", "fsdp.wrap", kToTrainer<&ShardingInput::wrap_policy>),
           kWrapPolicies),
    choice(honoured("fsdp_config.fsdp_auto_wrap_policy", "fsdp.wrap", kToTrainer<&ShardingInput::wrap_policy>),
           kWrapPolicies),
    honoured("fsdp_config.transformer_layer_cls_to_wrap", "fsdp.wrap", kToTrainer<&ShardingInput::classes>),
    honoured("fsdp_config.fsdp_transformer_layer_cls_to_wrap", "fsdp.wrap", kToTrainer<&ShardingInput::classes>),
    honoured("fsdp_config.min_num_params", "fsdp.wrap", kToTrainer<&ShardingInput::least_parameters>),
    honoured("fsdp_config.fsdp_min_num_params", "fsdp.wrap", kToTrainer<&ShardingInput::least_parameters>),
    honoured("fsdp_config.cpu_ram_efficient_loading", "model_init", kToTrainer<&ShardingInput::rank0_loads>),
    honoured("fsdp_config.fsdp_cpu_ram_efficient_loading", "model_init", kToTrainer<&ShardingInput::rank0_loads>),
    honoured("fsdp_config.sync_module_states", "fsdp.sync_module_states", kToTrainer<&ShardingInput::synchronises>),
    honoured("fsdp_config.fsdp_sync_module_states", "fsdp.sync_module_states",
             kToTrainer<&ShardingInput::synchronises>),
    honoured("fsdp_config.use_orig_params", "fsdp.use_orig_params", kToTrainer<&ShardingInput::use_orig_params>),
    honoured("fsdp_config.fsdp_use_orig_params", "fsdp.use_orig_params", kToTrainer<&ShardingInput::use_orig_params>),
    choice(
        honoured("fsdp_config.state_dict_type", "compared with fsdp_version", kToTrainer<&ShardingInput::state_dict>),
        kStateDictTypes),
    choice(honoured("fsdp_config.fsdp_state_dict_type", "compared with fsdp_version",
                    kToTrainer<&ShardingInput::state_dict>),
           kStateDictTypes),
    honoured("fsdp_config.activation_checkpointing", "checkpoint", kToTrainer<&ShardingInput::checkpoints>),
    honoured("fsdp_config.fsdp_activation_checkpointing", "checkpoint", kToTrainer<&ShardingInput::checkpoints>),
    honoured("dp_replicate_size", "fsdp.replicate", kToTrainer<&ShardingInput::replicas>),
    honoured("dp_shard_size", "fsdp.shard", kToTrainer<&ShardingInput::shards>),
};

constexpr DialectKey kAxolotlRefused[] = {
    refused("bnb_config_kwargs.bnb_4bit_compute_dtype", "products in another dtype than the model's"),
    refused("bnb_config_kwargs.llm_int8_skip_modules", "modules that are left out of packing"),
    refused("bnb_config_kwargs.llm_int8_enable_fp32_cpu_offload", "weights on the CPU"),
    refused("bnb_config_kwargs.llm_int8_threshold", "outlier columns from another threshold than 6.0", "6.0|6"),
    refused("bnb_config_kwargs.llm_int8_has_fp16_weight", "weights in 16 bits beside their 8-bit form", "false"),
    refused("gptq", kQuantized),
    refused("quantize_moe_experts", kQuantized),
    refused("model_quantization_config", kQuantized),
    refused("qat", "quantization-aware training"),
    refused("batch_flattening", "batches without padding"),
    refused("multipack_real_batches", kPacking),
    refused("curriculum_sampling", "curriculum sampling"),
    refused("use_pose", "PoSE"),
    refused("sequence_parallel_degree", kOtherParallelism, "1"),
    refused("context_parallel_size", kOtherParallelism, "1"),
    refused("tensor_parallel_size", kOtherParallelism, "1"),
    refused("deepcompile", "DeepCompile"),
    refused("xformers_attention", kAttention),
    refused("flex_attention", kAttention),
    refused("sage_attention", kAttention),
    refused("s2_attention", kAttention),
    refused("large_head_attention", kAttention, "sdpa"),
    refused("flash_attn_d512", kAttention),
    refused("sdpa_varlen", kAttention),
    refused("gemma4_hybrid_attn_impl", kAttention),
    refused("flash_attn_cross_entropy", kKernels),
    refused("flash_attn_rms_norm", kKernels),
    refused("flash_attn_fuse_mlp", kKernels),
    refused("flash_optimum", kKernels),
    refused("fused_attn_kernel", kKernels),
    refused("use_kernels", "kernels of the hub"),
    honoured("experts_implementation", "experts", kSays<&Request::experts>),
    refused("llama4_linearized_experts", "another way to run experts"),
    refused("tiled_mlp", "tiled MLPs"),
    refused("chunked_cross_entropy", "axolotl's chunked loss"),
    refused("use_eaft", kLoss),
    refused("scaling_softmax", kAttention),
    refused("torch_compile", kCompile, "auto"),
    refused("torch_compile_backend", kCompile),
    refused("torch_compile_mode", kCompile),
    refused("torch_compile_options", kCompile),
    refused("selective_checkpointing", "axolotl's selective checkpointing"),
    choice(honoured("activation_offloading", "activation_offloading", kSays<&Request::activation_offloading>,
                    Reading::Offloading),
           "legacy|disk|hidden_states"),
    refused("layer_offloading", "layer offloading"),
    refused("ple_cpu_offload", "layer offloading"),
    refused("fp8", kAxolotlFp8),
    refused("fp8_config", kAxolotlFp8),
    refused("fp8_enable_fsdp_float8_all_gather", kAxolotlFp8),
    refused("float16", "axolotl's float16"),
    refused("float32", "axolotl's float32"),
    refused("fp32_norms", "norms in fp32"),
    refused("fp32_norm_classes", "norms in fp32"),
    refused("embeddings_skip_upcast", "embeddings of another dtype"),
    refused("dpo_use_weighting", "weighted pairs"),
    refused("dpo_padding_free", "pairs without padding"),
    refused("dpo_use_liger_kernel", "Liger's loss of pairs"),
    refused("precompute_ref_log_probs", "a reference that is asked beforehand, by axolotl"),
    refused("process_reward_model", "reward modelling of steps"),
    refused("num_labels", "classification", "1"),
    refused("ebft", kPreference),
    refused("trainer_cls", "another trainer"),
    honoured("plugins", "liger_kernels", kOther<&ForeignInput::plugins>),
    honoured("unfrozen_parameters", "freeze", kOther<&ForeignInput::trained_names>),
    honoured("resize_token_embeddings_to_32x", "compared with the model's words", kOther<&ForeignInput::by_32>),
    refused("shrink_embeddings", kVocabulary),
    refused("mean_resizing_embeddings", kVocabulary),
    refused("tokens", kAddedTokens),
    refused("added_tokens_overrides", kAddedTokens),
    refused("fix_untrained_tokens", "tokens that are initialised anew"),
    refused("lora_target_parameters", "adapters on parameters"),
    refused("lora_rank_pattern", "adapters of several ranks"),
    refused("lora_alpha_pattern", "adapters of several scales"),
    refused("lora_on_cpu", "adapters on the CPU"),
    refused("lora_model_dir", "adapters that are loaded"),
    refused("peft", "LoftQ"),
    refused("peft_layers_to_transform", "adapters on some layers"),
    refused("peft_layers_pattern", "adapters on some layers"),
    refused("peft_layer_replication", "repeated layers"),
    refused("peft_trainable_token_indices", "trained tokens"),
    refused("peft_ensure_weight_tying", "adapters on tied weights"),
    refused("relora", "ReLoRA"),
    refused("use_onebitllms", "BitNet"),
    refused("neftune_noise_alpha", "NEFTune"),
    refused("noisy_embedding_alpha", "NEFTune"),
    refused("optim_args", "arguments of an optimizer"),
    refused("optim_target_modules", "GaLore"),
    refused("loraplus_lr_ratio", "LoRA+, whose parameter groups are its own"),
    refused("lr_groups", "groups of learning rates"),
    refused("embedding_lr", "groups of learning rates"),
    refused("embedding_lr_scale", "groups of learning rates"),
    refused("lisa_step_interval", kLisa),
    refused("lisa_n_layers", kLisa),
    refused("torch_empty_cache_steps", "emptying the cache"),
    refused("gc_steps", "emptying the cache"),
    refused("device_map", "a map of devices", "auto"),
    refused("max_memory", "a map of devices"),
    refused("gpu_memory_limit", "a limit of memory (say --capacity)"),
    refused("overrides_of_model_config", "another configuration than the model's own"),
    refused("overrides_of_model_kwargs", "another configuration than the model's own"),
    // What they are called in files (utils/schemas/deprecated.py, RemappedParameters).
    refused("model_config", "another configuration than the model's own"),
    refused("model_kwargs", "another configuration than the model's own"),
    refused("rope_scaling", "another scaling of positions than the model's own"),
    refused("base_model_config", "another configuration than the model's own"),
    refused("cls_model_config", "another class than the model's own"),
    refused("batch_size", "the old key batch_size (say gradient_accumulation_steps)"),
    refused("max_packed_sequence_len", kPacking),
    // What type_of_model is called in files (utils/schemas/model.py, validation_alias).
    honoured("model_type", "loss", kOther<&ForeignInput::model_class>),
    honoured("liger_rope", "liger_kernels", kOther<&ForeignInput::liger_rope>),
    honoured("liger_rms_norm", "liger_kernels", kOther<&ForeignInput::liger_norms>),
    honoured("liger_layer_norm", "liger_kernels", kOther<&ForeignInput::liger_layer_norms>),
    honoured("liger_glu_activation", "liger_kernels", kOther<&ForeignInput::liger_gates>),
    honoured("liger_swiglu", "liger_kernels", kOther<&ForeignInput::liger_gates>),
    honoured("liger_fused_linear_cross_entropy", "loss", kOther<&ForeignInput::liger_loss>),
    refused("liger_rms_norm_gated", "Liger's gated norms"),
    refused("liger_cross_entropy", "Liger's loss over whole logits"),
    refused("liger_use_token_scaling", "Liger's loss with a weight for each token"),
    refused("liger_kernel_impl", "another backend of Liger's"),
    honoured("cut_cross_entropy", "loss", kOther<&ForeignInput::cut_loss>),
    refused("use_scattermoe", "experts of axolotl's plugin for kernels"),
    refused("use_sonicmoe", "experts of axolotl's plugin for kernels"),
    refused("expert_parallel_size", kOtherParallelism, "1"),
    honoured("freeze_mm_modules", "freeze", kOther<&ForeignInput::freeze_shown>),
    refused("use_ray", "Ray"),
    refused("reinit_weights", "weights that are made anew"),
    refused("torchdistx_path", "torchdistx"),
};

// Of its plugins (integrations/*/args.py).
constexpr Names kAxolotlPlugins[] = {
    {"a diffusion of axolotl's plugin", "diffusion"},
    {"routers of axolotl's plugin", "dense_mixer"},
    {"gradients of axolotl's plugin", "grokfast_alpha grokfast_lamb"},
    {"a remote trainer", "hatchery"},
    {"distillation by axolotl's plugin", "kd_trainer kd_online_server kd_online_server_base_url"},
    {"kernels of axolotl's plugin",
     "expert_backend nonexpert_quantization moe_grouped_backend moe_dequant_chunk_size moe_bnb_fast use_dsv4_kernels "
     "use_glm_dsa_kernels dsv4_fp8_nonexpert_mode dsv4_fp8_lora_kernel dsv4_shared_mlp_lora_kernel dsv4_bf16_all "
     "dsv4_fp4_grouped_mode gemma4_fp8_nonexpert gemma4_nf4_nonexpert nvfp4_merge_aware nvfp4_merge_aware_start_step"},
    {"a sparse or compressed model", "llmcompressor"},
    {"MoRA", "mora"},
    {"a trainer that generates", "nemo_gym_enabled"},
    {"parameters that Spectrum chooses", "spectrum_top_fraction"},
};

constexpr Names kAxolotlInert[] = {
    {"axolotl's schema has no such key of fsdp_config, and drops it: FSDP1 is FULL_SHARD, its gathers are limited, and "
     "nothing is gathered ahead",
     "fsdp_config.sharding_strategy fsdp_config.fsdp_sharding_strategy fsdp_config.limit_all_gathers "
     "fsdp_config.fsdp_limit_all_gathers fsdp_config.forward_prefetch fsdp_config.fsdp_forward_prefetch "
     "fsdp_config.backward_prefetch fsdp_config.fsdp_backward_prefetch"},
    {"it is of earlier releases: axolotl's schema has no such key, and drops it",
     "gptq_groupsize gptq_model_v1 gptq_disable_exllama base_model_ignore_patterns sample_packing_seq_len_multiplier"},
    {"axolotl hands it to nobody: the policy is that of bf16 and fp16",
     "fsdp_config.mixed_precision_policy fsdp_config.fsdp_mixed_precision_policy"},
    {"it is for what is saved when training is over",
     "fsdp_final_state_dict_type fsdp_config.final_state_dict_type fsdp_config.fsdp_final_state_dict_type"},
    {kData,
     "datasets test_datasets pretraining_dataset shuffle_merged_datasets shuffle_before_merging_datasets "
     "dataset_prepared_path dataset_shard_num dataset_shard_idx skip_prepare_dataset num_dataset_shards_to_save "
     "dataset_processes dataset_num_proc dataset_exact_deduplication dataset_keep_in_memory dataloader_pin_memory "
     "dataloader_num_workers dataloader_prefetch_factor dataloader_drop_last accelerator_config remove_unused_columns "
     "push_dataset_to_hub excess_length_strategy min_sample_len max_prompt_len pad_to_sequence_len "
     "pad_to_multiple_of group_by_length val_set_size streaming streaming_multipack_buffer_size train_on_inputs "
     "role_boundaries chat_template chat_template_jinja chat_template_kwargs eot_tokens default_system_message "
     "total_num_tokens total_supervised_tokens pretraining_sample_concatenation preprocess_iterable is_preprocess"},
    {"it says how text becomes tokens",
     "tokenizer_config tokenizer_type tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common "
     "tokenizer_save_jinja_files special_tokens processor_type processor_kwargs"},
    {"it says how pictures are made larger or smaller", "image_resize_algorithm"},
    {kOnlyLogs,
     "debug logging_steps use_tensorboard profiler_steps profiler_steps_start include_tokens_per_second include_tkps "
     "use_mlflow mlflow_tracking_uri mlflow_experiment_name mlflow_run_name hf_mlflow_log_artifacts use_wandb "
     "wandb_project wandb_name wandb_run_id wandb_mode wandb_entity wandb_watch wandb_log_model use_comet "
     "comet_api_key comet_workspace comet_project_name comet_experiment_key comet_mode comet_online "
     "comet_experiment_config use_trackio trackio_project_name trackio_run_name trackio_space_id use_otel_metrics "
     "otel_metrics_host otel_metrics_port loss_watchdog_threshold loss_watchdog_patience"},
    {kFiles,
     "output_dir save_steps saves_per_epoch save_strategy save_total_limit save_first_step save_only_model "
     "save_safetensors resume_from_checkpoint auto_resume_from_checkpoints load_best_model_at_end hub_model_id "
     "hub_strategy hub_revision hf_use_auth_token axolotl_config_path revision_of_model model_revision "
     "trust_remote_code "
     "low_cpu_mem_usage type_of_model merge_lora merge_method dynamic_checkpoint strict is_falcon_derived_model "
     "is_llama_derived_model is_mistral_derived_model is_qwen_derived_model experimental_skip_move_to_device "
     "quantization"},
    {kSchedule,
     "eta_min num_epochs max_steps warmup_steps warmup_ratio lr_scheduler lr_scheduler_kwargs lr_quadratic_warmup "
     "lr_div_factor cosine_min_lr_ratio cosine_constant_lr_ratio loraplus_lr_embedding adam_beta3 adam_epsilon2 "
     "early_stopping_patience jagged_restart_steps jagged_restart_warmup_steps jagged_restart_anneal_steps dion_lr "
     "dion_momentum"},
    {kEvaluation,
     "eval_steps evals_per_epoch eval_strategy evaluation_strategy eval_batch_size eval_sample_packing "
     "eval_sequence_len eval_table_size eval_max_new_tokens do_causal_lm_eval eval_causal_lm_metrics do_bench_eval "
     "bench_dataset bench_split metric_for_best_model greater_is_better generate_samples num_generation_samples "
     "generation_max_new_tokens generation_temperature generation_top_p generation_top_k generation_prompt_ratio "
     "generation_do_sample"},
    {"it is for a chat in the browser",
     "gradio_title gradio_share gradio_server_name gradio_server_port gradio_max_new_tokens gradio_temperature"},
    {kCommunication,
     "device world_size local_rank ddp ddp_timeout ring_attn_func "
     "heads_k_stride ray_run_name ray_num_workers resources_per_worker gc_collect_steps"},
    {kRandom, "seed"},
    {kOnlyLogs,
     "use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace "
     "swanlab_api_key swanlab_log_model swanlab_web_host swanlab_api_host swanlab_lark_webhook_url swanlab_lark_secret "
     "swanlab_log_completions swanlab_completion_log_interval swanlab_completion_max_buffer"},
    {kEvaluation, "lm_eval_tasks lm_eval_batch_size lm_eval_post_train lm_eval_model"},
    {"it needs kd_trainer",
     "kd_ce_alpha kd_alpha kd_temperature kd_beta kd_normalize_topk kd_online_topk kd_online_timeout "
     "kd_temperature_min"},
    {"it needs nemo_gym_enabled",
     "nemo_gym_dir nemo_gym_auto_clone nemo_gym_config_paths nemo_gym_head_port nemo_gym_server_timeout "
     "nemo_gym_verify_timeout nemo_gym_run_timeout nemo_gym_datasets nemo_gym_auto_start nemo_gym_model_name "
     "nemo_gym_multi_turn nemo_gym_max_turns"},
    {"it needs expert_parallel_size",
     "expert_parallel_backend expert_parallel_num_nvl_bytes expert_parallel_num_rdma_bytes "
     "expert_parallel_token_capacity expert_parallel_fallback_on_unsupported"},
    {"it needs spectrum_top_fraction", "spectrum_model_name"},
    {"TF32 changes how products are rounded, no buffer", "tf32"},
    {"it chooses the adapters' first values", "peft_init_lora_weights lora_fan_in_fan_out"},
    {kNeedsPacking,
     "sample_packing_group_size sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method "
     "sample_packing_eff_est pretrain_multipack_buffer_size pretrain_multipack_attn"},
    {kNeedsPreference, "trl vllm dpo_norm_loss dpo_generate_during_eval dpo_use_logits_to_keep rpo_alpha"},
    {"a factor of the loss changes no size",
     "dpo_label_smoothing dpo_loss_weights dpo_beta rl_beta orpo_alpha simpo_gamma kto_desirable_weight "
     "kto_undesirable_weight"},
    {kNeedsPose, "pose_split_on_token_ids pose_max_context_len pose_num_chunks"},
    {kNeedsBitsAndBytes, "qlora_sharded_model_loading model_quantization_config_kwargs"},
    {"it needs relora", "relora_prune_ratio relora_prune_method relora_cpu_offload"},
    {"it needs lisa_step_interval", "lisa_layers_attribute"},
    {"it needs chunked_cross_entropy", "chunked_cross_entropy_num_chunks"},
    {"it needs use_eaft", "eaft_alpha eaft_k"},
    {"it needs tiled_mlp", "tiled_mlp_num_shards tiled_mlp_use_original_mlp"},
    {"it needs flex_attention", "flex_attn_compile_kwargs"},
    {"it needs scaling_softmax", "scaling_softmax_factor scaling_softmax_bias"},
    {"it needs an optimizer of that name",
     "dion_rank_fraction dion_rank_multiple_of qgalore_rank qgalore_update_proj_gap qgalore_scale qgalore_proj_type "
     "qgalore_proj_quant qgalore_proj_bits qgalore_proj_group_size qgalore_cos_threshold qgalore_gamma_proj "
     "qgalore_queue_size"},
};

}  // namespace

std::vector<DialectKey> axolotl_keys() {
  std::vector<DialectKey> keys;
  append(keys, kAxolotlHonoured);
  append(keys, kAxolotlSharding);
  append(keys, kAxolotlRefused);
  append(keys, refused_keys(kAxolotlPlugins));
  append(keys, inert_keys(kAxolotlInert));
  return keys;
}

}  // namespace dsplan::detail
