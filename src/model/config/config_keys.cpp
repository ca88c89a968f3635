#include "model/config/config_keys.h"

#include <algorithm>
#include <array>

#include "core/format.h"

namespace dsplan {
namespace {

constexpr KeyEffect kInert = KeyEffect::Inert;
constexpr KeyEffect kGraph = KeyEffect::Graph;
constexpr KeyEffect kChance = KeyEffect::Chance;
constexpr KeyEffect kRefused = KeyEffect::Refused;

constexpr std::string_view kValues = "values of weights, which no byte depends on";
constexpr std::string_view kToken = "which id stands for what; tables have vocab_size rows whatever it is";
constexpr std::string_view kGeneration = "of generation";
constexpr std::string_view kHeads = "of classification heads, which `architectures` would have to name";
constexpr std::string_view kMasked = "of masks in the spectrum, which apply_spec_augment switches on";
constexpr std::string_view kEpsilon = "a number that is added";
constexpr std::string_view kScale = "a factor of the scores";
constexpr std::string_view kRoutingValues = "which experts are chosen and how they are weighed; the shapes stay";
constexpr std::string_view kOwnTraining = "of the training that published it; transformers reads it nowhere";
constexpr std::string_view kNoField = "a field of the publisher's own code; transformers 5 reads it nowhere";
constexpr std::string_view kOldField = "a field of older configuration classes; transformers 5 reads it nowhere";
constexpr std::string_view kNextTokens = "transformers builds no layers for several tokens at once";

// Of transformers' PreTrainedConfig and its older releases.
const std::vector<ConfigKey>& common_keys() {
  static const std::vector<ConfigKey> kRows{
      {"", "model_type", kInert, "", "names the family"},
      {"", "architectures", kInert, "", "judged by what the family builds"},
      {"", "transformers_version", kInert, "", "who wrote the file"},
      {"", "_name_or_path", kInert, "", "where the file came from"},
      {"", "name_or_path", kInert, "", "where the file came from"},
      {"", "_commit_hash", kInert, "", "where the file came from"},
      {"", "auto_map", kInert, "", "classes beside the file, which run with trust_remote_code alone"},
      {"", "torch_dtype", kInert, "", "the stored dtype, which `dtype` names before it"},
      {"", "dtype", kInert, "", "of a part: the stored dtype, which the whole file names"},
      {"", "quantization_config", kRefused, "null", "a quantized part of a model"},
      {"", "per_layer_config", kRefused, "null|{}", "a layer of its own configuration"},
      {"", "pruned_heads", kRefused, "null|{}", "pruned heads"},
      {"", "add_cross_attention", kRefused, "null|false", "cross attention"},
      {"", "cross_attention_hidden_size", kRefused, "null", "cross attention"},
      {"", "tie_encoder_decoder", kRefused, "null|false", "one body for encoder and decoder"},
      {"", "attn_implementation", kRefused, "null|\"sdpa\"", "an attention that the file chooses (--attention does)"},
      {"", "_attn_implementation", kRefused, "null|\"sdpa\"", "an attention that the file chooses (--attention does)"},
      {"", "_attn_implementation_internal", kRefused, "null|\"sdpa\"",
       "an attention that the file chooses (--attention does)"},
      {"", "experts_implementation", kRefused, "null|\"grouped_mm\"",
       "how experts are computed, chosen by the file (--experts does)"},
      {"", "output_hidden_states", kGraph, "null|false", "every layer's output held by the model's"},
      {"", "output_attentions", kGraph, "null|false", "attention weights held by the model's output"},
      {"", "return_dict", kGraph, "null|true", "outputs as a tuple"},
      {"", "use_return_dict", kGraph, "null|true", "outputs as a tuple"},
      {"", "torchscript", kGraph, "null|false", "outputs as TorchScript wants them"},
      {"", "gradient_checkpointing", kGraph, "null|false",
       "checkpointing that the file switches on (--checkpoint does)"},
      {"", "chunk_size_feed_forward", kGraph, "null|0", "a feed-forward in chunks"},
      {"", "is_encoder_decoder", kInert, "", "follows from the family"},
      {"", "is_decoder", kInert, "", "follows from the family"},
      {"", "use_cache", kInert, "", "training passes use_cache=False"},
      {"", "initializer_range", kInert, "", kValues},
      {"", "initializer_factor", kInert, "", kValues},
      {"", "rope_theta", kInert, "", "values of the rotary tables"},
      {"", "rope_parameters", kInert, "", "judged by its rope_type"},
      {"", "rope_scaling", kInert, "", "judged by its rope_type"},
      {"", "original_max_position_embeddings", kInert, "", "values of the rotary tables"},
      {"", "pretraining_tp", kInert, "", kOldField},
      {"", "num_labels", kInert, "", kHeads},
      {"", "id2label", kInert, "", kHeads},
      {"", "label2id", kInert, "", kHeads},
      {"", "problem_type", kInert, "", kHeads},
      {"", "classifier_dropout", kInert, "", kHeads},
      {"", "finetuning_task", kInert, "", kHeads},
      {"", "task_specific_params", kInert, "", kGeneration},
      {"", "bos_token_id", kInert, "", kToken},
      {"", "eos_token_id", kInert, "", kToken},
      {"", "pad_token_id", kInert, "", kToken},
      {"", "sep_token_id", kInert, "", kToken},
      {"", "unk_token_id", kInert, "", kToken},
      {"", "decoder_start_token_id", kInert, "", kToken},
      {"", "eod_token_id", kInert, "", kToken},
      {"", "tokenizer_class", kInert, "", kToken},
      {"", "prefix", kInert, "", kGeneration},
      {"", "cache_implementation", kInert, "", kGeneration},
      {"", "use_bfloat16", kInert, "", "of TensorFlow's models"},
      {"", "tf_legacy_loss", kInert, "", "of TensorFlow's models"},
  };
  return kRows;
}

// What files hold that people publish, and no code of transformers 5 reads.
const std::vector<ConfigKey>& published_keys() {
  static const std::vector<ConfigKey> kRows{
      {"", "unsloth_fixed", kInert, "", "a note of who published it"},
      {"", "unsloth_version", kInert, "", "a note of who published it"},
      {"", "unsloth_optimized", kInert, "", "a note of who published it"},
      {"", "license", kInert, "", "a note of who published it"},
      {"", "model_name", kInert, "", "a note of who published it"},
      {"", "base_model", kInert, "", "a note of who published it"},
      {"", "transformers.js_config", kInert, "", "of a program that only generates"},
      {"", "onnx", kInert, "", "of a program that only generates"},
      {"", "_from_model_config", kInert, "", kGeneration},
      {"", "_attn_implementation_autoset", kInert, "", kOldField},
      {"", "_flash_attn_2_enabled", kInert, "", kOldField},
      {"", "_num_labels", kInert, "", kOldField},
      {"", "output_past", kInert, "", kOldField},
      {"", "xla_device", kInert, "", kOldField},
      {"", "keys_to_ignore_at_inference", kInert, "", kGeneration},
      {"", "num_logits_to_keep", kInert, "", kGeneration},
      {"", "use_flash_attn", kInert, "", kNoField},
      {"", "use_flash_attention", kInert, "", kNoField},
      {"", "flash_attn", kInert, "", kNoField},
      {"", "max_sequence_length", kInert, "", kOwnTraining},
      {"", "max_seq_len", kInert, "", kOwnTraining},
      {"", "model_max_length", kInert, "", kOwnTraining},
      {"", "tokenizer_model_max_length", kInert, "", kToken},
      {"", "tokenizer_padding_side", kInert, "", kToken},
      {"", "pad_token", kInert, "", kToken},
      {"", "bos_token", kInert, "", kToken},
      {"", "eos_token", kInert, "", kToken},
      {"", "chat_template", kInert, "", kToken},
      {"", "initializer_cutoff_factor", kInert, "", kValues},
      {"", "custom_pipelines", kInert, "", "of pipelines, which train nothing"},
  };
  return kRows;
}

// Of the keys that PreTrainedConfig once had for `generate`.
constexpr std::string_view kGenerationKeys[] = {"max_length",
                                                "min_length",
                                                "do_sample",
                                                "early_stopping",
                                                "num_beams",
                                                "num_beam_groups",
                                                "diversity_penalty",
                                                "temperature",
                                                "top_k",
                                                "top_p",
                                                "typical_p",
                                                "repetition_penalty",
                                                "length_penalty",
                                                "no_repeat_ngram_size",
                                                "encoder_no_repeat_ngram_size",
                                                "bad_words_ids",
                                                "num_return_sequences",
                                                "output_scores",
                                                "begin_suppress_tokens",
                                                "suppress_tokens",
                                                "forced_bos_token_id",
                                                "forced_eos_token_id",
                                                "exponential_decay_length_penalty",
                                                "remove_invalid_values",
                                                "return_dict_in_generate"};

// By family: first those up to the mixtures of qwen, then the others.
const std::vector<ConfigKey>& family_keys() {
  static const std::vector<ConfigKey> kRows{
      {"gpt2 gpt_bigcode gptj gpt_neo electra", "summary_type", kInert, "", kHeads},
      {"gpt2 gpt_bigcode gptj gpt_neo electra", "summary_use_proj", kInert, "", kHeads},
      {"gpt2 gpt_bigcode gptj gpt_neo electra", "summary_activation", kInert, "", kHeads},
      {"gpt2 gpt_bigcode gptj gpt_neo electra", "summary_proj_to_labels", kInert, "", kHeads},
      {"gpt2 gpt_bigcode gptj gpt_neo electra", "summary_first_dropout", kInert, "", kHeads},
      {"gpt2 gpt_bigcode", "scale_attn_weights", kInert, "", kScale},
      {"gpt2", "scale_attn_by_inverse_layer_idx", kInert, "", kScale},
      {"gpt2", "reorder_and_upcast_attn", kGraph, "false", "attention scores that are reordered and upcast"},
      {"gpt2 t5", "n_ctx", kInert, "", "n_positions says it"},
      {"t5", "n_positions", kInert, "", "positions are relative"},
      {"llama mistral", "max_window_layers", kInert, "", kNoField},
      {"gpt_bigcode", "attention_softmax_in_fp32", kInert, "", "softmax is in fp32 whatever it says"},
      {"gpt_bigcode", "scale_attention_softmax_in_fp32", kInert, "", "softmax is in fp32 whatever it says"},
      {"gpt_bigcode", "inference_runner", kInert, "", kOldField},
      {"gpt_bigcode", "validate_runner_input", kInert, "", kOldField},
      {"gpt_bigcode", "pre_allocate_kv_cache", kInert, "", kOldField},
      {"gpt_bigcode", "pad_key_length", kInert, "", kOldField},
      {"gpt_bigcode", "max_batch_size", kInert, "", kOldField},
      {"gptj", "rotary", kInert, "", kOldField},
      {"gptj", "scale_attn_weights", kInert, "", "scores are divided whatever it says"},
      {"gpt_neo", "attention_layers", kInert, "", "attention_types says it"},
      {"gpt2", "n_special", kInert, "", kOldField},
      {"gpt2", "predict_special_tokens", kInert, "", kOldField},
      {"gpt2 t5", "output_past", kInert, "", kOldField},
      {"opt", "init_std", kInert, "", kValues},
      {"opt", "layerdrop", kChance, "0|null", "leaves layers out at random"},
      {"opt", "activation_dropout", kInert, "", kOldField},
      {"bloom falcon", "apply_residual_connection_post_layernorm", kGraph, "false", "a residual behind the norm"},
      {"bloom", "slow_but_exact", kGraph, "false", "products in slices"},
      {"bloom", "attention_softmax_in_fp32", kInert, "", kOwnTraining},
      {"bloom", "bias_dropout_fusion", kInert, "", kOwnTraining},
      {"bloom", "masked_softmax_fusion", kInert, "", kOwnTraining},
      {"bloom", "offset_alibi", kInert, "", kOwnTraining},
      {"bloom", "seq_length", kInert, "", kOwnTraining},
      {"bloom", "skip_bias_add", kInert, "", kOwnTraining},
      {"bloom", "skip_bias_add_qkv", kInert, "", kOwnTraining},
      {"bloom", "n_inner", kRefused, "null", "a feed-forward of another width than four times the hidden size"},
      {"phi", "layer_norm_eps", kInert, "", kEpsilon},
      {"gpt_neox", "attention_probs_dropout_prob", kInert, "", "attention_dropout says it"},
      {"gpt_neox", "hidden_dropout_prob", kInert, "", "hidden_dropout says it"},
      {"gpt_neox", "rotary_emb_base", kInert, "", "values of the rotary tables"},
      {"mixtral qwen2_moe qwen3_moe granitemoe granitemoeshared granitemoehybrid qwen3_next gpt_oss olmoe flex_olmo "
       "ernie4_5_moe "
       "minimax_m2 "
       "phimoe qwen3_vl_moe qwen3_5_moe qwen3_5_moe_text granitemoe_swa mellum",
       "router_aux_loss_coef", kInert, "", "a factor of the router's loss, which output_router_logits switches on"},
      {"mixtral minimax_m2", "router_jitter_noise", kGraph, "0|null", "noise on what the router sees"},
      {"qwen3_moe", "sliding_window", kInert, "", "use_sliding_window switches it on"},
      {"qwen3_moe", "max_window_layers", kInert, "",
       "which layers have a window, where use_sliding_window gives them one"},
      {"qwen3_moe", "layer_types", kInert, "", "the model has one mask for all layers"},
      {"mixtral qwen2_moe qwen3_moe granitemoe granitemoeshared granitemoehybrid qwen3_next gpt_oss olmoe flex_olmo "
       "ernie4_5_moe "
       "minimax_m2 "
       "phimoe qwen3_vl_moe qwen3_5_moe qwen3_5_moe_text granitemoe_swa mellum",
       "output_router_logits", kGraph, "false", "a loss of the router's own"},
      {"qwen3_vl_moe", "norm_topk_prob", kInert, "", "weights are divided by their sum whatever it says"},
      {"qwen2", "use_mrope", kGraph, "false", "positions of three dimensions"},
  };
  return kRows;
}

// Decoders of text.
const std::vector<ConfigKey>& later_decoder_keys() {
  static const std::vector<ConfigKey> kRows{
      {"gemma gemma2 gemma3_text", "use_bidirectional_attention", kGraph, "null|false", "attention without order"},
      {"gemma3n_text", "altup_lr_multiplier", kInert, "", kNoField},
      {"gemma3n_text", "query_pre_attn_scalar", kInert, "", kNoField},
      {"gemma4_text", "use_bidirectional_attention", kGraph, "null|\"vision\"", "attention without order"},
      {"gemma", "hidden_activation", kInert, "", "GemmaMLP reads hidden_act"},
      {"gemma2 gemma3_text vaultgemma", "hidden_act", kInert, "", "the feed-forward reads hidden_activation"},
      {"gemma2", "sliding_window_size", kInert, "", "sliding_window says it"},
      {"gemma3_text gemma3n_text", "rope_local_base_freq", kInert, "", "values of the rotary tables"},
      {"phi3", "attention_bias", kInert, "", "Phi3Attention has no biases whatever it says"},
      {"deepseek_v2 glm4_moe_lite", "head_dim", kInert, "", "the rotated part of a head, as qk_rope_head_dim says"},
      {"deepseek_v3 glm4_moe_lite", "topk_method", kInert, "", kRoutingValues},
      {"deepseek_v2", "norm_topk_prob", kInert, "", "the router of this class does not divide"},
      {"deepseek_v2 deepseek_v3 glm4_moe_lite", "scoring_func", kInert, "", kRoutingValues},
      {"deepseek_v2 deepseek_v3", "moe_layer_freq", kRefused, "1", "layers with experts at another distance"},
      {"deepseek_v2 deepseek_v3", "aux_loss_alpha", kInert, "", kOwnTraining},
      {"deepseek_v2 deepseek_v3", "seq_aux", kInert, "", kOwnTraining},
      {"deepseek_v2 deepseek_v3", "ep_size", kInert, "", kOwnTraining},
      {"deepseek_v3 glm4_moe glm4_moe_lite", "num_mtp_layers", kInert, "",
       "transformers builds no multi-token-prediction layers"},
      {"deepseek_v3 glm4_moe glm4_moe_lite", "num_nextn_predict_layers", kInert, "",
       "transformers builds no multi-token-prediction layers"},
      {"llama4_text", "router_jitter_noise", kInert, "", kOldField},
      {"llama4_text", "router_aux_loss_coef", kInert, "", kOldField},
      {"llama4_text hy_v3", "output_router_logits", kGraph, "false", "router logits held by the model's output"},
      {"llama4_text", "for_llm_compressor", kInert, "", kOldField},
      {"ernie4_5_moe", "moe_norm_min", kInert, "", "a bound of values"},
      {"solar_open", "partial_rotary_factor", kRefused, "1", "a part of each head that turns"},
      {"youtu", "embedding_initializer_range", kInert, "", kValues},
      {"minicpm3 mistral4", "head_dim", kInert, "", "the rotated part of a head, as qk_rope_head_dim says"},
      {"starcoder2", "mlp_type", kInert, "", kOldField},
      {"starcoder2", "norm_type", kInert, "", kOldField},
      {"cohere2", "layer_switch", kInert, "", "layer_types or sliding_window_pattern says it"},
      {"cohere2", "order_of_interleaved_layers", kInert, "", kNoField},
      {"cohere2", "position_embedding_type", kInert, "", kNoField},
      {"cohere2", "rotary_pct", kInert, "", kNoField},
      {"cohere2", "use_embedding_sharing", kInert, "", kNoField},
      {"cohere2", "use_gated_activation", kInert, "", kNoField},
      {"cohere2", "use_parallel_block", kInert, "", kNoField},
      {"cohere2", "use_parallel_embedding", kInert, "", kNoField},
      {"phi3", "full_attn_mod", kInert, "", kNoField},
      {"phi3", "interpolate_factor", kInert, "", kNoField},
      {"phi3", "lm_head_bias", kRefused, "false", "a bias of the head"},
      {"phi3", "mlp_bias", kRefused, "false", "biases in the feed-forward"},
      {"smollm3", "max_window_layers", kInert, "", "no_rope_layers says which layers have a window"},
      {"gpt_oss", "initial_context_length", kInert, "", "values of the rotary tables"},
      {"phimoe", "input_jitter_noise", kGraph, "0|null", "noise on what the router sees"},
      {"phimoe", "num_experts_per_tok", kInert, "", "the router draws two whatever it says"},
      {"gpt_oss", "swiglu_limit", kInert, "", "a bound of values"},
  };
  return kRows;
}

// Decoders of which layers have a mixer in the place of attention.
const std::vector<ConfigKey>& mixer_keys() {
  static const std::vector<ConfigKey> kRows{
      {"nemotron_h", "expand", kInert, "", "mamba_num_heads and mamba_head_dim say it"},
      {"nemotron_h", "mamba_proj_bias", kInert, "", "use_bias says it"},
      {"nemotron_h", "attention_bias", kInert, "", "transformers gives attention no biases whatever it says"},
      {"nemotron_h", "n_shared_experts", kInert, "", "moe_shared_expert_intermediate_size says it"},
      {"nemotron_h", "moe_shared_expert_overlap", kInert, "", kOwnTraining},
      {"nemotron_h", "residual_in_fp32", kInert, "", "transformers reads it nowhere"},
      {"nemotron_h", "hidden_dropout", kInert, "", "transformers reads it nowhere"},
      {"nemotron_h", "sliding_window", kInert, "", "transformers reads it nowhere"},
      {"nemotron_h", "tie_word_embeddings", kInert, "", "the class ties nothing whatever it says"},
      {"nemotron_h", "num_logits_to_keep", kInert, "", kGeneration},
      {"nemotron_h", "mamba_ssm_cache_dtype", kInert, "", kGeneration},
      {"nemotron_h", "use_mamba_kernels", kInert, "", "what is installed decides"},
      {"nemotron_h", "time_step_limit", kInert, "", "bounds of values"},
      {"nemotron_h", "time_step_min", kInert, "", "bounds of values"},
      {"nemotron_h", "time_step_max", kInert, "", kValues},
      {"nemotron_h", "time_step_floor", kInert, "", kValues},
      {"nemotron_h", "mamba_expand", kInert, "", "mamba_num_heads and mamba_head_dim say it"},
      {"nemotron_h", "mamba_dt_min", kInert, "", "bounds of values"},
      {"nemotron_h", "mamba_dt_max", kInert, "", kValues},
      {"nemotron_h", "mamba_dt_limit", kInert, "", "bounds of values"},
      {"nemotron_h", "mamba_dt_init_floor", kInert, "", kValues},
      {"nemotron_h", "num_nextn_predict_layers", kInert, "", kNextTokens},
      {"nemotron_h", "mtp_layers_block_type", kInert, "", kNextTokens},
      {"nemotron_h", "mtp_hybrid_override_pattern", kInert, "", kNextTokens},
      {"mamba2", "rescale_prenorm_residual", kInert, "", kValues},
      {"mamba2", "time_step_rank", kInert, "", "which no forward of this class reads"},
      {"mamba2", "time_step_min", kInert, "", kValues},
      {"mamba2", "time_step_max", kInert, "", kValues},
      {"mamba2", "time_step_floor", kInert, "", kValues},
      {"mamba2", "time_step_limit", kInert, "", "bounds of values"},
      {"mamba2", "time_step_init_scheme", kInert, "", kOldField},
      {"mamba2", "time_step_scale", kInert, "", kOldField},
      {"mamba2", "intermediate_size", kInert, "", "expand says it"},
      {"mamba2", "norm_before_gate", kInert, "", "transformers gates first, whatever it says"},
      {"mamba2", "rms_norm", kInert, "", kOldField},
      {"lfm2", "block_dim", kInert, "", kNoField},
      {"lfm2", "block_mlp_init_scale", kInert, "", kNoField},
      {"lfm2", "block_norm_eps", kInert, "", kNoField},
      {"lfm2", "block_out_init_scale", kInert, "", kNoField},
      {"lfm2", "block_use_swiglu", kInert, "", kNoField},
      {"lfm2", "block_use_xavier_init", kInert, "", kNoField},
      {"lfm2", "conv_dim", kInert, "", kNoField},
      {"lfm2", "conv_dim_out", kInert, "", kNoField},
      {"lfm2", "conv_use_xavier_init", kInert, "", kNoField},
      {"lfm2", "num_heads", kInert, "", kNoField},
      {"lfm2", "theta", kInert, "", kNoField},
      {"lfm2", "use_pos_enc", kInert, "", kNoField},
      {"granitemoehybrid", "time_step_limit", kInert, "", "bounds of values"},
      {"granitemoehybrid", "normalization_function", kInert, "", kNoField},
  };
  return kRows;
}

// Of which a classifier reads nothing.
const std::vector<ConfigKey>& backbone_keys() {
  static const std::vector<ConfigKey> kRows{
      {"dinov2", "layerscale_value", kInert, "", kValues},
      {"dinov2", "apply_layernorm", kInert, "", "of a backbone, which `architectures` would have to name"},
      {"dinov2", "reshape_hidden_states", kInert, "", "of a backbone, which `architectures` would have to name"},
      {"dinov2", "out_features", kInert, "", "of a backbone, which `architectures` would have to name"},
      {"dinov2", "out_indices", kInert, "", "of a backbone, which `architectures` would have to name"},
      {"dinov2", "_out_features", kInert, "", "of a backbone, which `architectures` would have to name"},
      {"dinov2", "_out_indices", kInert, "", "of a backbone, which `architectures` would have to name"},
      {"dinov2", "stage_names", kInert, "", "of a backbone, which `architectures` would have to name"},
  };
  return kRows;
}

// Encoders of text, sound and pictures, and models that have one.
const std::vector<ConfigKey>& encoder_keys() {
  static const std::vector<ConfigKey> kRows{
      {"bert ernie roberta xlm-roberta camembert data2vec-text electra t5 mt5 umt5", "is_decoder", kRefused,
       "null|false", "an encoder as a decoder"},
      {"bert", "directionality", kInert, "", "of TensorFlow's models"},
      {"bert", "pooler_fc_size", kInert, "", "of TensorFlow's models"},
      {"bert", "pooler_num_attention_heads", kInert, "", "of TensorFlow's models"},
      {"bert", "pooler_num_fc_layers", kInert, "", "of TensorFlow's models"},
      {"bert", "pooler_size_per_head", kInert, "", "of TensorFlow's models"},
      {"bert", "pooler_type", kInert, "", "of TensorFlow's models"},
      {"bert ernie roberta xlm-roberta camembert data2vec-text electra albert", "position_embedding_type", kRefused,
       "\"absolute\"", "relative positions"},
      {"deberta-v2", "legacy", kRefused, "true", "the head of masked words that is not legacy"},
      {"electra", "summary_last_dropout", kInert, "", kHeads},
      {"albert", "down_scale_factor", kInert, "", kNoField},
      {"albert", "gap_size", kInert, "", kNoField},
      {"albert", "net_structure_type", kInert, "", kNoField},
      {"albert", "num_memory_blocks", kInert, "", kNoField},
      {"albert", "layers_to_keep", kInert, "", kNoField},
      {"distilbert", "sinusoidal_pos_embds", kInert, "", kValues},
      {"modernbert", "sparse_prediction", kGraph, "false", "logits of the masked tokens alone"},
      {"modernbert", "sparse_pred_ignore_index", kInert, "", "which sparse_prediction reads"},
      {"modernbert", "cls_token_id", kInert, "", kToken},
      {"modernbert", "initializer_cutoff_factor", kInert, "", kValues},
      {"modernbert", "classifier_pooling", kInert, "", kHeads},
      {"modernbert", "deterministic_flash_attn", kInert, "", "of flash attention's own package"},
      {"modernbert", "layer_norm_eps", kInert, "", "norm_eps says it"},
      {"modernbert", "position_embedding_type", kInert, "", kOldField},
      {"modernbert", "reference_compile", kInert, "", kOldField},
      {"modernbert", "repad_logits_with_grad", kInert, "", kOldField},
      {"distilbert", "tie_weights_", kInert, "", kOldField},
      {"bart mbart plbart blenderbot marian m2m_100 pegasus", "init_std", kInert, "", kValues},
      {"whisper", "activation_dropout", kGraph, "0", "dropout behind the activation"},
      {"whisper", "encoder_layerdrop", kChance, "0", "leaves layers out at random"},
      {"whisper", "decoder_layerdrop", kChance, "0", "leaves layers out at random"},
      {"whisper", "apply_spec_augment", kGraph, "false", "a spectrum of which parts are masked"},
      {"whisper", "mask_time_prob", kInert, "", kMasked},
      {"whisper", "mask_time_length", kInert, "", kMasked},
      {"whisper", "mask_time_min_masks", kInert, "", kMasked},
      {"whisper", "mask_feature_prob", kInert, "", kMasked},
      {"whisper", "mask_feature_length", kInert, "", kMasked},
      {"whisper", "mask_feature_min_masks", kInert, "", kMasked},
      {"whisper", "scale_embedding", kInert, "", "which no forward of this class reads"},
      {"whisper", "use_weighted_layer_sum", kInert, "", kHeads},
      {"whisper", "classifier_proj_size", kInert, "", kHeads},
      {"whisper", "median_filter_width", kInert, "", "of time stamps, in generation"},
      {"whisper", "num_key_value_heads", kInert, "", "encoder_attention_heads says it"},
      {"whisper", "init_std", kInert, "", kValues},
  };
  return kRows;
}

constexpr std::string_view kGates = "the class gates attention whatever it says";
constexpr std::string_view kHeadDim = "head_dim says it";
constexpr std::string_view kSentences = "of sentence-transformers; transformers reads it nowhere";
constexpr std::string_view kProcessor = "of the processor";

// Fields that published files have and that transformers' classes read nowhere, a row for each reason.
struct UnreadKeys {
  std::string_view families;
  std::string_view keys;  // Between blanks.
  std::string_view reason;
};
constexpr UnreadKeys kUnread[] = {
    {"hunyuan_v1_dense hunyuan_v1_moe",
     "use_qk_norm use_cla cla_share_factor attention_head_dim norm_type dense_list enable_lm_head_fp32"
     " position_embedding_xdrope use_mixed_mlp_moe use_mla use_rotary_pos_emb skip_cls_token pool_type"
     " class_num add_classification_head moe_drop_tokens moe_random_routing_dropped_token"
     " moe_layer_num_skipped group_limited_greedy routed_scaling_factor n_group topk_group"
     " norm_topk_prob num_shared_expert moe_intermediate_size num_media_embeds kv_lora_rank"
     " q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim xdrope_section",
     kNoField},
    {"hunyuan_v1_dense hunyuan_v1_moe",
     "anyres_pooling_size anyres_vit_max_image_size anyres_vit_two_views vit_add_patchemb_bias"
     " vit_input_resolution vit_mapping_type vit_norm_type vit_path vit_patch vit_remove_prenorm"
     " vit_token vit_type vit_use_grad_ckpt",
     kNoField},
    {"hunyuan_v1_dense hunyuan_v1_moe",
     "org_vocab_size pad_id im_start_id im_end_id im_newline_id mask_init_id text_start_id text_end_id", kToken},
    {"hunyuan_v1_dense", "num_experts num_experts_per_tok moe_topk", kNoField},
    {"minimax_m2",
     "attn_type_list qk_norm_type use_qk_norm use_routing_bias scoring_func shared_intermediate_size"
     " rotary_dim",
     kNoField},
    {"minimax_m2", "use_mtp num_mtp_modules mtp_transformer_layers", kNextTokens},
    {"ernie4_5 ernie4_5_moe",
     "compression_ratio use_rmsnorm disable_ffn_model_parallel hidden_dropout_prob"
     " attention_probs_dropout_prob fuse_rms_norm weight_share_add_bias",
     kNoField},
    {"ernie4_5_moe",
     "moe_capacity moe_gate moe_use_aux_free moe_aux_loss_lambda moe_orthogonal_loss_lambda"
     " moe_z_loss_lambda moe_group moe_use_hard_gate moe_dense_experts_token_type_id",
     kOwnTraining},
    {"ernie4_5_moe", "num_nextn_predict_layers multi_token_pred_lambda", kNextTokens},
    {"qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text", "attn_output_gate", kGates},
    {"qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text", "mtp_num_hidden_layers mtp_use_dedicated_embeddings",
     kNextTokens},
    {"qwen3_5 qwen3_5_moe qwen3_5_text qwen3_5_moe_text", "mamba_ssm_dtype", kNoField},
    {"hy_v3",
     "enable_attention_fp32_softmax enable_lm_head_fp32 expert_hidden_dim first_k_dense_replace"
     " moe_router_enable_expert_bias moe_router_use_sigmoid qk_norm route_norm use_grouped_mm",
     kNoField},
    {"hy_v3", "num_nextn_predict_layers", kNextTokens},
    {"mellum", "use_sliding_window max_window_layers", kNoField},
    {"cohere2_moe", "use_parallel_block use_qk_norm layer_norm_bias", kNoField},
    {"data2vec-text", "mask_token_id", kToken},
    {"blenderbot", "classif_dropout do_blenderbot_90_layernorm extra_layer_norm layernorm_variant", kOldField},
    {"ernie", "init_class pool_act paddlenlp_version enable_recompute fuse task_id", kNoField},
    {"dots1", "topk_method scoring_func aux_loss_alpha seq_aux ep_size moe_layer_freq", kNoField},
    {"granitemoehybrid granitemoe granite granitemoeshared", "init_method", kValues},
    {"nemotron_h", "norm_eps rms_norm_eps partial_rotary_factor time_step_rank", kNoField},
    {"nemotron_h", "attention_head_dim", kHeadDim},
    {"bert roberta xlm-roberta camembert distilbert electra albert deberta-v2 modernbert",
     "sbert_ce_default_activation_function sentence_transformers", kSentences},
    {"bert", "emb_size biaffine_size", kNoField},
    {"bert roberta xlm-roberta electra distilbert deberta-v2", "language name", kNoField},
    {"deberta-v2", "pooling padding_idx", kOldField},
    {"bart mbart", "classif_dropout", kOldField},
    {"falcon", "n_head n_layer", "num_attention_heads and num_hidden_layers say it"},
    {"starcoder2", "rms_norm_eps", "norm_epsilon says it"},
    {"phi", "rotary_dim", "partial_rotary_factor says it"},
    {"gemma3_text gemma3", "_sliding_window_pattern", "layer_types says it"},
    {"qwen3_moe", "use_qk_norm qkv_bias shared_expert_intermediate_size", kNoField},
    {"gemma4", "image_seq_length video_seq_length audio_seq_length", kProcessor},
    {"mamba2", "fused_add_norm d_intermediate pad_vocab_size_multiple", kNoField},
    {"apertus", "qk_norm post_norm", kNoField},
    {"nemotron", "kv_channels", kHeadDim},
    {"starcoder2",
     "activation_function layer_norm_epsilon attention_softmax_in_fp32 scale_attention_softmax_in_fp32"
     " scale_attn_weights",
     kOldField},
    {"stablelm", "rotary_scaling_factor", kOldField},
    {"umt5", "scalable_attention", kNoField},
    {"bart mbart plbart blenderbot marian m2m_100 pegasus",
     "add_bias_logits add_final_layer_norm normalize_before normalize_embedding"
     " static_position_embeddings extra_pos_embeddings",
     kOldField},
    {"bart mbart plbart blenderbot marian m2m_100 pegasus", "force_bos_token_to_be_generated", kGeneration},
    {"bart", "save_step", kOwnTraining},
    {"deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 mistral4 youtu", "qk_head_dim",
     "the class adds it up, of qk_nope_head_dim and qk_rope_head_dim"},
    {"deepseek_v3 youtu", "head_dim", "the rotated part of a head, as qk_rope_head_dim says"},
    {"gpt_bigcode", "num_key_value_heads", "multi_query says it"},
    {"mistral3", "vocab_size", "text_config says it"},
    {"whisper", "forced_decoder_ids lang_ids max_initial_timestamp_index alignment_heads", kGeneration},
};

const std::vector<ConfigKey>& unread_keys() {
  static const std::vector<ConfigKey> kRows = [] {
    std::vector<ConfigKey> rows;
    for (const UnreadKeys& unread : kUnread) {
      for (std::size_t at = 0; at < unread.keys.size();) {
        const std::size_t end = std::min(unread.keys.find(' ', at), unread.keys.size());
        rows.push_back({unread.families, unread.keys.substr(at, end - at), kInert, "", unread.reason});
        at = end + 1;
      }
    }
    return rows;
  }();
  return kRows;
}

// Of towers that take pictures of all sizes.
const std::vector<ConfigKey>& grid_keys() {
  static constexpr std::string_view kQwen = "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe";
  static const std::vector<ConfigKey> kRows{
      {"glm4v glm4v_moe glm46v", "image_start_token_id", kInert, "", kToken},
      {"glm4v glm4v_moe glm46v", "image_end_token_id", kInert, "", kToken},
      {"glm4v glm4v_moe glm46v", "video_start_token_id", kInert, "", kToken},
      {"glm4v glm4v_moe glm46v", "video_end_token_id", kInert, "", kToken},
      {"glm4v glm4v_moe glm46v", "hidden_dropout_prob", kInert, "", kNoField},
      {"glm4v", "attention_bias", kInert, "", "the text's projections have biases, whatever it says"},
      {"glm4v_moe", "use_qk_norm", kInert, "", kNoField},
      {"glm4v_moe", "router_aux_loss_coef", kInert, "", "of a loss that output_router_logits would ask for"},
      {"glm4v glm4v_moe glm46v qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe", "video_token_id", kInert,
       "", kToken},
      {kQwen, "vision_token_id", kInert, "", kToken},
      {kQwen, "vision_start_token_id", kInert, "", kToken},
      {kQwen, "vision_end_token_id", kInert, "", kToken},
      {kQwen, "in_chans", kInert, "", kNoField},
      {kQwen, "spatial_patch_size", kInert, "", kNoField},
      {kQwen, "tokens_per_second", kInert, "", "how far the frames of a film are apart"},
      {"qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe", "layer_types", kGraph, "full_attention",
       "a window beside pictures"},
  };
  return kRows;
}

const std::vector<ConfigKey>& picture_keys() {
  static const std::vector<ConfigKey> kRows{
      {"vit", "encoder_stride", kInert, "", "of masked image modelling, which `architectures` would have to name"},
      {"clip clip_vision_model clip_text_model", "projection_dim", kInert, "",
       "of a projection that the class does not have"},
      {"clip", "logit_scale_init_value", kInert, "", kValues},
      {"clip", "text_config_dict", kInert, "", "an older form of text_config"},
      {"clip", "vision_config_dict", kInert, "", "an older form of vision_config"},
      {"clip_vision_model siglip_vision_model llava llava_next paligemma", "vocab_size", kInert, "",
       "text_config says it"},
      {"llava llava_next", "image_seq_length", kInert, "",
       "the processor's: a picture has as many tokens as places of the tower"},
      {"llava llava_next paligemma", "ignore_index", kInert, "", kOldField},
      {"llava_next", "use_image_newline_parameter", kInert, "", kNoField},
      {"paligemma", "hidden_size", kInert, "", "text_config says it"},
      {"paligemma", "_vocab_size", kInert, "", kOldField},
      {"paligemma", "num_hidden_layers", kInert, "", "text_config says it"},
      {"idefics3 smolvlm", "vocab_size", kInert, "", "text_config says it"},
      {"idefics3 smolvlm", "max_image_size", kInert, "", "the processor's: a picture has image_size pixels a side"},
      {"idefics3 smolvlm", "size", kInert, "", "the processor's, before it cuts a picture up"},
      {"idefics3 smolvlm", "use_base_siglip", kInert, "", kNoField},
      {"llama", "is_llama_config", kInert, "", kNoField},
      {"llama", "perceiver_config", kInert, "", kNoField},
      {"llama", "pixel_shuffle_factor", kInert, "", "scale_factor of the whole says it"},
      {"llama", "_flash_attn_2_enabled", kInert, "", kOldField},
      {"llama", "transformers.js_config", kInert, "", "of another runtime"},
      {"siglip_vision_model", "projection_dim", kInert, "", "the whole's projection_dim says it"},
      {"siglip_vision_model", "projector_hidden_act", kInert, "", kNoField},
      {"siglip_vision_model gemma gemma2", "num_image_tokens", kInert, "", "as many as the tower has places"},
      {"gemma3", "tie_word_embeddings", kRefused, "null|true", "a head of its own"},
      {"internvl", "image_seq_length", kInert, "",
       "the processor's: a picture has as many tokens as places of the tower"},
      {"internvl", "dropout", kInert, "", kNoField},
      {"internvl", "projection_dropout", kGraph, "0", "dropout behind attention"},
      {"internvl", "use_mask_token", kRefused, "false", "a token of masked pictures"},
      {"internvl", "use_absolute_position_embeddings", kRefused, "true", "no learned positions"},
      {"internvl", "use_mean_pooling", kRefused, "true", "a norm behind the last layer"},
      {"internvl", "vision_feature_layer", kRefused, "-1", "another layer than the last"},
      {"internvl", "vision_feature_select_strategy", kRefused, "\"default\"", "the class token among the places"},
      {"internvl", "layer_scale_init_value", kInert, "", kValues},
      {"llama4", "tie_word_embeddings", kInert, "", "text_config says it"},
      {"llama4 gemma3", "boi_token_index", kInert, "", kToken},
      {"llama4 gemma3", "eoi_token_index", kInert, "", kToken},
      {"llama4 gemma3 gemma4", "boi_token_id", kInert, "", kToken},
      {"llama4 gemma3 gemma4", "eoi_token_id", kInert, "", kToken},
      {"llama4", "hidden_act", kInert, "", "the tower's activation is GELU whatever it says"},
      {"llama4", "norm_eps", kInert, "", "the tower's norms have PyTorch's own"},
      {"llama4", "vision_feature_select_strategy", kInert, "", "which no forward of this class reads"},
      {"llama4", "vision_feature_layer", kInert, "", kNoField},
      {"llama4", "multi_modal_projector_bias", kInert, "", "the projector has none whatever it says"},
      {"mistral3", "vision_feature_layer", kRefused, "-1", "another layer than the last"},
      {"gemma4", "boa_token_id", kInert, "", kToken},
      {"gemma4", "eoa_token_id", kInert, "", kToken},
      {"gemma4", "eoa_token_index", kInert, "", kToken},
      {"gemma4", "video_token_id", kInert, "", kToken},
      {"gemma4", "audio_token_id", kInert, "", kToken},
      {"gemma4", "max_position_embeddings", kInert, "", "values of the rotary tables"},
      {"gemma4", "attention_bias", kInert, "", "neither tower's projections have biases, whatever it says"},
      {"gemma4", "global_head_dim", kInert, "", kNoField},
      {"gemma4", "default_output_length", kInert, "", kNoField},
      {"gemma4", "num_global_key_value_heads", kInert, "", kNoField},
  };
  return kRows;
}

bool names(std::string_view list, std::string_view word, char separator) {
  while (true) {
    const std::size_t end = list.find(separator);
    if (list.substr(0, end) == word) return true;
    if (end == std::string_view::npos) return false;
    list.remove_prefix(end + 1);
  }
}

// Computed when the model is made; the others look at the positions of every batch, or are of other models.
constexpr std::array<std::string_view, 4> kFixedRotary{"default", "linear", "llama3", "yarn"};
constexpr std::array<std::string_view, 5> kOtherRotary{"dynamic", "longrope", "proportional", "mrope", "su"};

bool among(std::string_view name, const auto& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_zero(const Value& value) {
  return (value.is(Value::Kind::Integer) || value.is(Value::Kind::Real)) && value.real == 0;
}

// One of the usual values, as JSON writes it; "full_attention" stands for a list of nothing else.
bool is_usual(const Value& value, std::string_view usual) {
  switch (value.kind) {
    case Value::Kind::Null: return true;  // The class's own default.
    case Value::Kind::Bool: return names(usual, value.boolean ? "true" : "false", '|');
    case Value::Kind::Integer:
    case Value::Kind::Real: return names(usual, is_zero(value) ? "0" : formatted("{}", value.real), '|');
    case Value::Kind::String: return names(usual, formatted("\"{}\"", value.string), '|');
    case Value::Kind::Object: return value.members.empty() && names(usual, "{}", '|');
    case Value::Kind::Array:
      return std::all_of(value.items.begin(), value.items.end(),
                         [&](const Value& item) { return item.is(Value::Kind::String) && item.string == usual; });
  }
  return false;
}

// What switches nothing on, whoever reads it.
bool is_off(const Value& value) {
  switch (value.kind) {
    case Value::Kind::Null: return true;
    case Value::Kind::Bool: return !value.boolean;
    case Value::Kind::Integer:
    case Value::Kind::Real: return is_zero(value);
    case Value::Kind::String: return value.string.empty();
    case Value::Kind::Object: return value.members.empty();
    case Value::Kind::Array: return value.items.empty();
  }
  return false;
}

std::string_view nearest_known(const ConfigReader& reader, std::string_view family, const std::string& key) {
  std::vector<std::string_view> names_known(reader.object.known());
  for (const ConfigKey& row : config_keys()) {
    if (row.families.empty() || names(row.families, family, ' ')) names_known.push_back(row.key);
  }
  return nearest(key, names_known);
}

// A newer class may read the key: nobody can say here what it would change.
std::string hint_for_unknown(std::string_view nearest) {
  const std::string_view otherwise = "take it out of a copy of the file if nothing reads it";
  return nearest.empty() ? std::string(otherwise) : formatted("{} Else {}", did_you_mean(nearest), otherwise);
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> kRows = [] {
    std::vector<ConfigKey> rows = family_keys();
    for (const auto* more : {&later_decoder_keys(), &mixer_keys(), &encoder_keys(), &picture_keys(), &grid_keys(),
                             &backbone_keys(), &unread_keys()})
      rows.insert(rows.end(), more->begin(), more->end());
    for (const auto* every : {&common_keys(), &published_keys()}) rows.insert(rows.end(), every->begin(), every->end());
    for (const std::string_view key : kGenerationKeys) rows.push_back({"", key, kInert, "", kGeneration});
    return rows;
  }();
  return kRows;
}

const ConfigKey* config_key(std::string_view family, std::string_view key) {
  const ConfigKey* found = nullptr;
  for (const ConfigKey& row : config_keys()) {
    if (row.key != key) continue;
    if (row.families.empty() && found == nullptr) found = &row;
    if (!row.families.empty() && names(row.families, family, ' ')) return &row;
  }
  return found;
}

const Value* rotary_type(const Value& rope) {
  const Value* type = rope.find("rope_type");
  return type != nullptr ? type : rope.find("type");
}

bool rotary_of_lengths(const Value& rope) {
  const Value* const type = rotary_type(rope);
  const Value* const alpha = rope.find("alpha");
  return type != nullptr && type->is(Value::Kind::String) && type->string == "dynamic" && alpha != nullptr &&
         !is_off(*alpha);
}

// phi3's older files say "su" and "yarn" (models/phi3/configuration_phi3.py, convert_rope_params_to_dict).
bool rotary_of_two_tables(std::string_view family, const Value& rope) {
  const Value* const type = rotary_type(rope);
  if (type == nullptr || !type->is(Value::Kind::String)) return false;
  if (type->string == "longrope") return family == "phi3" || family == "minicpm3";
  return family == "phi3" && (type->string == "su" || type->string == "yarn");
}

namespace {

bool is_built(const Value& rope, std::string_view type, std::string_view family) {
  if (among(type, kFixedRotary) || rotary_of_two_tables(family, rope)) return true;
  return family.starts_with("hunyuan_v1_") && rotary_of_lengths(rope);
}

}  // namespace

void check_rotary(ConfigReader& reader) {
  const Value* const model_type = reader.root().find("model_type");
  const std::string_view family = model_type != nullptr ? std::string_view(model_type->string) : std::string_view();
  const auto judge = [&reader, family](const Value& rope) {
    const Value* const type = rotary_type(rope);
    if (type == nullptr || type->is(Value::Kind::Null)) return;
    if (!type->is(Value::Kind::String)) {
      return reader.fault(*type, formatted("\"rope_type\" must be a string, not {}", describe(type->kind)));
    }
    if (is_built(rope, type->string, family)) return;
    if (among(type->string, kOtherRotary))
      return reader.gaps.push_back({type, "rope_type", formatted("{} RoPE", type->string)});
    std::vector<std::string_view> names(kFixedRotary.begin(), kFixedRotary.end());
    names.insert(names.end(), kOtherRotary.begin(), kOtherRotary.end());
    reader.fault(*type, formatted("\"{}\" is no kind of RoPE that transformers knows", type->string),
                 did_you_mean(nearest(type->string, names)));
  };
  for (const std::string_view holder : {"rope_parameters", "rope_scaling"}) {
    const Value* rope = reader.find(holder);
    if (rope == nullptr || rope->is(Value::Kind::Null)) continue;
    if (!rope->is(Value::Kind::Object)) {
      reader.fault(*rope, formatted("\"{}\" must be an object or null, not {}", holder, describe(rope->kind)));
      continue;
    }
    judge(*rope);
    for (const Member& member : rope->members) {  // One table for each kind of layer.
      if (member.value.is(Value::Kind::Object)) judge(member.value);
    }
  }
}

void check_architectures(const ConfigReader& reader, std::string_view built,
                         const std::vector<std::string_view>& others) {
  const Value* classes = reader.root().find("architectures");
  if (classes == nullptr || classes->is(Value::Kind::Null)) return;
  if (!classes->is(Value::Kind::Array)) {
    reader.refuse("architectures", formatted("\"architectures\" must be an array, not {}", describe(classes->kind)));
  }
  for (const Value& item : classes->items) {
    if (!item.is(Value::Kind::String)) continue;
    if (item.string == built || among(item.string, others)) return;
  }
  if (classes->items.empty()) return;
  const std::string& named = classes->items.front().string;
  throw Refusal({reader.config().at(classes->items.front().offset,
                                    formatted("\"{}\" is not modelled yet; of this family {} is", named, built),
                                    formatted("write \"{}\" for a training of that class", built))});
}

std::vector<UnknownKey> judge_other_keys(ConfigReader& reader, std::string_view family) {
  std::vector<UnknownKey> unknown;
  for (const Member* member : reader.object.unread()) {
    const ConfigKey* row = config_key(family, member->key);
    if (row == nullptr && is_off(member->value)) {
      unknown.push_back({member, nearest_known(reader, family, member->key)});
    } else if (row == nullptr) {
      reader.fault(member->value,
                   formatted("\"{}\" is no key that the configuration class of {} knows", member->key, family),
                   hint_for_unknown(nearest_known(reader, family, member->key)));
    } else if (row->effect == KeyEffect::Inert || is_usual(member->value, row->usual)) {
      continue;
    } else if (row->effect != KeyEffect::Refused) {
      reader.gaps.push_back({&member->value, member->key, std::string(row->reason), row->effect == KeyEffect::Chance});
    } else {
      reader.fault(member->value, formatted("\"{}\": {} is not modelled yet", member->key, row->reason));
    }
  }
  unknown.insert(unknown.end(), reader.unknown_inside.begin(), reader.unknown_inside.end());
  return unknown;
}

}  // namespace dsplan
