// LLaMA-Factory's arguments (llamafactory 0.9.5, hparams/*.py); its training arguments are transformers' Seq2Seq ones.
#include "core/dialects/dialects.h"
#include "core/dialects/reasons.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kPpo = "PPO";
constexpr std::string_view kMultimodal = "it is for images, video and sound; a language model has none";
constexpr std::string_view kInference = "it is for generating text, not for training";
constexpr std::string_view kExport = "it is for exporting a model";
constexpr std::string_view kRates = "learning rates change no size";
constexpr std::string_view kNeedsStage = "it needs a stage or a loss that is refused";
constexpr std::string_view kNeedsQuantizationBit = "it needs quantization_bit";

constexpr DialectKey kFactoryRows[] = {
    honoured("model_name_or_path", "MODEL", kOther<&ForeignInput::model>),
    choice(honoured("finetuning_type", "lora", kOther<&ForeignInput::adapters>, Reading::Method),
           "lora|full|freeze|oft"),
    honoured("lora_rank", "lora", kOther<&ForeignInput::lora_r>),
    honoured("lora_alpha", "lora", kOther<&ForeignInput::lora_alpha>),
    honoured("lora_dropout", "lora", kOther<&ForeignInput::lora_dropout>),
    honoured("lora_target", "lora", kOther<&ForeignInput::lora_targets>, Reading::Targets),
    honoured("additional_target", "lora", kOther<&ForeignInput::lora_saved>, Reading::Targets),
    honoured("use_rslora", "lora", kOther<&ForeignInput::lora_rank_stabilized>),
    honoured("use_dora", "lora", kOther<&ForeignInput::lora_dora>),
    honoured("pure_bf16", "dtype", kOther<&ForeignInput::pure_bf16>),
    honoured("freeze_vision_tower", "freeze", kOther<&ForeignInput::freeze_tower>),
    honoured("freeze_multi_modal_projector", "freeze", kOther<&ForeignInput::freeze_projector>),
    honoured("freeze_language_model", "freeze", kOther<&ForeignInput::freeze_language>),
    honoured("image_max_pixels", "image_size", kOther<&ForeignInput::image_pixels>),
    honoured("cutoff_len", "seq", kSays<&Request::seq>),
    honoured("model_max_length", "seq", kSays<&Request::seq>),
    choice(honoured("flash_attn", "attention", kSays<&Request::attention>, Reading::Attention),
           "auto|disabled|sdpa|fa2|fa3"),
    honoured("disable_gradient_checkpointing", "checkpoint", kTrainer<&TrainingArguments::gradient_checkpointing>,
             Reading::NoCheckpointing),
    honoured("use_reentrant_gc", "checkpoint_impl", kSays<&Request::checkpoint_impl>, Reading::Reentrant),
    choice(honoured("stage", "loss", kOther<&ForeignInput::trainer>), "pt|sft|rm|ppo|dpo|kto"),
    choice(honoured("pref_loss", "loss", kOther<&ForeignInput::pair_loss>), "sigmoid|hinge|ipo|kto_pair|orpo|simpo"),
    honoured("do_train", "whether anything is trained", kOther<&ForeignInput::trains>),
    honoured("quantization_bit", "quantization", kOther<&ForeignInput::bits>),
    choice(honoured("quantization_type", "quantization", kOther<&ForeignInput::bits_kind>), "nf4|fp4"),
    honoured("double_quantization", "double_quant", kOther<&ForeignInput::bits_nested>),
    refused("quantization_method", "another quantization than bitsandbytes'", "bnb"),
    refused("adapter_name_or_path", "adapters that are loaded"),
    refused("resize_vocab", "a resized vocabulary"),
    refused("add_tokens", kAddedTokens),
    refused("add_special_tokens", kAddedTokens),
    refused("new_special_tokens_config", kAddedTokens),
    refused("rope_scaling", "another scaling of positions than the model's own"),
    refused("shift_attn", "shifted sparse attention"),
    refused("mixture_of_depths", "mixture of depths"),
    refused("use_unsloth", "Unsloth"),
    refused("use_unsloth_gc", "Unsloth's checkpointing"),
    honoured("enable_liger_kernel", "liger_kernels", kSays<&Request::liger_kernels>, Reading::Liger),
    refused("moe_aux_loss_coef", "the router's auxiliary loss"),
    refused("upcast_layernorm", "norms in fp32"),
    refused("upcast_lmhead_output", "a head whose output is cast to fp32"),
    refused("use_v1_kernels", "LLaMA-Factory's own kernels"),
    refused("train_from_scratch", "training from scratch"),
    refused("use_kt", "KTransformers"),
    honoured("packing", "seq", kOther<&ForeignInput::packs>),
    refused("neat_packing", "packed sequences that see nothing of each other"),
    refused("use_llama_pro", "LLaMA Pro"),
    refused("use_adam_mini", "Adam-mini"),
    refused("use_galore", "GaLore"),
    refused("use_apollo", "APOLLO"),
    refused("use_badam", "BAdam"),
    refused("use_muon", "LLaMA-Factory's Muon"),
    refused("loraplus_lr_ratio", "LoRA+, whose parameter groups are its own"),
    refused("use_mca", "Megatron-Core"),
    refused("use_hyper_parallel", "HyperParallel"),
    refused("hyper_parallel_args", "HyperParallel"),
    refused("use_dft_loss", "another loss than the model's own"),
    refused("use_asft_loss", "another loss than the model's own"),
    refused("use_eaft_loss", "another loss than the model's own"),
    refused("fp8", "fp8 training"),
    refused("ref_model", kPreference),
    refused("reward_model", kPpo),
    refused("pref_ftx", "a supervised part of a loss of pairs"),
    refused("pref_bco_weight", "a BCO part of a loss of pairs"),
    refused("ld_alpha", "LD-DPO"),
    refused("device_map", "a map of devices", "auto"),
};

// Of mcore_adapter's training arguments and of Megatron Bridge's, which `llamafactory-cli train` reads in the same file
// where USE_MCA or USE_MBRIDGE is set (examples/megatron, examples/megatron_bridge).
constexpr Names kFactoryMegatron[] = {
    {"Megatron-Core",
     "tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size "
     "context_parallel_size expert_model_parallel_size sequence_parallel use_distributed_optimizer "
     "overlap_param_gather overlap_grad_reduce bias_activation_fusion apply_rope_fusion masked_softmax_fusion "
     "cross_entropy_loss_fusion moe_grouped_gemm moe_token_dispatcher_type recompute_granularity recompute_method "
     "recompute_num_layers mixed_precision use_packed_sequences megatron_pretrained_checkpoint export_hf_on_finish "
     "extra_config"},
};

constexpr Names kFactoryInert[] = {
    {kData,
     "template dataset eval_dataset dataset_dir media_dir val_size max_samples overwrite_cache "
     "preprocessing_num_workers preprocessing_batch_size streaming buffer_size mix_strategy interleave_probs "
     "tokenized_path data_shared_file_system disable_shuffling ignore_pad_token_for_loss train_on_prompt mask_history "
     "tool_format default_system enable_thinking preserve_thinking block_diag_attn"},
    {kTokens, "use_fast_tokenizer split_special_tokens init_special_tokens"},
    {kMultimodal,
     "image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels "
     "video_fps video_maxlen use_audio_in_video audio_sampling_rate"},
    {kInference,
     "infer_backend infer_dtype offload_folder use_kv_cache vllm_maxlen vllm_gpu_util vllm_enforce_eager "
     "vllm_max_lora_rank vllm_config sglang_maxlen sglang_mem_fraction sglang_tp_size sglang_config "
     "sglang_lora_backend do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty "
     "length_penalty skip_special_tokens eval_num_beams"},
    {kExport,
     "export_dir export_size export_device export_quantization_bit export_quantization_dataset "
     "export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id"},
    {kOnlyLogs,
     "plot_loss compute_accuracy include_effective_tokens_per_second print_param_status use_swanlab swanlab_project "
     "swanlab_workspace swanlab_run_name swanlab_mode swanlab_api_key swanlab_logdir swanlab_lark_webhook_url "
     "swanlab_lark_secret enable_torch_profiler profiler_output_dir profiler_wait_steps profiler_warmup_steps "
     "profiler_active_steps profiler_repeat profiler_record_shapes profiler_profile_memory profiler_with_stack "
     "profile_modules early_stopping_steps eval_on_each_dataset"},
    {kFiles,
     "cache_dir model_revision hf_hub_token ms_hub_token om_hub_token trust_remote_code low_cpu_mem_usage "
     "adapter_folder create_new_adapter"},
    {kRates, "loraplus_lr_embedding"},
    {"it chooses the adapters' first values", "pissa_init pissa_iter pissa_convert"},
    {kNeedsQuantizationBit, "quantization_device_map"},
    {kNeedsStage,
     "ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model_adapters "
     "ref_model_quantization_bit reward_model_adapters reward_model_quantization_bit reward_model_type"},
    {"a factor of the loss changes no size",
     "pref_beta dpo_label_smoothing kto_chosen_weight kto_rejected_weight simpo_gamma"},
    {"it needs finetuning_type: freeze", "freeze_trainable_layers freeze_trainable_modules freeze_extra_modules"},
    {"it needs finetuning_type: oft", "module_dropout oft_rank oft_block_size oft_target"},
    {"it needs use_galore",
     "galore_target galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise"},
    {"it needs use_apollo",
     "apollo_target apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type "
     "apollo_layerwise apollo_scale_front"},
    {"it needs use_badam",
     "badam_mode badam_start_block badam_switch_mode badam_switch_interval badam_update_ratio badam_mask_mode "
     "badam_verbose"},
    {"it needs a loss of its own", "asft_alpha eaft_alpha"},
    {"it needs fp8", "fp8_backend fp8_enable_fsdp_float8_all_gather"},
    {"it needs use_kt",
     "kt_weight_path kt_expert_checkpoint_path kt_use_lora_experts kt_lora_expert_num "
     "kt_lora_expert_intermediate_size kt_cpu_activation kt_config kt_non_expert_weight_path"},
    {"it says how ranks find each other", "ray_num_workers ray_init_kwargs master_addr master_port"},
    {"LLaMA-Factory sets it itself from bf16, fp16 and pure_bf16", "compute_dtype"},
};

}  // namespace

std::vector<DialectKey> llama_factory_keys() {
  std::vector<DialectKey> keys;
  append(keys, kFactoryRows);
  append(keys, refused_keys(kFactoryMegatron));
  append(keys, inert_keys(kFactoryInert));
  std::vector<DialectKey> trainers = trainer_keys();
  std::erase_if(trainers, [](const DialectKey& key) { return key.path == "do_train"; });
  append(keys, trainers);
  return keys;
}

}  // namespace dsplan::detail
