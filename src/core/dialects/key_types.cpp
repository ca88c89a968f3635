// Of which type the values of inert keys are, by the projects' own annotations. Written by
// tools/oracles/dialect_types.py.
#include "core/dialects/dialects.h"

namespace dsplan::detail {
namespace {

constexpr Names kTypesOfTrainer[] = {
    {"=end|every_save|checkpoint|all_checkpoints", "hub_strategy"},
    {"=linear|cosine|cosine_with_restarts|polynomial|constant|constant_with_warmup|inverse_sqrt|reduce_lr_on_plateau|"
     "cosine_with_min_lr|cosine_warmup_with_min_lr|warmup_stable_decay|greedy",
     "lr_scheduler_type"},
    {"=no|steps|epoch", "eval_strategy logging_strategy"},
    {"=no|steps|epoch|best", "save_strategy"},
    {"b",
     "average_tokens_across_devices batch_eval_metrics dataloader_drop_last dataloader_in_order "
     "dataloader_persistent_workers dataloader_pin_memory disable_tqdm do_eval do_predict do_train "
     "enable_jit_checkpoint eval_do_concat_batches eval_on_start eval_use_gather_object greater_is_better "
     "group_by_length hub_always_push hub_private_repo ignore_data_skip include_inputs_for_metrics "
     "include_tokens_per_second jit_mode_eval load_best_model_at_end log_on_each_node logging_first_step "
     "logging_nan_inf_filter overwrite_output_dir prediction_loss_only push_to_hub remove_unused_columns "
     "restore_callback_states_from_checkpoint save_on_each_node save_only_model save_safetensors skip_memory_metrics "
     "tf32 tpu_metrics_debug use_legacy_prediction_loop"},
    {"bs", "include_num_input_tokens_seen trackio_static_space_id"},
    {"ds", "lr_scheduler_kwargs"},
    {"f", "eval_delay eval_steps logging_steps num_train_epochs save_steps warmup_ratio"},
    {"fi", "warmup_steps"},
    {"i",
     "data_seed dataloader_num_workers dataloader_prefetch_factor ddp_timeout eval_accumulation_steps local_rank "
     "max_steps past_index per_device_eval_batch_size per_gpu_eval_batch_size save_total_limit seed"},
    {"l", "include_for_metrics label_names"},
    {"ls", "debug report_to"},
    {"s",
     "dataloader_multiprocessing_context ddp_backend fp16_opt_level hub_model_id hub_revision hub_token "
     "length_column_name log_level log_level_replica logging_dir metric_for_best_model output_dir project "
     "push_to_hub_model_id push_to_hub_organization push_to_hub_token ray_scope resume_from_checkpoint run_name "
     "trackio_bucket_id trackio_space_id train_sampling_strategy"},
};

constexpr Names kTypesOfTrl[] = {
    {"b",
     "assistant_only_loss completion_only_loss dataset_streaming eval_packing ignore_bias_buffers shuffle_dataset "
     "streaming trust_remote_code"},
    {"ds", "dataset_kwargs lr_scheduler_kwargs"},
    {"f", "discopop_tau f_alpha_divergence_coef logging_steps ref_model_mixup_alpha test_split_size"},
    {"i", "dataset_num_proc ref_model_sync_steps"},
    {"is", "pad_to_multiple_of"},
    {"l", "datasets"},
    {"s",
     "dataset_config dataset_name dataset_test_split dataset_text_field dataset_train_split eos_token model_revision "
     "pad_token train_sampling_strategy truncation_mode"},
};

constexpr Names kTypesOfFactory[] = {
    {"=adjacent|scatter", "badam_mask_mode"},
    {"=ascending|descending|random|fixed", "badam_switch_mode"},
    {"=auto", "quantization_device_map"},
    {"=auto|float16|bfloat16|float32", "infer_dtype"},
    {"=channel|tensor", "apollo_scale_type"},
    {"=cloud|local", "swanlab_mode"},
    {"=concat|interleave_under|interleave_over|interleave_once", "mix_strategy"},
    {"=cpu|auto", "export_device"},
    {"=layer|ratio", "badam_mode"},
    {"=lora|full|api", "reward_model_type"},
    {"=noise_init|desc_init|desc_init_w_noise", "init_special_tokens"},
    {"=std|reverse_std|right|left|full", "galore_proj_type"},
    {"=std|right|left", "apollo_proj_type"},
    {"=svd|random", "apollo_proj"},
    {"=triton|flashinfer", "sglang_lora_backend"},
    {"b",
     "apollo_layerwise apollo_scale_front block_diag_attn compute_accuracy create_new_adapter crop_to_patches "
     "data_shared_file_system disable_shuffling do_sample enable_thinking enable_torch_profiler eval_on_each_dataset "
     "export_legacy_format fp8_enable_fsdp_float8_all_gather galore_layerwise ignore_pad_token_for_loss "
     "image_do_pan_and_scan include_effective_tokens_per_second kt_use_lora_experts low_cpu_mem_usage mask_history "
     "overwrite_cache overwrite_output_dir pissa_convert pissa_init plot_loss ppo_score_norm ppo_whiten_rewards "
     "preserve_thinking print_param_status profiler_profile_memory profiler_record_shapes profiler_with_stack "
     "skip_special_tokens split_special_tokens streaming train_on_prompt trust_remote_code use_audio_in_video "
     "use_fast_tokenizer use_kv_cache use_swanlab vllm_enforce_eager"},
    {"ds", "ray_init_kwargs sglang_config vllm_config"},
    {"f",
     "apollo_scale asft_alpha badam_update_ratio dpo_label_smoothing eaft_alpha galore_scale kto_chosen_weight "
     "kto_rejected_weight length_penalty loraplus_lr_embedding module_dropout ppo_target pref_beta repetition_penalty "
     "sglang_mem_fraction simpo_gamma temperature top_p val_size video_fps vllm_gpu_util"},
    {"i",
     "apollo_rank apollo_update_interval audio_sampling_rate badam_start_block badam_switch_interval badam_verbose "
     "buffer_size early_stopping_steps eval_num_beams export_quantization_bit export_quantization_maxlen "
     "export_quantization_nsamples export_size freeze_trainable_layers galore_rank galore_update_interval "
     "image_min_pixels kt_lora_expert_intermediate_size kt_lora_expert_num max_length max_new_tokens max_samples "
     "num_beams oft_block_size oft_rank pissa_iter ppo_buffer_size ppo_epochs preprocessing_batch_size "
     "preprocessing_num_workers profiler_active_steps profiler_repeat profiler_wait_steps profiler_warmup_steps "
     "ray_num_workers ref_model_quantization_bit reward_model_quantization_bit sglang_maxlen sglang_tp_size top_k "
     "video_max_pixels video_maxlen video_min_pixels vllm_max_lora_rank vllm_maxlen"},
    {"s",
     "adapter_folder apollo_target cache_dir dataset dataset_dir default_system eval_dataset export_dir "
     "export_hub_model_id export_quantization_dataset fp8_backend freeze_extra_modules freeze_trainable_modules "
     "galore_target hf_hub_token interleave_probs kt_expert_checkpoint_path kt_weight_path master_addr master_port "
     "media_dir model_revision ms_hub_token offload_folder oft_target om_hub_token profile_modules profiler_output_dir "
     "ref_model_adapters reward_model_adapters swanlab_api_key swanlab_lark_secret swanlab_lark_webhook_url "
     "swanlab_logdir swanlab_project swanlab_run_name swanlab_workspace template tokenized_path tool_format"},
};

constexpr Names kTypesOfFactoryV1[] = {
    {"=auto|float16|float32|bfloat16", "peft_config.infer_dtype"},
    {"=sigmoid|orpo|simpo", "pref_loss"},
    {"b",
     "dist_config.pin_memory peft_config.cast_trainable_params_to_fp32 peft_config.export_legacy_format "
     "quant_config.double_quantization save_ckpt_as_hf trust_remote_code"},
    {"f", "dpo_label_smoothing ld_alpha learning_rate max_grad_norm pref_beta pref_ftx save_epochs simpo_gamma"},
    {"i",
     "batching_workers dist_timeout logging_steps max_new_tokens max_steps num_train_epochs peft_config.export_size "
     "peft_config.freeze_trainable_layers save_steps save_total_limit seed"},
    {"ls", "peft_config.freeze_extra_modules peft_config.freeze_trainable_modules"},
    {"s",
     "cp_mode custom_chat_template dist_config.config_file dist_config.ep_dispatcher eval_dataset output_dir "
     "peft_config.export_hub_model_id quant_config.quantization_type train_dataset"},
};

constexpr Names kTypesOfAxolotl[] = {
    {"=FULL_STATE_DICT|LOCAL_STATE_DICT|SHARDED_STATE_DICT",
     "fsdp_config.final_state_dict_type fsdp_final_state_dict_type"},
    {"=drop|truncate|raise", "excess_length_strategy"},
    {"=legacy|memory_efficient", "merge_method"},
    {"=magnitude|random|reset", "relora_prune_method"},
    {"b",
     "auto_resume_from_checkpoints comet_online dataloader_drop_last dataloader_pin_memory dataset_exact_deduplication "
     "dataset_keep_in_memory ddp do_bench_eval do_causal_lm_eval dpo_generate_during_eval dpo_norm_loss "
     "dpo_use_logits_to_keep eval_sample_packing experimental_skip_move_to_device generate_samples "
     "generation_do_sample gradio_share greater_is_better group_by_length hf_mlflow_log_artifacts hf_use_auth_token "
     "include_tkps include_tokens_per_second is_falcon_derived_model is_llama_derived_model is_mistral_derived_model "
     "is_preprocess is_qwen_derived_model load_best_model_at_end lora_fan_in_fan_out low_cpu_mem_usage "
     "lr_quadratic_warmup merge_lora pad_to_sequence_len preprocess_iterable pretrain_multipack_attn "
     "pretraining_sample_concatenation qgalore_proj_quant qlora_sharded_model_loading relora_cpu_offload "
     "remove_unused_columns sample_packing_sequentially save_first_step save_only_model save_safetensors "
     "shuffle_before_merging_datasets shuffle_merged_datasets skip_prepare_dataset streaming strict "
     "tiled_mlp_use_original_mlp tokenizer_legacy tokenizer_save_jinja_files tokenizer_use_fast "
     "tokenizer_use_mistral_common train_on_inputs trust_remote_code use_comet use_mlflow use_otel_metrics "
     "use_tensorboard use_trackio use_wandb"},
    {"b=auto", "tf32"},
    {"bs", "peft_init_lora_weights"},
    {"d",
     "accelerator_config chat_template_kwargs comet_experiment_config flex_attn_compile_kwargs lr_scheduler_kwargs "
     "model_quantization_config_kwargs processor_kwargs resources_per_worker"},
    {"f",
     "adam_beta3 adam_epsilon2 cosine_constant_lr_ratio cosine_min_lr_ratio dion_lr dion_momentum dion_rank_fraction "
     "dpo_beta dpo_label_smoothing eaft_alpha generation_prompt_ratio generation_temperature generation_top_p "
     "gradio_temperature kto_desirable_weight kto_undesirable_weight loraplus_lr_embedding loss_watchdog_threshold "
     "lr_div_factor num_epochs orpo_alpha qgalore_cos_threshold qgalore_scale relora_prune_ratio rl_beta rpo_alpha "
     "sample_packing_eff_est scaling_softmax_bias scaling_softmax_factor simpo_gamma val_set_size warmup_ratio"},
    {"fi", "eval_steps save_steps"},
    {"i",
     "chunked_cross_entropy_num_chunks dataloader_num_workers dataloader_prefetch_factor dataset_num_proc "
     "dataset_processes dataset_shard_idx dataset_shard_num ddp_timeout dion_rank_multiple_of eaft_k "
     "early_stopping_patience eval_batch_size eval_max_new_tokens eval_sequence_len eval_table_size evals_per_epoch "
     "gc_collect_steps generation_max_new_tokens generation_top_k gradio_max_new_tokens gradio_server_port "
     "heads_k_stride jagged_restart_anneal_steps jagged_restart_steps jagged_restart_warmup_steps local_rank "
     "logging_steps loss_watchdog_patience max_prompt_len max_steps min_sample_len num_dataset_shards_to_save "
     "num_generation_samples otel_metrics_port pad_to_multiple_of pose_max_context_len pose_num_chunks "
     "pretrain_multipack_buffer_size profiler_steps profiler_steps_start qgalore_gamma_proj qgalore_proj_bits "
     "qgalore_proj_group_size qgalore_queue_size qgalore_rank qgalore_update_proj_gap ray_num_workers "
     "sample_packing_bin_size sample_packing_group_size save_total_limit saves_per_epoch seed "
     "streaming_multipack_buffer_size tiled_mlp_num_shards total_num_tokens total_supervised_tokens warmup_steps "
     "world_size"},
    {"l", "eot_tokens eval_causal_lm_metrics pose_split_on_token_ids role_boundaries"},
    {"s",
     "axolotl_config_path bench_dataset bench_split chat_template_jinja comet_api_key comet_experiment_key comet_mode "
     "comet_project_name comet_workspace dataset_prepared_path default_system_message eval_strategy "
     "evaluation_strategy fsdp_config.mixed_precision_policy gradio_server_name gradio_title hub_model_id hub_revision "
     "hub_strategy lisa_layers_attribute lr_scheduler metric_for_best_model mlflow_experiment_name mlflow_run_name "
     "mlflow_tracking_uri otel_metrics_host output_dir processor_type push_dataset_to_hub qgalore_proj_type "
     "ray_run_name resume_from_checkpoint revision_of_model sample_packing_mp_start_method save_strategy "
     "tokenizer_config tokenizer_type trackio_project_name trackio_run_name trackio_space_id type_of_model "
     "wandb_entity wandb_log_model wandb_mode wandb_name wandb_project wandb_run_id wandb_watch"},
};

constexpr Names kTypesOfTorchtitan[] = {
    {"=allgather|alltoall", "parallelism.context_parallel_rotate_method"},
    {"=disabled|async|async_with_pinned_mem", "checkpoint.async_mode"},
    {"=float16|bfloat16|float32", "checkpoint.export_dtype"},
    {"=linear|sqrt|cosine", "lr_scheduler.decay_type"},
    {"=mxfp8", "mx.recipe_name quantize.grouped_mm.mx.recipe_name"},
    {"=standard|deepep", "parallelism.expert_parallel_comm_backend"},
    {"=tensorwise|rowwise|rowwise_with_gw_hp", "float8.recipe_name quantize.linear.float8.recipe_name"},
    {"=triton|cuda|torch", "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice"},
    {"b",
     "activation_checkpoint.debug activation_checkpoint.visualize_memory_budget_pareto checkpoint.enable "
     "checkpoint.enable_checkpoint checkpoint.enable_first_step_checkpoint checkpoint.enable_ft_dataloader_checkpoints "
     "checkpoint.initial_load_in_hf checkpoint.initial_load_in_hf_quantized checkpoint.initial_load_model_only "
     "checkpoint.initial_load_model_weights_only checkpoint.last_save_in_hf checkpoint.last_save_model_only "
     "checkpoint.last_save_model_weights_only checkpoint.load_only debug.deterministic_warn_only "
     "debug.moe_force_load_balance fault_tolerance.should_quantize float8.emulate float8.enable_fsdp_float8_all_gather "
     "float8.force_recompute_fp8_weight_in_bwd float8.precompute_float8_dynamic_scale_for_fsdp job.print_args "
     "job.print_config job.use_for_integration_test memory_estimation.disable_fake_mode metrics.disable_color_printing "
     "metrics.enable_tensorboard metrics.enable_wandb metrics.save_for_all_ranks model.print_after_conversion "
     "mx.use_fp8_dim1_cast_triton_kernel parallelism.disable_loss_parallel "
     "parallelism.pipeline_parallel_expert_parallel_overlap profiling.enable_memory_snapshot "
     "profiling.enable_profiling quantize.linear.float8.emulate quantize.linear.float8.enable_fsdp_float8_all_gather "
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp training.dataloader.persistent_workers "
     "training.dataloader.pin_memory training.gc_debug validation.dataloader.persistent_workers "
     "validation.dataloader.pin_memory validation.enable"},
    {"f",
     "activation_checkpoint.memory_budget fault_tolerance.fragment_update_alpha lr_scheduler.decay_ratio "
     "lr_scheduler.lr_min lr_scheduler.min_lr_factor optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.lr"},
    {"i",
     "checkpoint.interval checkpoint.keep_latest_k checkpoint.load_step comm.init_timeout_seconds comm.trace_buf_size "
     "comm.train_timeout_seconds debug.seed fault_tolerance.fragment_sync_delay fault_tolerance.group_size "
     "fault_tolerance.min_replica_size fault_tolerance.process_group_timeout_ms fault_tolerance.replica_id "
     "fault_tolerance.sync_steps lr_scheduler.total_steps lr_scheduler.warmup_steps metrics.log_freq "
     "parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers "
     "parallelism.pipeline_parallel_layers_per_stage parallelism.pipeline_parallel_microbatch_size "
     "profiling.profile_freq profiling.profiler_active profiling.profiler_warmup training.dataloader.num_workers "
     "training.dataloader.prefetch_factor training.gc_freq training.seed training.steps "
     "validation.dataloader.num_workers validation.dataloader.prefetch_factor validation.freq "
     "validation.local_batch_size validation.seq_len validation.steps"},
    {"l",
     "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns checkpoint.exclude_from_loading "
     "compile.components float8.filter_fqns mx.filter_fqns parallelism.module_fqns_per_model_part "
     "parallelism.pipeline_parallel_split_points quantize.linear.float8.filter_fqns quantize.linear.mx.filter_fqns"},
    {"ls", "quantize.grouped_mm.float8.fqns quantize.grouped_mm.mx.fqns"},
    {"s",
     "activation_checkpoint.determinism_check checkpoint.folder checkpoint.initial_load_path "
     "comm.save_traces_file_prefix comm.save_traces_folder compile.backend fault_tolerance.process_group "
     "fault_tolerance.semi_sync_method job.config_file job.description job.dump_folder job.save_config_file "
     "metrics.save_tb_folder model.hf_assets_path model.tokenizer_path parallelism.context_parallel_load_balancer "
     "parallelism.pipeline_parallel_schedule parallelism.pipeline_parallel_schedule_csv "
     "profiling.save_memory_snapshot_folder profiling.save_traces_folder quantize.linear.mx.recipe_name "
     "training.dataset training.dataset_path validation.dataset validation.dataset_path"},
};

}  // namespace

std::span<const Names> key_types(TypesOf whose) {
  switch (whose) {
    case TypesOf::Trainer: return kTypesOfTrainer;
    case TypesOf::Trl: return kTypesOfTrl;
    case TypesOf::Factory: return kTypesOfFactory;
    case TypesOf::FactoryV1: return kTypesOfFactoryV1;
    case TypesOf::Axolotl: return kTypesOfAxolotl;
    case TypesOf::Torchtitan: return kTypesOfTorchtitan;
  }
  return {};
}

}  // namespace dsplan::detail
