"""The configurations that memory.py runs: small, of every family that has a graph, with odd sizes among them."""

import random


def config(kind, **more):
    base = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
            "hidden_act": "silu", "tie_word_embeddings": False}
    return {"model_type": kind, **base, **more}


def gpt2(**more):
    base = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "vocab_size": 613,
            "attn_pdrop": 0.0, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "activation_function": "gelu_new"}
    return {**base, **more}


def case(config, **more):
    training = {"dtype": "bf16", "autocast": None, "micro_batch": 1, "grad_accum": 1, "seq": 128,
                "optimizer": {"name": "adamw", "implementation": "fused"}, "loss": "hf", "attention": "flash",
                "checkpoint": "none"}
    beside = {key: more.pop(key) for key in ("reentrant", "input_require_grads") if key in more}
    return {"config": config, "training": {**training, **more}, **beside}


LLAMA = config("llama", num_hidden_layers=3)
MISTRAL = config("mistral", hidden_size=96, intermediate_size=200, num_attention_heads=6, num_key_value_heads=3,
                 sliding_window=4096, vocab_size=1000)
QWEN2 = config("qwen2", vocab_size=733, tie_word_embeddings=True)
QWEN3 = config("qwen3", head_dim=32, vocab_size=640)
GEMMA2 = {**config("gemma2", head_dim=16, vocab_size=777, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh",
                   sliding_window=256, query_pre_attn_scalar=16, num_hidden_layers=2)}
del GEMMA2["hidden_act"]
MIXTRAL = config("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)

ONE_HEAD = config("llama", hidden_size=72, intermediate_size=190, num_attention_heads=3, num_key_value_heads=1,
                  vocab_size=997)

ACCUMULATED = {"grad_accum": 2}
LORA = {"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "fp32"}
LORA_TWICE = {**LORA, "alpha": 16}  # A factor of one leaves products out.
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def family(name, config, targets=("q_proj", "v_proj"), frozen=("model.embed_tokens.*", "model.layers.0.*"), odd=None,
           eager=True, experts=False, every="all-linear", **more):
    """What every family is asked: plain, both forms of checkpointing, accumulation, adapters, frozen parts, autocast,
    odd sizes, and attention composed of operators. `odd` replaces keys for the odd one. `every`: of a mixture, the
    targets of adapters on all that they can be put on."""
    cases = {
        "": case(config, micro_batch=2, seq=72, **more),
        "-checkpoint": case(config, micro_batch=2, seq=64, checkpoint="full", **more),
        "-checkpoint-reentrant": case(config, seq=64, checkpoint="full", reentrant=True, input_require_grads=True,
                                      **more),
        "-accumulate": case(config, seq=64, grad_accum=2, **more),
        "-lora": case(config, micro_batch=2, seq=64, lora={**LORA, "targets": list(targets)}, **more),
        "-frozen": case(config, seq=96, freeze=list(frozen), **more),
        "-odd": case({**config, **(odd or {})}, seq=83, **{"dtype": "bf16" if experts else "fp16", **more}),
    }
    if experts:
        cases["-lora-all"] = case(config, micro_batch=2, seq=64, lora={**LORA_TWICE, "targets": every}, **more)
        cases["-autocast-grouped"] = case(config, micro_batch=2, seq=64, **{**more, "dtype": "fp32", "autocast": "bf16"})
    else:
        cases["-autocast"] = case(config, micro_batch=2, seq=64, **{**more, "dtype": "fp32", "autocast": "bf16"})
    if eager:
        cases["-eager"] = case(config, micro_batch=2, seq=64, **{**more, "attention": "eager"})
    return {name + suffix: made for suffix, made in cases.items()}


def torchtitan(config, **more):
    """In torchtitan's own code, whose loss is a part of it."""
    made = case(config, model_code="torchtitan", loop="minimal", **more)
    del made["training"]["loss"]
    return made


def torchtitan_cases():
    """Its Llama and Qwen3: plain, each way to checkpoint that it has, accumulation, autocast, fp32, odd sizes."""
    ungrouped = {**LLAMA, "num_key_value_heads": 4}
    by_operator = "keep:linear/2+scaled_dot_product_attention"
    cases = {
        "llama": torchtitan(LLAMA, micro_batch=2, seq=72),
        "llama-full": torchtitan(LLAMA, micro_batch=2, seq=64, checkpoint="full"),
        "llama-second": torchtitan({**LLAMA, "num_hidden_layers": 5}, seq=64, checkpoint="groups:1,3"),
        "llama-operators": torchtitan(LLAMA, micro_batch=2, seq=64, checkpoint=by_operator),
        "llama-operators-odd": torchtitan({**LLAMA, "vocab_size": 701}, seq=83, checkpoint=by_operator),
        "llama-accumulate": torchtitan(LLAMA, micro_batch=2, seq=64, grad_accum=3),
        "llama-autocast": torchtitan(LLAMA, micro_batch=2, seq=64, dtype="fp32", autocast="bf16"),
        "llama-autocast-full": torchtitan(LLAMA, micro_batch=2, seq=64, dtype="fp32", autocast="bf16", checkpoint="full"),
        "llama-fp32": torchtitan(LLAMA, micro_batch=2, seq=64, dtype="fp32", attention="math"),
        "llama-fp32-ungrouped": torchtitan(ungrouped, micro_batch=2, seq=64, dtype="fp32", attention="math"),
        "llama-fp32-full": torchtitan(LLAMA, seq=61, dtype="fp32", attention="math", checkpoint="full"),
        "llama-ungrouped-odd": torchtitan({**ungrouped, "vocab_size": 997}, seq=83),
        "llama-math": torchtitan(LLAMA, micro_batch=2, seq=64, attention="math"),
        "qwen3": torchtitan(QWEN3, micro_batch=2, seq=72),
        "qwen3-tied": torchtitan({**QWEN3, "tie_word_embeddings": True}, micro_batch=2, seq=64),
        "qwen3-full": torchtitan(QWEN3, micro_batch=2, seq=64, checkpoint="full"),
        "qwen3-operators": torchtitan(QWEN3, micro_batch=2, seq=64, checkpoint=by_operator),
        "qwen3-fp32": torchtitan(QWEN3, micro_batch=2, seq=64, dtype="fp32", attention="math"),
        "qwen3-odd": torchtitan({**QWEN3, "vocab_size": 997}, micro_batch=3, seq=61),
    }
    return {"torchtitan-" + name: made for name, made in cases.items()}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


GEMMA = config("gemma", head_dim=32, vocab_size=611, tie_word_embeddings=True, hidden_act="gelu_pytorch_tanh")
GEMMA3 = {**without(GEMMA2, "sliding_window"), "model_type": "gemma3_text", "sliding_window": 256,
          "layer_types": ["sliding_attention", "full_attention"]}
GEMMA4 = {"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 5, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "vocab_size": 977, "vocab_size_per_layer_input": 983,
          "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "sliding_window": 256,
          "max_position_embeddings": 512, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
          "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
GEMMA3N = {"model_type": "gemma3n_text", "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 5, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 977, "vocab_size_per_layer_input": 983,
           "hidden_size_per_layer_input": 24, "num_kv_shared_layers": 2, "laurel_rank": 8, "sliding_window": 256,
           "max_position_embeddings": 512, "final_logit_softcapping": 30.0, "tie_word_embeddings": True,
           "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0],
           "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]}
# Without per-layer inputs; keys are values in layers that see all (gemma-4-31b), and experts (gemma-4-26b-a4b).
GEMMA4_DENSE = {**GEMMA4, "num_hidden_layers": 3, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                "use_double_wide_mlp": False, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
GEMMA4_MOE = {**GEMMA4_DENSE, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 40}
PHI = {**without(config("phi", vocab_size=653, partial_rotary_factor=0.5, hidden_act="gelu_new"), "rms_norm_eps"),
       "layer_norm_eps": 1e-05}
PHI3 = config("phi3", vocab_size=641, pad_token_id=0)
# Rows of 64 tokens take the table that is there, longer ones make another. Heads of 16, of which 12 turn.
LONGROPE = {**PHI3, "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}}
QWEN2_MOE = config("qwen2_moe", vocab_size=643, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48,
                   shared_expert_intermediate_size=112)
QWEN3_MOE = config("qwen3_moe", vocab_size=647, head_dim=16, num_experts=8, num_experts_per_tok=3,
                   moe_intermediate_size=48, norm_topk_prob=True)
DROPPED = {"resid_pdrop": 0.1, "embd_pdrop": 0.1}
GPT_NEOX = {**without(config("gpt_neox", vocab_size=659, rotary_pct=0.25, hidden_act="gelu"), "rms_norm_eps",
                      "num_key_value_heads"), "layer_norm_eps": 1e-05}
OPT = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
       "vocab_size": 757, "max_position_embeddings": 256, "word_embed_proj_dim": 64, "dropout": 0.1,
       "activation_function": "relu"}
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
          "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 2,
          "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4}
DEEPSEEK_V2 = {**config("deepseek_v2", vocab_size=761), **LATENT, "topk_method": "group_limited_greedy"}
DEEPSEEK_V3 = {**config("deepseek_v3", vocab_size=769), **LATENT}
GLM4_LITE = {**DEEPSEEK_V3, "model_type": "glm4_moe_lite", "vocab_size": 971,
             "mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1}
del GLM4_LITE["first_k_dense_replace"]
GLM4_MOE = config("glm4_moe", vocab_size=809, head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
                  moe_intermediate_size=48, n_shared_experts=1, first_k_dense_replace=1)
GRANITEMOE = config("granitemoe", vocab_size=811, embedding_multiplier=12.0, residual_multiplier=0.22,
                    logits_scaling=8.0, attention_multiplier=0.0625, num_local_experts=4, num_experts_per_tok=2)
GPT_OSS = config("gpt_oss", vocab_size=821, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=32,
                 layer_types=["sliding_attention", "full_attention"])
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 64, "intermediate_size": 176,
       "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 48, "patch_size": 8, "num_labels": 7,
       "id2label": {str(i): str(i) for i in range(7)}}
DINOV2 = {"model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"], "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "image_size": 48, "patch_size": 8, "num_labels": 7, "mlp_ratio": 3,
          "id2label": {str(i): str(i) for i in range(7)}}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 64, "intermediate_size": 176,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 773, "max_position_embeddings": 128}
ROBERTA = {**BERT, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "vocab_size": 787}
ERNIE = {**BERT, "model_type": "ernie", "architectures": ["ErnieForMaskedLM"], "vocab_size": 785, "use_task_id": True,
         "task_type_vocab_size": 3}
DATA2VEC = {**ROBERTA, "model_type": "data2vec-text", "architectures": ["Data2VecTextForMaskedLM"], "vocab_size": 783}
XLM_ROBERTA = {**ROBERTA, "model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]}
CAMEMBERT = {**ROBERTA, "model_type": "camembert", "architectures": ["CamembertForMaskedLM"]}
DEBERTA = {**BERT, "model_type": "deberta-v2", "architectures": ["DebertaV2ForMaskedLM"], "vocab_size": 809,
           "type_vocab_size": 0, "position_biased_input": False, "relative_attention": True, "position_buckets": 32,
           "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p", "max_relative_positions": -1}
DISTILBERT = {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "dim": 64, "hidden_dim": 176,
              "n_layers": 2, "n_heads": 4, "vocab_size": 797, "max_position_embeddings": 128}

ELECTRA = {**BERT, "model_type": "electra", "architectures": ["ElectraForMaskedLM"], "embedding_size": 24,
           "vocab_size": 811}

# One group of layers, called twice.
ALBERT = {**BERT, "model_type": "albert", "architectures": ["AlbertForMaskedLM"], "embedding_size": 24, "vocab_size": 929,
          "bos_token_id": 2, "eos_token_id": 3}

BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 823}
FALCON = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 827,
          "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1}
FALCON_NEW = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
FALCON_RW = {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
FALCON_PARTS = {"targets": ("query_key_value",),
                "frozen": ("transformer.word_embeddings.*", "transformer.h.0.*"), "attention": "mem-efficient"}

MODERNBERT = {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "hidden_size": 64,
              "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 853,
              "max_position_embeddings": 512, "global_attn_every_n_layers": 2, "local_attention": 256,
              "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
NARROW = {**MODERNBERT, "local_attention": 32}

LLAMA4 = config("llama4_text", vocab_size=857, head_dim=16, intermediate_size=48, intermediate_size_mlp=112,
                num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2, no_rope_layers=[1, 0],
                attention_chunk_size=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)

T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 64, "d_kv": 16, "d_ff": 176,
      "num_layers": 2, "num_heads": 4, "vocab_size": 859, "decoder_start_token_id": 0, "pad_token_id": 0}
UMT5 = {**T5, "model_type": "umt5", "architectures": ["UMT5ForConditionalGeneration"], "feed_forward_proj": "gated-gelu"}
MT5 = {**T5, "model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"], "feed_forward_proj": "gated-gelu"}

WHISPER = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 64,
           "encoder_ffn_dim": 176, "decoder_ffn_dim": 144, "encoder_layers": 2, "decoder_layers": 2,
           "encoder_attention_heads": 4, "decoder_attention_heads": 4, "vocab_size": 863, "num_mel_bins": 20,
           "max_source_positions": 56, "max_target_positions": 90, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2, "decoder_start_token_id": 1}

BART = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 64, "encoder_ffn_dim": 176,
        "decoder_ffn_dim": 144, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "vocab_size": 863, "max_position_embeddings": 110, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0}
MBART = {**BART, "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"], "scale_embedding": True}
PLBART = {**MBART, "model_type": "plbart", "architectures": ["PLBartForConditionalGeneration"], "vocab_size": 861}
BLENDERBOT = {**BART, "model_type": "blenderbot", "architectures": ["BlenderbotForConditionalGeneration"], "vocab_size": 859,
              "pad_token_id": 0, "bos_token_id": 1, "decoder_start_token_id": 1}
MARIAN = {**BART, "model_type": "marian", "architectures": ["MarianMTModel"], "scale_embedding": True,
          "activation_function": "silu", "pad_token_id": 862, "decoder_start_token_id": 862, "eos_token_id": 0}
M2M_100 = {**BART, "model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"],
           "activation_function": "relu"}
PEGASUS = {**BART, "model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"], "pad_token_id": 0,
           "eos_token_id": 1, "decoder_start_token_id": 0}

MAMBA2 = {"model_type": "mamba2", "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 2,
          "num_hidden_layers": 2, "vocab_size": 877, "chunk_size": 32, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": 2}

HYBRID = config("granitemoehybrid", vocab_size=883, embedding_multiplier=12.0, residual_multiplier=0.22,
                logits_scaling=8.0, attention_multiplier=0.0625, num_local_experts=4, num_experts_per_tok=2,
                shared_intermediate_size=80, num_hidden_layers=3, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=24,
                mamba_n_groups=2, mamba_chunk_size=32, pad_token_id=0,
                layer_types=["linear_attention", "full_attention", "linear_attention"])

# Each layer one module, in another order than the default's; the second kind of experts sees latents.
NEMOTRON_H = {"model_type": "nemotron_h", "hidden_size": 64, "intermediate_size": 112, "vocab_size": 881, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "mamba_num_heads": 8, "mamba_head_dim": 16,
              "ssm_state_size": 24, "n_groups": 2, "chunk_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
              "moe_intermediate_size": 48, "moe_shared_expert_intermediate_size": 80, "n_group": 2, "topk_group": 1, "pad_token_id": 0,
              "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"]}
NEMOTRON_H_DENSE = {**NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}

QWEN3_NEXT = config("qwen3_next", vocab_size=887, num_hidden_layers=3, head_dim=32, linear_key_head_dim=24,
                    linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, num_experts=8,
                    num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=80,
                    layer_types=["linear_attention", "full_attention", "linear_attention"])


QWEN3_5 = {**without(QWEN3_NEXT, "num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
           "model_type": "qwen3_5_text",
           "rope_parameters": {"rope_type": "default", "type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                               "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
QWEN3_5_MOE = {**without(QWEN3_NEXT, "intermediate_size"), "model_type": "qwen3_5_moe_text", "rope_parameters": QWEN3_5["rope_parameters"]}


def of_sound(cases, target=40):
    """Rows of sound have one length."""
    return {name: {**one, "training": {**one["training"], "seq": one["config"]["max_source_positions"], "target_seq": target}}
            for name, one in cases.items()}


def translators():
    """bart and its relatives: an encoder and a decoder, whose rows are of two lengths."""
    made = {}
    frozen = ("model.shared.*", "model.encoder.*")
    odds = {"bart": {"dropout": 0.0, "activation_dropout": 0.1, "attention_dropout": 0.1, "decoder_layers": 3,
                     "scale_embedding": True},
            "mbart": {"activation_dropout": 0.1, "encoder_layers": 1, "activation_function": "relu"},
            "plbart": {"attention_dropout": 0.1, "encoder_layers": 1, "scale_embedding": False},
            "blenderbot": {"attention_dropout": 0.1, "encoder_layers": 1, "scale_embedding": True},
            "marian": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 911, "activation_function": "relu"},
            "m2m-100": {"attention_dropout": 0.0, "dropout": 0.0, "scale_embedding": False},
            "pegasus": {"attention_dropout": 0.1, "decoder_layers": 1, "scale_embedding": True}}
    for name, config in (("bart", BART), ("mbart", MBART), ("plbart", PLBART), ("blenderbot", BLENDERBOT), ("marian", MARIAN), ("m2m-100", M2M_100), ("pegasus", PEGASUS)):
        made.update(family(name, config, frozen=frozen, odd=odds[name], target_seq=40, dtype="bf16"))
        made.update({
            f"{name}-math": case(config, micro_batch=2, seq=70, target_seq=40, attention="math"),
            f"{name}-fp32": case(config, micro_batch=2, seq=37, target_seq=83, dtype="fp32", attention="mem-efficient"),
            f"{name}-lora-checkpoint": case(config, micro_batch=2, seq=64, target_seq=40, checkpoint="full",
                                            lora={**LORA, "targets": ["q_proj", "v_proj"]}),
        })
    made.update({
        "bart-eager-checkpoint": case(BART, seq=70, target_seq=40, checkpoint="full", attention="eager"),
        "bart-one-head": case({**BART, "encoder_attention_heads": 1, "decoder_attention_heads": 1}, micro_batch=2, seq=64,
                              target_seq=40),
        "bart-one-token": case(BART, seq=56, target_seq=1),
        "mbart-one-token": case(MBART, micro_batch=2, seq=56, target_seq=1),
        "mbart-layers-reentrant": case({**MBART, "encoder_layers": 4}, micro_batch=2, seq=64, target_seq=77,
                                       checkpoint="full", reentrant=True, input_require_grads=True),
    })
    return made


def heads_of(name, config, labels=5, prefix=None, **more):
    """The classes of a text and of each of its tokens."""
    prefix = prefix or config["architectures"][0].split("For")[0]
    cases = {}
    for suffix, kind in (("-text", "SequenceClassification"), ("-tokens", "TokenClassification")):
        headed = {**config, "architectures": [f"{prefix}For{kind}"], "num_labels": labels,
                  "id2label": {str(i): str(i) for i in range(labels)}}
        cases[name + suffix] = case(headed, micro_batch=2, seq=64, **more)
    return cases


def later_heads():
    """Heads of families with layers of their own, and of those made of latents, deltas or windows: texts, tokens where
    there is a class of them, a checkpoint, and one row where no token pads."""
    padded = {"pad_token_id": 0}
    cases = {}

    def of(name, config, prefix, tokens=True, **more):
        made = heads_of(name, {**config, **padded}, prefix=prefix, **more)
        text = made[name + "-text"]["config"]
        cases[name + "-text"] = made[name + "-text"]
        if tokens:
            cases[name + "-tokens"] = made[name + "-tokens"]
        cases[name + "-text-checkpoint"] = case(text, micro_batch=3, seq=61, checkpoint="full", **more)
        unpadded = {**text, "pad_token_id": None}
        cases[name + "-text-one-row"] = case(unpadded, seq=50, grad_accum=2, **{**more, "dtype": "fp32", "autocast": "bf16"})

    of("gpt2", gpt2(), "GPT2")
    of("gpt-bigcode", GPT_BIGCODE, "GPTBigCode")
    of("gptj", GPTJ, "GPTJ", tokens=False, attention="eager")
    of("gpt-neo", GPT_NEO, "GPTNeo", attention="eager")
    of("opt", OPT, "OPT", tokens=False)
    of("bloom", BLOOM, "Bloom", attention="eager")
    of("gpt-neox", GPT_NEOX, "GPTNeoX")
    of("falcon", FALCON, "Falcon", attention="math")
    of("gemma3", GEMMA3, "Gemma3Text", tokens=False)
    of("deepseek-v2", DEEPSEEK_V2, "DeepseekV2", tokens=False, attention="mem-efficient")
    of("deepseek-v3", DEEPSEEK_V3, "DeepseekV3", attention="mem-efficient")
    of("mistral4", MISTRAL4, "Mistral4", attention="mem-efficient")
    of("minicpm3", MINICPM3, "MiniCPM3", tokens=False, attention="mem-efficient")
    of("qwen3-next", QWEN3_NEXT, "Qwen3Next")
    of("qwen3-5", QWEN3_5, "Qwen3_5Text", tokens=False)
    return cases


def numbers_of(name, config, prefix=None, **more):
    """A class of texts that gives one number (rerankers), in fp32 and under autocast."""
    prefix = prefix or config["architectures"][0].split("For")[0]
    headed = {**config, "architectures": [f"{prefix}ForSequenceClassification"], "num_labels": 1, "id2label": {"0": "LABEL_0"}}
    return {name + "-number": case(headed, micro_batch=3, seq=64, **{"dtype": "fp32", "attention": "math", **more}),
            name + "-number-autocast": case(headed, micro_batch=2, seq=64, dtype="fp32", autocast="bf16", **more)}


def answers_of(name, config, prefix=None, **more):
    """A class that looks for an answer in a text, of whose tokens two are named."""
    prefix = prefix or config["architectures"][0].split("For")[0]
    headed = {**config, "architectures": [f"{prefix}ForQuestionAnswering"]}
    return {name + "-answer": case(headed, micro_batch=2, seq=64, **more),
            name + "-answer-checkpoint": case(headed, micro_batch=2, seq=61, checkpoint="full", **more),
            name + "-answer-autocast": case(headed, micro_batch=3, seq=64, dtype="fp32", autocast="bf16", grad_accum=2, **more)}


def albert_cases():
    """Its class has no checkpoints."""
    made = family("albert", ALBERT, targets=("query", "value"),
                  frozen=("albert.embeddings.*", "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.*"),
                  odd={"tie_word_embeddings": False, "hidden_act": "relu", "hidden_dropout_prob": 0.1, "num_hidden_layers": 5,
                       "num_hidden_groups": 2, "inner_group_num": 2, "attention_probs_dropout_prob": 0.1})
    made = {name: one for name, one in made.items() if "checkpoint" not in name}
    # More layers than any buffer of gradients has seen come; groups that divide them unevenly.
    many = {**ALBERT, "num_hidden_layers": 7, "num_hidden_groups": 3}
    return {
        **made, **heads_of("albert", ALBERT), **numbers_of("albert", ALBERT),
        "albert-many": case(many, micro_batch=2, seq=72, grad_accum=2),
        "albert-many-autocast": case(many, micro_batch=2, seq=61, dtype="fp32", autocast="bf16"),
        "albert-many-lora": case(many, micro_batch=2, seq=61, lora={**LORA, "targets": ["query", "ffn", "ffn_output"]}),
        "albert-fp32": case({**ALBERT, "hidden_dropout_prob": 0.1}, micro_batch=2, seq=61, dtype="fp32",
                            attention="mem-efficient"),
        "albert-math": case(ALBERT, micro_batch=2, seq=70, attention="math"),
    }


KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
SMOLLM3 = config("smollm3", vocab_size=661, no_rope_layer_interval=2, tie_word_embeddings=True, pad_token_id=0)
OLMO2 = config("olmo2", vocab_size=673, pad_token_id=0, eos_token_id=1)
OLMO3 = config("olmo3", vocab_size=677, pad_token_id=0, eos_token_id=1, sliding_window=256, **KINDS)
GRANITE = config("granite", vocab_size=683, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                 attention_multiplier=0.0625)
GLM4 = config("glm4", vocab_size=691, head_dim=16, attention_bias=True, pad_token_id=0)
COHERE = {**without(config("cohere", vocab_size=701, pad_token_id=0, bos_token_id=1, eos_token_id=2), "rms_norm_eps"),
          "layer_norm_eps": 1e-05, "tie_word_embeddings": True}
COHERE2 = {**COHERE, "model_type": "cohere2", "sliding_window": 256, **KINDS}
STARCODER2 = {**without(config("starcoder2", vocab_size=709, bos_token_id=0, eos_token_id=0,
                               hidden_act="gelu_pytorch_tanh"), "rms_norm_eps"), "norm_epsilon": 1e-05}
STABLELM = {**without(config("stablelm", vocab_size=719, bos_token_id=0, eos_token_id=0), "rms_norm_eps"),
            "layer_norm_eps": 1e-05}
EXAONE4 = config("exaone4", vocab_size=727, bos_token_id=0, eos_token_id=2, sliding_window=256, **KINDS)
EXAONE_MOE = config("exaone_moe", vocab_size=725, bos_token_id=0, eos_token_id=2, sliding_window=256, num_experts=8,
                    num_experts_per_tok=2, moe_intermediate_size=48, num_shared_experts=1, **KINDS)
YOUTU = config("youtu", vocab_size=723, bos_token_id=0, eos_token_id=2,
               **{key: value for key, value in LATENT.items() if "rank" in key or "head_dim" in key or key == "num_key_value_heads"})
MISTRAL4 = {**config("mistral4", vocab_size=721, bos_token_id=0, eos_token_id=2, architectures=["Mistral4ForCausalLM"]), **LATENT}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
HY_V3 = config("hy_v3", vocab_size=719, head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48)
GRANITE_SWA = config("granite_swa", vocab_size=717, embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0,
                     attention_multiplier=0.0625, bos_token_id=0, eos_token_id=0, sliding_window=256, **KINDS)
GRANITEMOE_SWA = {**GRANITE_SWA, "model_type": "granitemoe_swa", "vocab_size": 715, "num_local_experts": 4,
                  "shared_intermediate_size": 80}
COHERE2_MOE = {**COHERE2, "model_type": "cohere2_moe", "vocab_size": 713, "head_dim": 16, "num_experts": 6,
               "num_shared_experts": 1}
MELLUM = config("mellum", vocab_size=711, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                sliding_window=256, **KINDS)
NEMOTRON = {**without(config("nemotron", vocab_size=739, bos_token_id=2, eos_token_id=3, head_dim=16,
                             hidden_act="relu2"), "rms_norm_eps"), "norm_eps": 1e-05}
ERNIE4_5 = config("ernie4_5", vocab_size=743, head_dim=32, tie_word_embeddings=True)
HUNYUAN = config("hunyuan_v1_dense", vocab_size=751, head_dim=32, pad_token_id=0, eos_token_id=1)
ARCEE = config("arcee", vocab_size=877, hidden_act="relu2")
SEED_OSS = config("seed_oss", vocab_size=881, head_dim=16, residual_dropout=0.1, pad_token_id=0)
OLMO = without(config("olmo", vocab_size=883, pad_token_id=0, eos_token_id=1), "rms_norm_eps")
OLMOE = config("olmoe", vocab_size=887, pad_token_id=0, eos_token_id=1, num_experts=6, num_experts_per_tok=2)
MINISTRAL = config("ministral", vocab_size=907, head_dim=16, sliding_window=256, **KINDS)
TEMPERED = {"rope_type": "yarn", "type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 32, "max_position_embeddings": 512}
MINISTRAL3 = config("ministral3", vocab_size=907, head_dim=16, rope_parameters=TEMPERED)
CWM = config("cwm", vocab_size=911, head_dim=16, sliding_window=256, bos_token_id=0, eos_token_id=1,
             layer_types=["full_attention", "sliding_attention"])
GLM = config("glm", vocab_size=919, head_dim=16, pad_token_id=0, eos_token_id=1)
HELIUM = config("helium", vocab_size=929, head_dim=16, pad_token_id=0)
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1}
DOTS1 = config("dots1", vocab_size=937, head_dim=16, first_k_dense_replace=1, norm_topk_prob=True, **ROUTED)
SOLAR_OPEN = config("solar_open", vocab_size=941, head_dim=16, **ROUTED)
HUNYUAN_MOE = config("hunyuan_v1_moe", vocab_size=947, head_dim=32, num_experts=6, moe_topk=2, pad_token_id=0,
                     eos_token_id=1)
ERNIE4_5_MOE = config("ernie4_5_moe", vocab_size=953, head_dim=32, moe_num_experts=6, moe_k=2, moe_intermediate_size=48,
                      moe_num_shared_experts=2, pad_token_id=0)
MINICPM3 = config("minicpm3", vocab_size=967, q_lora_rank=24, kv_lora_rank=40, qk_nope_head_dim=16, qk_rope_head_dim=8,
                  v_head_dim=16, dim_model_base=32, num_key_value_heads=4, pad_token_id=0)
MINIMAX_M2 = config("minimax_m2", vocab_size=971, head_dim=16, num_local_experts=6, num_experts_per_tok=2,
                    bos_token_id=0, eos_token_id=1)

JAIS2 = {**without(config("jais2", vocab_size=1013, hidden_act="relu2"), "rms_norm_eps"), "layer_norm_eps": 1e-05}
HYPERCLOVAX = config("hyperclovax", vocab_size=1019, embedding_multiplier=10.0, residual_multiplier=0.3,
                     logits_scaling=0.125, attention_multiplier=0.0625)
FLEX_OLMO = config("flex_olmo", vocab_size=1021, num_experts=6, num_experts_per_tok=2, pad_token_id=0)
VAULTGEMMA = {**GEMMA2, "model_type": "vaultgemma", "vocab_size": 971}
GRANITEMOE_SHARED = {**GRANITEMOE, "model_type": "granitemoeshared", "vocab_size": 977, "shared_intermediate_size": 80}
LFM2 = {**without(config("lfm2", vocab_size=983, block_auto_adjust_ff_dim=False, tie_word_embeddings=True,
                         layer_types=["conv", "full_attention"]), "rms_norm_eps", "hidden_act"), "norm_eps": 1e-05}
LFM2_MOE = {**without(LFM2, "block_auto_adjust_ff_dim"), "model_type": "lfm2_moe", "vocab_size": 985, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 40, "num_dense_layers": 1, "num_hidden_layers": 3,
            "layer_types": ["conv", "full_attention", "conv"]}
APERTUS = config("apertus", vocab_size=1031, hidden_act="xielu")
NANOCHAT = config("nanochat", vocab_size=1033, hidden_act="relu2", bos_token_id=0, eos_token_id=1, pad_token_id=1)
PHIMOE = config("phimoe", vocab_size=1039, num_local_experts=6)
GPTJ = {"model_type": "gptj", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "rotary_dim": 8,
        "vocab_size": 1049, "bos_token_id": 0, "eos_token_id": 0}
GPT_NEO = {"model_type": "gpt_neo", "hidden_size": 64, "num_heads": 4, "num_layers": 2, "max_position_embeddings": 256,
           "attention_types": [[["global", "local"], 1]], "window_size": 32, "vocab_size": 1051, "bos_token_id": 0,
           "eos_token_id": 0}
GPT_BIGCODE = {"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256,
               "vocab_size": 991}


def mixtures():
    """Both of the experts' implementations beside the default, and each rule of routing."""
    made = {}
    for name, config, each, experts in (("mixtral", MIXTRAL, 2, 4), ("qwen3-moe", QWEN3_MOE, 3, 8), ("qwen2-moe", QWEN2_MOE, 2, 6),
                                        ("deepseek-v3", DEEPSEEK_V3, 2, 8), ("gpt-oss", GPT_OSS, 2, 4)):
        kernel = {"gpt-oss": {"attention": "eager"}, "deepseek-v3": {"attention": "mem-efficient"}}.get(name, {})
        loop = {"experts": "eager", "micro_batch": 2, **kernel}
        odd = [[83 - 3 * i for i in range(experts)], [0, 1] + [5] * (experts - 2)]  # An expert without tokens.
        for row in odd:
            left = 83 * each - sum(row)
            for i in reversed(range(experts)):
                more = max(-row[i], min(83 - row[i], left)) if row[i] else 0
                row[i], left = row[i] + more, left - more
        counts = "/".join(",".join(map(str, row)) for row in (odd if name != "deepseek-v3" else odd[1:]))
        made.update({
            f"{name}-loop": case(config, seq=72, routing="balanced", **loop),
            f"{name}-loop-worst": case(config, seq=72, routing="worst", **loop),
            f"{name}-loop-uneven": case(config, seq=72, routing="capacity:1.3", **loop),
            f"{name}-loop-checkpoint": case(config, seq=64, checkpoint="full", routing="balanced", **loop),
            f"{name}-loop-frozen": case(config, seq=64, routing="balanced", freeze=["model.layers.0.*", "*down_proj*"], **loop),
            f"{name}-loop-counts": case(config, seq=83, routing="counts:" + counts, grad_accum=2, **{**loop, "micro_batch": 1}),
        })
        batched = {"experts": "batched_mm", **kernel}
        mixed = {"dtype": "fp32", "autocast": "bf16"}
        made[f"{name}-loop-autocast"] = case(config, seq=64, routing="balanced", **loop, **mixed)
        if name != "gpt-oss":
            made[f"{name}-batched-autocast"] = case(config, seq=64, **batched, **mixed)
        if name != "gpt-oss":
            made[f"{name}-batched"] = case(config, micro_batch=2, seq=72, **batched)
            made[f"{name}-batched-checkpoint"] = case(config, seq=64, checkpoint="full", **batched)
    return made


# Without a witness: llama-cache-efficient, which cannot be made.


def rest(name, config, suffixes, **more):
    """What `family` asks, for families whose other witnesses are older than it."""
    made = family(name, config, **more)
    return {name + "-" + suffix: made[name + "-" + suffix] for suffix in suffixes}


def adapted_experts():
    """Adapters on the parameters of experts and routers: each way to run the experts, to checkpoint, and to compute."""
    both = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    every = {**LORA_TWICE, "targets": "all-linear"}
    usual = {**LORA_TWICE, "targets": ALL_LINEAR}
    return {
        "mixtral-lora-all": case(MIXTRAL, micro_batch=2, seq=72, lora=every),
        "mixtral-lora-all-checkpoint": case(MIXTRAL, micro_batch=2, seq=64, lora=every, checkpoint="full"),
        "mixtral-lora-all-loop": case(MIXTRAL, micro_batch=2, seq=64, lora=every, experts="eager", routing="balanced"),
        "mixtral-lora-usual": case(MIXTRAL, micro_batch=2, seq=64, lora=usual),
        "qwen3-moe-lora-usual": case(QWEN3_MOE, micro_batch=2, seq=64, lora=usual),
        "qwen3-moe-lora-all-checkpoint": case(QWEN3_MOE, micro_batch=2, seq=64, lora=every, checkpoint="full"),
        "qwen3-moe-lora-all-checkpoint-reentrant": case(QWEN3_MOE, seq=64, lora=every, checkpoint="full", reentrant=True,
                                                        input_require_grads=True),
        "qwen3-moe-lora-all-accumulate": case(QWEN3_MOE, seq=64, lora=every, grad_accum=2),
        "qwen3-moe-lora-all-bf16": case(QWEN3_MOE, micro_batch=2, seq=61, lora={**every, "r": 3, "alpha": 6, "dtype": "model"}),
        "qwen3-moe-lora-all-loop": case(QWEN3_MOE, micro_batch=2, seq=64, lora=every, experts="eager", routing="balanced"),
        "qwen3-moe-lora-all-batched": case(QWEN3_MOE, seq=40, lora=every, experts="batched_mm"),
        "qwen3-moe-lora-all-autocast": case(QWEN3_MOE, micro_batch=2, seq=64, lora=every, autocast="bf16"),
        "qwen3-moe-lora-all-wide-loop": case(QWEN3_MOE, micro_batch=2, seq=64, lora=every, experts="eager",
                                             routing="balanced", dtype="fp32", autocast="bf16"),
        "deepseek-v3-lora-all-checkpoint": case(DEEPSEEK_V3, micro_batch=2, seq=64, lora=every, checkpoint="full",
                                                attention="mem-efficient"),
        "qwen3-moe-lora-all-unscaled": case(QWEN3_MOE, seq=50, lora={**every, "alpha": 8}),
        "qwen3-moe-lora-parameters": case(QWEN3_MOE, micro_batch=2, seq=64,
                                          lora={**LORA_TWICE, "parameters": ["experts.down_proj"]}),
        "gpt-oss-lora-parameters": case(GPT_OSS, micro_batch=2, seq=64, attention="eager",
                                        lora={**LORA_TWICE, "targets": "all-linear", "parameters": both}),
        "gpt-oss-lora-parameters-checkpoint": case(GPT_OSS, micro_batch=2, seq=64, attention="eager", checkpoint="full",
                                                   lora={**LORA_TWICE, "targets": "all-linear", "parameters": both}),
    }


FAMILIES = {
    **rest("gpt2", gpt2(), ("checkpoint-reentrant", "frozen", "odd"), frozen=("transformer.wpe.*", "transformer.h.0.*")),
    **rest("mistral", MISTRAL, ("frozen",)),
    **rest("mixtral", MIXTRAL, ("checkpoint-reentrant", "lora"), experts=True),
    **rest("qwen2", QWEN2, ("checkpoint-reentrant", "frozen")),
    **rest("qwen3", QWEN3, ("checkpoint-reentrant", "accumulate")),
    **rest("gemma2", GEMMA2, ("checkpoint-reentrant", "accumulate", "lora", "frozen", "autocast", "odd")),
    **family("gemma", GEMMA, odd={"num_key_value_heads": 1}),
    **family("gemma3", GEMMA3, odd={"num_key_value_heads": 4}),
    # A reentrant checkpoint gives keys and values that others read no gradient: refused.
    **without(family("gemma4", GEMMA4, odd={"num_key_value_heads": 4, "attention_bias": True}), "gemma4-checkpoint-reentrant"),
    **without(family("gemma4-dense", GEMMA4_DENSE), "gemma4-dense-checkpoint-reentrant"),
    **without(family("gemma4-moe", GEMMA4_MOE, experts=True), "gemma4-moe-checkpoint-reentrant"),
    **without(family("gemma3n", GEMMA3N, odd={"num_key_value_heads": 4, "attention_bias": True, "altup_num_inputs": 3, "altup_active_idx": 1}),
              "gemma3n-checkpoint-reentrant"),
    "gemma3n-window": case({**GEMMA3N, "sliding_window": 32}, micro_batch=2, seq=77),
    "gemma3n-unscaled": case({**GEMMA3N, "altup_correct_scale": False, "num_kv_shared_layers": 0}, micro_batch=2, seq=60),
    "gemma3n-window-checkpoint": case({**GEMMA3N, "sliding_window": 32}, micro_batch=2, seq=64, checkpoint="full", grad_accum=2),
    "gemma4-window": case({**GEMMA4, "sliding_window": 32}, micro_batch=2, seq=77),
    "gemma4-wide": case({**GEMMA4, "global_head_dim": 264}, micro_batch=2, seq=77),
    "gemma4-wide-checkpoint": case({**GEMMA4_DENSE, "global_head_dim": 264, "sliding_window": 32}, seq=64, checkpoint="full"),
    "gemma3-window": case({**GEMMA3, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("phi", PHI, odd={"qk_layernorm": True, **DROPPED}),
    "phi-dropout-checkpoint": case({**PHI, **DROPPED}, micro_batch=2, seq=64, checkpoint="full"),
    **family("phi3", PHI3, targets=("qkv_proj",), odd={"num_key_value_heads": 4, "partial_rotary_factor": 0.5, **DROPPED}),
    "phi3-longrope": case(LONGROPE, micro_batch=2, seq=64),
    "phi3-longrope-autocast": case(LONGROPE, seq=64, dtype="fp32", autocast="bf16"),
    "phi3-longrope-lora": case(LONGROPE, seq=61, lora={**LORA, "targets": ["qkv_proj"]}, grad_accum=2),
    "phi3-longrope-long": case(LONGROPE, micro_batch=2, seq=83),
    "phi3-longrope-long-checkpoint": case(LONGROPE, seq=96, checkpoint="full", grad_accum=2),
    "phi3-longrope-long-fp16": case(LONGROPE, seq=65, dtype="fp16"),
    "phi3-window": case({**PHI3, "sliding_window": 32}, micro_batch=2, seq=77, attention="mem-efficient"),
    **family("qwen2-moe", QWEN2_MOE, odd={"norm_topk_prob": True, "mlp_only_layers": [1]}, experts=True),
    **family("qwen3-moe", QWEN3_MOE, odd={"norm_topk_prob": False, "decoder_sparse_step": 2}, experts=True),
    **adapted_experts(),
    **family("gpt-neox", GPT_NEOX, targets=("query_key_value",),
             frozen=("gpt_neox.embed_in.*", "gpt_neox.layers.0.*"),
             odd={"use_parallel_residual": False, "hidden_dropout": 0.1}),
    "gpt-neox-dropout": case({**GPT_NEOX, "hidden_dropout": 0.1}, micro_batch=2, seq=64),
    **family("opt", OPT, frozen=("model.decoder.embed_tokens.*", "model.decoder.layers.0.*"),
             odd={"word_embed_proj_dim": 32, "do_layer_norm_before": False, "dropout": 0.0}),
    **family("smollm3", SMOLLM3, odd={"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 128}),
    **family("olmo2", OLMO2, odd={"num_key_value_heads": 4}),
    **family("olmo3", OLMO3, odd={"num_key_value_heads": 1}),
    "olmo3-window": case({**OLMO3, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("vaultgemma", VAULTGEMMA, odd={"num_key_value_heads": 4, "attn_logit_softcapping": None}),
    "vaultgemma-window": case({**VAULTGEMMA, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("granitemoe-shared", GRANITEMOE_SHARED, odd={"num_key_value_heads": 4}, experts=True),
    "granitemoe-shared-none": case({**GRANITEMOE_SHARED, "shared_intermediate_size": 0}, micro_batch=2, seq=72),
    **family("lfm2", LFM2, odd={"conv_bias": True, "conv_L_cache": 5, "num_key_value_heads": 4}),
    **family("lfm2-moe", LFM2_MOE, odd={"conv_bias": True, "num_key_value_heads": 4, "use_expert_bias": False,
                                        "norm_topk_prob": False}, experts=True),
    "lfm2-moe-dense": case({**LFM2_MOE, "num_dense_layers": 3}, micro_batch=2, seq=72),
    "lfm2-moe-undivided": case({**LFM2_MOE, "norm_topk_prob": False, "routed_scaling_factor": 2.5}, micro_batch=2, seq=72),
    "lfm2-moe-loop": case(LFM2_MOE, micro_batch=2, seq=72, experts="eager", routing="balanced"),
    "lfm2-moe-autocast": case(LFM2_MOE, micro_batch=2, seq=72, experts="eager", routing="balanced", dtype="fp32", autocast="bf16"),
    "lfm2-autocast-checkpoint": case(LFM2, seq=64, dtype="fp32", autocast="bf16", checkpoint="full"),
    **family("gpt-bigcode", GPT_BIGCODE, targets=("c_attn",), frozen=("transformer.wte.*", "transformer.h.0.*"),
             odd={"multi_query": False, "n_inner": 200, "resid_pdrop": 0.0, "activation_function": "gelu"}),
    "gpt-bigcode-apart": case({**GPT_BIGCODE, "multi_query": False}, micro_batch=2, seq=64),
    "gpt-bigcode-apart-eager": case({**GPT_BIGCODE, "multi_query": False}, micro_batch=2, seq=64, attention="eager"),
    "gpt-bigcode-math": case(GPT_BIGCODE, micro_batch=2, seq=64, attention="math"),
    **family("granite", GRANITE, odd={"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    **family("glm4", GLM4, odd={"num_key_value_heads": 1, "attention_bias": False}),
    **family("cohere", COHERE, odd={"use_qk_norm": True, "num_key_value_heads": 4}),
    "cohere-qk-norm": case({**COHERE, "use_qk_norm": True}, micro_batch=2, seq=64),
    **family("cohere2", COHERE2, odd={"num_key_value_heads": 4}),
    "cohere2-window": case({**COHERE2, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("starcoder2", STARCODER2, odd={"residual_dropout": 0.1, "embedding_dropout": 0.1}),
    **family("stablelm", STABLELM, odd={"use_parallel_residual": True, "use_qkv_bias": True, "hidden_dropout": 0.1}),
    "stablelm-dropout": case({**STABLELM, "hidden_dropout": 0.1}, micro_batch=2, seq=64),
    **family("exaone4", EXAONE4, odd={"num_key_value_heads": 4}),
    **family("exaone-moe", EXAONE_MOE, experts=True, odd={"num_key_value_heads": 4, "norm_topk_prob": False, "n_group": 2, "topk_group": 1}),
    "exaone-moe-window": case({**EXAONE_MOE, "sliding_window": 32}, micro_batch=2, seq=77),
    "exaone-moe-dense": case({**EXAONE_MOE, "mlp_layer_types": ["sparse", "dense"]}, micro_batch=2, seq=72),
    "exaone-moe-loop": case(EXAONE_MOE, micro_batch=2, seq=72, experts="eager", routing="balanced"),
    **family("youtu", YOUTU, targets=("q_b_proj", "kv_b_proj"), attention="mem-efficient",
             odd={"q_lora_rank": None, "v_head_dim": 32, "rope_interleave": False, "tie_word_embeddings": True}),
    **family("mistral4", MISTRAL4, targets=("q_b_proj", "kv_b_proj"), experts=True, attention="mem-efficient",
             odd={"q_lora_rank": None, "v_head_dim": 32, "n_group": 2, "topk_group": 1, "norm_topk_prob": False,
                  "rope_interleave": False, "rope_parameters": YARN, "first_k_dense_replace": 1}),
    "mistral4-flash": case({**MISTRAL4, "v_head_dim": 24}, seq=64),
    "mistral4-loop": case(MISTRAL4, micro_batch=2, seq=72, experts="eager", routing="balanced", attention="mem-efficient"),
    **family("hy-v3", HY_V3, experts=True, odd={"num_key_value_heads": 4, "enable_moe_fp32_combine": False, "attention_bias": True}),
    "hy-v3-loop": case(HY_V3, micro_batch=2, seq=72, experts="eager", routing="balanced"),
    **family("granite-swa", GRANITE_SWA, eager=False, attention="eager",
             odd={"num_key_value_heads": 4, "attention_bias": True, "layer_rope_theta": [0, 500.0]}),
    "granite-swa-window": case({**GRANITE_SWA, "sliding_window": 32, "layer_rope_theta": [10000.0, 500.0]}, micro_batch=2, seq=77,
                               attention="eager"),
    "granite-swa-dropout": case({**GRANITE_SWA, "attention_dropout": 0.1}, micro_batch=2, seq=64, attention="eager"),
    **family("granitemoe-swa", GRANITEMOE_SWA, experts=True, eager=False, attention="eager",
             odd={"num_key_value_heads": 4, "layer_rope_theta": [10000.0, 0]}),
    "granitemoe-swa-alone": case({**GRANITEMOE_SWA, "shared_intermediate_size": 0}, micro_batch=2, seq=72, attention="eager"),
    **family("cohere2-moe", COHERE2_MOE, experts=True,
             odd={"num_key_value_heads": 4, "expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum"}),
    "cohere2-moe-window": case({**COHERE2_MOE, "sliding_window": 32, "num_shared_experts": 0}, micro_batch=2, seq=77),
    "cohere2-moe-rms": case({**COHERE2_MOE, "rms_norm_eps": 1e-05, "mlp_layer_types": ["dense", "sparse"],
                             "prefix_dense_intermediate_size": 100}, micro_batch=2, seq=72),
    "cohere2-moe-loop": case(COHERE2_MOE, micro_batch=2, seq=72, experts="eager", routing="balanced"),
    **family("mellum", MELLUM, experts=True, odd={"num_key_value_heads": 4, "norm_topk_prob": False}),
    "mellum-window": case({**MELLUM, "sliding_window": 32}, micro_batch=2, seq=77),
    "mellum-dense": case({**MELLUM, "layer_types": ["full_attention"] * 2, "mlp_layer_types": ["dense", "sparse"]}, micro_batch=2, seq=72),
    "exaone4-window": case({**EXAONE4, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("nemotron", NEMOTRON, odd={"num_key_value_heads": 4, "mlp_bias": True}),
    **family("ernie4-5", ERNIE4_5, odd={"num_key_value_heads": 4, "use_bias": True}),
    **family("hunyuan-dense", HUNYUAN, odd={"num_key_value_heads": 4, "attention_bias": True}),
    **family("deepseek-v2", DEEPSEEK_V2, targets=("q_b_proj", "kv_b_proj"), experts=True, attention="mem-efficient",
             odd={"q_lora_rank": None, "topk_method": "greedy", "v_head_dim": 32}),
    **family("deepseek-v3", DEEPSEEK_V3, targets=("q_b_proj", "kv_b_proj"), experts=True, attention="mem-efficient",
             odd={"q_lora_rank": None, "norm_topk_prob": False, "v_head_dim": 32, "rope_interleave": False}),
    **family("glm4-moe-lite", GLM4_LITE, targets=("q_b_proj", "kv_b_proj"), experts=True, attention="mem-efficient",
             odd={"q_lora_rank": None, "norm_topk_prob": False, "v_head_dim": 32, "rope_interleave": False, "n_group": 2}),
    "deepseek-v3-flash": case({**DEEPSEEK_V3, "v_head_dim": 24}, seq=64),
    **family("bert", BERT, targets=("query", "value"), frozen=("bert.embeddings.*", "bert.encoder.layer.0.*"),
             odd={"hidden_act": "relu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
    "bert-math": case(BERT, micro_batch=2, seq=70, attention="math"),
    **heads_of("bert", BERT),
    **answers_of("bert", BERT),
    **numbers_of("bert", BERT),
    **family("roberta", ROBERTA, targets=("query", "value"), frozen=("roberta.embeddings.*", "roberta.encoder.layer.0.*"),
             odd={"tie_word_embeddings": False}),
    **heads_of("roberta", ROBERTA),
    **answers_of("roberta", ROBERTA),
    **family("ernie", ERNIE, targets=("query", "value"), frozen=("ernie.embeddings.*", "ernie.encoder.layer.0.*"),
             odd={"use_task_id": False, "hidden_act": "relu"}),
    **heads_of("ernie", ERNIE),
    **answers_of("ernie", ERNIE),
    **family("data2vec-text", DATA2VEC, targets=("query", "value"),
             frozen=("data2vec_text.embeddings.*", "data2vec_text.encoder.layer.0.*"), odd={"tie_word_embeddings": False}),
    **heads_of("data2vec-text", DATA2VEC, prefix="Data2VecText"),
    **family("xlm-roberta", XLM_ROBERTA, targets=("query", "value"), odd={"tie_word_embeddings": False},
             frozen=("roberta.embeddings.*", "roberta.encoder.layer.0.*")),
    **heads_of("xlm-roberta", XLM_ROBERTA),
    **numbers_of("xlm-roberta", XLM_ROBERTA),
    **family("camembert", CAMEMBERT, targets=("query", "value"), odd={"tie_word_embeddings": False},
             frozen=("roberta.embeddings.*", "roberta.encoder.layer.0.*")),
    **heads_of("camembert", CAMEMBERT),
    **family("deberta", DEBERTA, targets=("query_proj", "value_proj"), eager=False, attention="eager",
             frozen=("deberta.embeddings.*", "deberta.encoder.layer.0.*"),
             odd={"tie_word_embeddings": False, "share_att_key": False, "position_biased_input": True, "type_vocab_size": 2,
                  "norm_rel_ebd": "none", "max_relative_positions": 100}),
    # Normed distances are shared by layers, which a reentrant checkpoint goes backward through twice: PyTorch stops.
    "deberta-checkpoint-reentrant": case({**DEBERTA, "norm_rel_ebd": "none"}, seq=64, checkpoint="full", reentrant=True,
                                         input_require_grads=True, attention="eager"),
    "deberta-convolved": case({**DEBERTA, "conv_kernel_size": 3}, seq=64, attention="eager"),
    "deberta-convolved-autocast": case({**DEBERTA, "conv_kernel_size": 5, "conv_groups": 4, "conv_act": "gelu"}, micro_batch=3, seq=61,
                                       dtype="fp32", autocast="bf16", attention="eager"),
    "deberta-convolved-checkpoint": case({**DEBERTA, "conv_kernel_size": 3, "conv_groups": 2}, seq=64, checkpoint="full", attention="eager"),
    **heads_of("deberta", DEBERTA, attention="eager"),
    **numbers_of("deberta", DEBERTA, attention="eager"),
    "deberta-number-named": case({**numbers_of("", DEBERTA)["-number"]["config"], "problem_type": "regression"}, micro_batch=3, seq=64,
                                 dtype="fp32", attention="eager"),
    "deberta-number-bf16": case(numbers_of("", DEBERTA)["-number"]["config"], micro_batch=3, seq=64, attention="eager"),
    "deberta-text-named": case({**heads_of("", DEBERTA)["-text"]["config"], "problem_type": "single_label_classification"},
                               micro_batch=2, seq=64, attention="eager"),
    "deberta-plain": case({**DEBERTA, "relative_attention": False, "pos_att_type": None, "norm_rel_ebd": "none", "position_biased_input": True,
                           "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, micro_batch=2, seq=72,
                          attention="eager"),
    "deberta-c2p": case({**DEBERTA, "pos_att_type": ["c2p"], "position_buckets": -1, "share_att_key": False}, micro_batch=2, seq=72,
                        attention="eager"),
    **family("electra", ELECTRA, targets=("query", "value"),
             frozen=("electra.embeddings.*", "electra.encoder.layer.0.*"),
             odd={"hidden_dropout_prob": 0.0, "embedding_size": 64, "type_vocab_size": 1, "hidden_act": "relu"}),
    **heads_of("electra", ELECTRA),
    **answers_of("electra", ELECTRA),
    **numbers_of("electra", ELECTRA),
    "electra-fp32": case(ELECTRA, micro_batch=2, seq=61, dtype="fp32", attention="mem-efficient"),
    **albert_cases(),
    **family("distilbert", DISTILBERT, targets=("q_lin", "v_lin"),
             frozen=("distilbert.embeddings.*", "distilbert.transformer.layer.0.*"), odd={"dropout": 0.0}),
    **heads_of("distilbert", DISTILBERT),
    **answers_of("distilbert", DISTILBERT),
    **numbers_of("distilbert", DISTILBERT),
    **family("modernbert", MODERNBERT, targets=("Wqkv", "Wo"), frozen=("model.embeddings.*", "model.layers.0.*"),
             odd={"tie_word_embeddings": False, "attention_dropout": 0.1, "mlp_dropout": 0.1, "embedding_dropout": 0.1,
                  "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
                  "decoder_bias": False, "classifier_activation": "relu"}),
    **heads_of("modernbert", MODERNBERT),
    **numbers_of("modernbert", MODERNBERT),
    **heads_of("modernbert-mean", {**MODERNBERT, "classifier_pooling": "mean", "classifier_dropout": 0.1}),
    "modernbert-window": case(NARROW, micro_batch=2, seq=77),
    "modernbert-window-one-row": case({**NARROW, "attention_dropout": 0.1}, seq=83),
    "modernbert-window-checkpoint": case(NARROW, micro_batch=2, seq=64, checkpoint="full", reentrant=True,
                                         input_require_grads=True),
    "modernbert-window-autocast": case(NARROW, micro_batch=2, seq=77, dtype="fp32", autocast="bf16"),
    "modernbert-window-fp32": case(NARROW, seq=72, dtype="fp32", attention="mem-efficient"),
    "modernbert-window-eager": case(NARROW, micro_batch=2, seq=64, attention="eager"),
    "modernbert-math": case(MODERNBERT, micro_batch=2, seq=70, attention="math"),
    **family("llama4", LLAMA4, experts=True, every=ALL_LINEAR, odd={"num_key_value_heads": 4, "use_qk_norm": False, "attention_bias": True,
                                                  "attn_temperature_tuning": False, "interleave_moe_layer_step": 1,
                                                  "num_experts_per_tok": 2}),
    "llama4-autocast": case(LLAMA4, micro_batch=2, seq=64, dtype="fp32", autocast="bf16"),
    "llama4-window": case({**LLAMA4, "attention_chunk_size": 32}, micro_batch=2, seq=77),
    "llama4-window-eager": case({**LLAMA4, "attention_chunk_size": 32}, micro_batch=2, seq=64, attention="eager"),
    "llama4-math": case(LLAMA4, micro_batch=2, seq=70, attention="math"),
    "llama4-eager-row": case({**LLAMA4, "num_key_value_heads": 4}, seq=70, attention="eager"),
    "llama4-eager-one": case({**LLAMA4, "num_key_value_heads": 1}, micro_batch=2, seq=70, attention="eager"),
    "llama4-one-head": case({**LLAMA4, "num_attention_heads": 1, "num_key_value_heads": 1}, micro_batch=2, seq=64,
                            attention="eager"),
    "llama4-one-expert": case({**LLAMA4, "num_key_value_heads": 4, "no_rope_layers": [1, 1], "attention_chunk_size": 32,
                               "tie_word_embeddings": True, "num_local_experts": 1, "attention_dropout": 0.1},
                              micro_batch=2, seq=70, attention="mem-efficient"),
    "llama4-fp32": case({**LLAMA4, "num_key_value_heads": 4}, micro_batch=2, seq=70, dtype="fp32",
                        attention="mem-efficient"),
    **family("t5", T5, targets=("q", "v"), frozen=("shared.*", "encoder.block.0.*"), attention="mem-efficient",
             target_seq=40, odd={"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3, "tie_word_embeddings": False,
                                 "d_kv": 8, "dropout_rate": 0.0}, dtype="bf16"),
    **family("t5-sdpa", T5, targets=("q", "v"), frozen=("shared.*", "encoder.block.0.*"), attention="math+mem-efficient",
             eager=False, target_seq=40, odd={"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3, "d_kv": 8,
                                              "dropout_rate": 0.0}, dtype="bf16"),
    "t5-sdpa-fp32": case(T5, micro_batch=2, seq=70, target_seq=40, dtype="fp32", attention="math+mem-efficient"),
    "t5-math": case(T5, micro_batch=2, seq=70, target_seq=40, attention="math"),
    "t5-math-checkpoint": case(T5, micro_batch=2, seq=64, target_seq=40, checkpoint="full", attention="math"),
    "mt5-sdpa": case(MT5, micro_batch=2, seq=64, target_seq=40, attention="math+mem-efficient"),
    "t5-long-target": case({**T5, "num_heads": 3, "feed_forward_proj": "gated-gelu"}, micro_batch=2, seq=37,
                           target_seq=83, attention="mem-efficient"),
    "t5-one-head": case({**T5, "num_heads": 1}, micro_batch=2, seq=64, target_seq=40, attention="mem-efficient"),
    "t5-one-token": case(T5, micro_batch=2, seq=24, target_seq=1, attention="mem-efficient"),
    "t5-fp32": case(T5, micro_batch=2, seq=70, target_seq=40, dtype="fp32", attention="mem-efficient"),
    "t5-lora-checkpoint": case(T5, micro_batch=2, seq=64, target_seq=40, checkpoint="full", attention="mem-efficient",
                               lora={**LORA, "targets": ["q", "v"]}),
    "t5-layers-reentrant": case({**T5, "num_layers": 3, "num_decoder_layers": 4}, micro_batch=2, seq=56, target_seq=40,
                                checkpoint="full", reentrant=True, input_require_grads=True, attention="mem-efficient"),
    "t5-eager-checkpoint": case(T5, seq=70, target_seq=40, checkpoint="full", attention="eager"),
    **family("mt5", MT5, targets=("q", "v"), frozen=("shared.*", "encoder.block.0.*"), attention="eager", eager=False,
             target_seq=40, odd={"feed_forward_proj": "relu", "num_decoder_layers": 3, "d_kv": 8, "dropout_rate": 0.0},
             dtype="bf16"),
    **family("umt5", UMT5, targets=("q", "v"), frozen=("shared.*", "encoder.block.0.*"), attention="mem-efficient",
             target_seq=40, odd={"d_kv": 8, "num_heads": 5, "feed_forward_proj": "relu", "dropout_rate": 0.0}, dtype="bf16"),
    "umt5-sdpa": case(UMT5, micro_batch=2, seq=64, target_seq=40, attention="math+mem-efficient"),
    "umt5-sdpa-checkpoint": case(UMT5, micro_batch=2, seq=64, target_seq=40, checkpoint="full", attention="math+mem-efficient"),
    "mt5-efficient": case(MT5, micro_batch=2, seq=64, target_seq=40, attention="mem-efficient"),
    **of_sound(family("whisper", WHISPER, frozen=("model.encoder.*",), dtype="bf16",
                      odd={"dropout": 0.1, "attention_dropout": 0.1, "max_source_positions": 61, "decoder_layers": 3,
                           "num_mel_bins": 24, "activation_function": "relu", "tie_word_embeddings": False})),
    **of_sound({
        "whisper-math": case(WHISPER, micro_batch=2, attention="math"),
        "whisper-fp32": case({**WHISPER, "dropout": 0.1}, micro_batch=2, dtype="fp32", attention="mem-efficient"),
        "whisper-eager-checkpoint": case(WHISPER, checkpoint="full", attention="eager"),
        "whisper-layers-reentrant": case({**WHISPER, "encoder_layers": 4, "dropout": 0.1}, micro_batch=2,
                                         checkpoint="full", reentrant=True, input_require_grads=True),
        "whisper-lora-checkpoint": case(WHISPER, micro_batch=2, checkpoint="full",
                                        lora={**LORA, "targets": ["q_proj", "v_proj"]}),
        "whisper-one-head": case({**WHISPER, "encoder_attention_heads": 1, "decoder_attention_heads": 1}, micro_batch=2),
    }, target=77),
    "whisper-one-token": case(WHISPER, seq=56, target_seq=1),
    **family("mamba2", MAMBA2, targets=("in_proj",), eager=False, attention="eager",
             frozen=("backbone.embeddings.*", "backbone.layers.0.*"),
             odd={"use_bias": True, "use_conv_bias": False, "residual_in_fp32": False, "n_groups": 1, "chunk_size": 40,
                  "tie_word_embeddings": True, "time_step_limit": [0.001, 0.1]}),
    **family("granitemoehybrid", HYBRID, experts=True,
             odd={"mamba_n_groups": 1, "mamba_chunk_size": 40, "mamba_proj_bias": True, "mamba_conv_bias": False,
                  "attention_bias": True, "tie_word_embeddings": True}),
    **family("nemotron-h", NEMOTRON_H, experts=True, every=ALL_LINEAR, frozen=("model.embeddings.*", "model.layers.0.*"),
             odd={"n_groups": 1, "chunk_size": 40, "use_bias": True, "use_conv_bias": False, "mlp_bias": True, "n_group": 1,
                  "norm_topk_prob": False, "mlp_hidden_act": "silu"}),
    "nemotron-h-latent": case({**NEMOTRON_H, "moe_latent_size": 24, "mlp_bias": True}, micro_batch=2, seq=70),
    "nemotron-h-latent-checkpoint": case({**NEMOTRON_H, "moe_latent_size": 24}, micro_batch=2, seq=64, checkpoint="full"),
    "nemotron-h-own-groups": case({**NEMOTRON_H, "n_groups": 8}, micro_batch=2, seq=70),
    "nemotron-h-batched": case(NEMOTRON_H, micro_batch=2, seq=70, experts="batched_mm"),
    "nemotron-h-dense-autocast": case(NEMOTRON_H_DENSE, micro_batch=2, seq=64, dtype="fp32", autocast="bf16"),
    "nemotron-h-dense-checkpoint": case(NEMOTRON_H_DENSE, micro_batch=2, seq=64, checkpoint="full", grad_accum=2),
    "granitemoehybrid-dense": case({**HYBRID, "num_local_experts": 0, "position_embedding_type": "rope"}, micro_batch=2,
                                   seq=70),
    "granitemoehybrid-dense-autocast": case({**HYBRID, "num_local_experts": 0}, micro_batch=2, seq=64, dtype="fp32",
                                            autocast="bf16"),
    "granitemoehybrid-dense-checkpoint": case({**HYBRID, "num_local_experts": 0, "position_embedding_type": "rope"},
                                              micro_batch=2, seq=64, checkpoint="full"),
    "granitemoehybrid-attends": case({**HYBRID, "num_local_experts": 0, "position_embedding_type": "rope",
                                      "layer_types": ["full_attention"] * 3}, micro_batch=2, seq=70),
    **family("qwen3-next", QWEN3_NEXT, experts=True, frozen=("model.embed_tokens.*", "model.layers.0.*"),
             odd={"linear_num_value_heads": 2, "linear_key_head_dim": 16, "attention_bias": True, "mlp_only_layers": [1],
                  "norm_topk_prob": False, "tie_word_embeddings": True}),
    "qwen3-next-dense-autocast": case({**QWEN3_NEXT, "num_experts": 0}, micro_batch=2, seq=64, dtype="fp32",
                                      autocast="bf16"),
    **family("qwen3-5", QWEN3_5, odd={"linear_num_value_heads": 2, "linear_key_head_dim": 16, "attention_bias": True,
                                      "tie_word_embeddings": True}),
    "qwen3-5-one-chunk": case(QWEN3_5, micro_batch=2, seq=40),
    **family("qwen3-5-moe", QWEN3_5_MOE, experts=True, odd={"linear_num_value_heads": 2, "num_key_value_heads": 4}),
    "qwen3-next-one-chunk": case({**QWEN3_NEXT, "mlp_only_layers": [0, 1, 2]}, micro_batch=2, seq=40),
    "mamba2-short": case(MAMBA2, micro_batch=3, seq=20, dtype="fp32", attention="eager"),
    "mamba2-one-head": case({**MAMBA2, "num_heads": 1, "head_dim": 128, "n_groups": 1}, seq=70, dtype="fp16",
                            attention="eager"),
    "mamba2-own-groups": case({**MAMBA2, "n_groups": 8}, micro_batch=2, seq=70, attention="eager"),
    **translators(),
    **family("bloom", BLOOM, targets=("query_key_value",), eager=False, attention="eager",
             frozen=("transformer.word_embeddings.*", "transformer.h.0.*"),
             odd={"n_head": 1, "hidden_dropout": 0.1, "attention_dropout": 0.1}),
    "bloom-three-heads": case({**BLOOM, "hidden_size": 72, "n_head": 3, "hidden_dropout": 0.1}, micro_batch=2, seq=72,
                              attention="eager"),
    # One key-value head that sdpa is given as it is: the math kernel.
    **family("falcon", FALCON, **{**FALCON_PARTS, "attention": "math"}, eager=False,
             odd={"num_attention_heads": 8, "hidden_dropout": 0.1}),
    **family("falcon-new", FALCON_NEW, **FALCON_PARTS, eager=False,
             odd={"num_ln_in_parallel_attn": 1, "num_kv_heads": 4, "bias": True, "activation": "relu"}),
    **family("falcon-rw", FALCON_RW, **FALCON_PARTS, eager=False,
             odd={"num_attention_heads": 2, "attention_dropout": 0.1, "hidden_dropout": 0.1, "bias": False}),
    "falcon-rw-dropout": case({**FALCON_RW, "attention_dropout": 0.1, "hidden_dropout": 0.1}, micro_batch=2, seq=77,
                              attention="mem-efficient", checkpoint="full"),
    "falcon-fp32": case({**FALCON, "num_attention_heads": 2}, micro_batch=2, seq=70, dtype="fp32", attention="math"),
    "falcon-new-one-group": case({**FALCON_NEW, "num_kv_heads": 1}, micro_batch=2, seq=64, attention="mem-efficient"),
    "falcon-rw-fp32": case(FALCON_RW, micro_batch=2, seq=70, dtype="fp32", attention="mem-efficient"),
    "bloom-fp32": case(BLOOM, micro_batch=2, seq=70, dtype="fp32", attention="eager"),
    "falcon-rw-parallel": case({**FALCON_RW, "parallel_attn": True}, seq=64, attention="mem-efficient"),
    **family("apertus", APERTUS, odd={"num_key_value_heads": 4, "attention_bias": True}),
    "apertus-autocast-checkpoint": case(APERTUS, seq=64, dtype="fp32", autocast="bf16", checkpoint="full"),
    "apertus-relu2": case({**APERTUS, "hidden_act": "relu2"}, micro_batch=2, seq=64),
    **family("nanochat", NANOCHAT, odd={"num_key_value_heads": 4, "attention_bias": True, "final_logit_softcapping": None}),
    **without(family("phimoe", PHIMOE, experts=True, every=ALL_LINEAR,
                     odd={"num_key_value_heads": 4, "attention_bias": True, "lm_head_bias": True}),
              "phimoe-autocast-grouped"),
    "phimoe-window": case({**PHIMOE, "sliding_window": 32}, micro_batch=2, seq=77, attention="mem-efficient"),
    **family("gptj", GPTJ, eager=False, attention="eager", frozen=("transformer.wte.*", "transformer.h.0.*"),
             odd={"n_head": 2, "n_inner": 200, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
                  "tie_word_embeddings": True}),
    "gptj-fp32": case(GPTJ, micro_batch=2, seq=70, dtype="fp32", attention="eager"),
    "gptj-one-head": case({**GPTJ, "n_head": 1}, micro_batch=2, seq=64, attention="eager"),
    "gptj-three-heads": case({**GPTJ, "n_embd": 72, "n_head": 3}, micro_batch=3, seq=61, attention="eager"),
    **family("gpt-neo", GPT_NEO, eager=False, attention="eager", frozen=("transformer.wpe.*", "transformer.h.0.*"),
             odd={"num_heads": 2, "intermediate_size": 200, "resid_dropout": 0.1, "embed_dropout": 0.1,
                  "attention_dropout": 0.1, "tie_word_embeddings": False}),
    "gpt-neo-fp32": case(GPT_NEO, micro_batch=2, seq=70, dtype="fp32", attention="eager"),
    "gpt-neo-one-head": case({**GPT_NEO, "num_heads": 1}, micro_batch=2, seq=64, attention="eager"),
    "gpt-neo-three-heads": case({**GPT_NEO, "hidden_size": 72, "num_heads": 3}, micro_batch=3, seq=61, attention="eager"),
    **family("jais2", JAIS2, odd={"num_key_value_heads": 4, "attention_bias": False, "mlp_bias": False}),
    **family("hyperclovax", HYPERCLOVAX, odd={"num_key_value_heads": 4, "use_post_norm": False, "attention_bias": True}),
    **family("flex-olmo", FLEX_OLMO, experts=True, odd={"num_key_value_heads": 4, "norm_topk_prob": True}),
    **family("arcee", ARCEE, odd={"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    **family("seed-oss", SEED_OSS, odd={"num_key_value_heads": 4, "residual_dropout": 0.0, "attention_out_bias": True,
                                        "attention_bias": False, "mlp_bias": True, "attention_dropout": 0.0}),
    **family("olmo", OLMO, odd={"num_key_value_heads": 4, "attention_bias": True}),
    **family("olmoe", OLMOE, experts=True, odd={"num_key_value_heads": 4, "norm_topk_prob": True}),
    **family("ministral", MINISTRAL, odd={"num_key_value_heads": 4}),
    "ministral-window": case({**MINISTRAL, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("ministral3", MINISTRAL3, odd={"num_key_value_heads": 4}),
    "ministral3-one-head": case({**MINISTRAL3, "num_key_value_heads": 1}, micro_batch=2, seq=77),
    **family("cwm", CWM, odd={"num_key_value_heads": 1, "mlp_bias": True}),
    "cwm-window": case({**CWM, "sliding_window": 32}, micro_batch=2, seq=77),
    **family("glm", GLM, odd={"num_key_value_heads": 1, "attention_bias": False}),
    **family("helium", HELIUM, odd={"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    **family("dots1", DOTS1, experts=True, odd={"attention_bias": True, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
    **family("solar-open", SOLAR_OPEN, experts=True, odd={"attention_bias": True, "norm_topk_prob": False, "num_key_value_heads": 1}),
    **family("hunyuan-moe", HUNYUAN_MOE, experts=True, odd={"num_key_value_heads": 4, "attention_bias": True}),
    **family("ernie4-5-moe", ERNIE4_5_MOE, experts=True, odd={"num_key_value_heads": 4, "use_bias": True, "moe_num_shared_experts": 0,
                                                              "moe_layer_start_index": 0}),
    **family("minicpm3", MINICPM3, targets=("q_b_proj", "kv_b_proj"), attention="mem-efficient",
             odd={"q_lora_rank": None, "v_head_dim": 32, "attention_bias": True}),
    **family("minimax-m2", MINIMAX_M2, experts=True, odd={"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    **family("glm4-moe", GLM4_MOE, experts=True,
             odd={"use_qk_norm": True, "attention_bias": True, "n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
    **family("granitemoe", GRANITEMOE, experts=True, odd={"num_key_value_heads": 4, "attention_bias": True}),
    **family("gpt-oss", GPT_OSS, experts=True, eager=False, attention="eager",
             odd={"num_key_value_heads": 1, "attention_bias": False, "num_experts_per_tok": 3}),
    **heads_of("llama", {**config("llama"), "pad_token_id": 0}, prefix="Llama"),
    **heads_of("qwen2", {**QWEN2, "pad_token_id": 0}, prefix="Qwen2"),
    **heads_of("gemma", GEMMA, prefix="Gemma"),
    **heads_of("mixtral", {**MIXTRAL, "pad_token_id": 0}, prefix="Mixtral"),
    "qwen3-text-checkpoint": case({**heads_of("", {**QWEN3, "pad_token_id": 0}, prefix="Qwen3")["-text"]["config"]},
                                  micro_batch=2, seq=64, checkpoint="full"),
    "llama-reward": case(heads_of("", {**config("llama"), "pad_token_id": 0}, 1, "Llama")["-text"]["config"],
                         micro_batch=2, seq=64, dtype="fp32", attention="math"),
    "llama-reward-autocast": case(heads_of("", {**config("llama"), "pad_token_id": 0}, 1, "Llama")["-text"]["config"],
                                  micro_batch=2, seq=64, dtype="fp32", autocast="bf16"),
    "qwen2-reward-lora": case(heads_of("", {**QWEN2, "pad_token_id": 0}, 1, "Qwen2")["-text"]["config"],
                              micro_batch=3, seq=50, dtype="fp32", autocast="bf16", lora={**LORA, "save": ["score"]}),
    "qwen3-reward-checkpoint": case(heads_of("", {**QWEN3, "pad_token_id": 0}, 1, "Qwen3")["-text"]["config"],
                                    micro_batch=2, seq=64, dtype="fp32", autocast="bf16", checkpoint="full"),
    "llama-reward-one-row": case(heads_of("", config("llama"), 1, "Llama")["-text"]["config"], seq=64, dtype="fp32",
                                 autocast="bf16"),
    "gpt-oss-text": {**(made := heads_of("", {**GPT_OSS, "pad_token_id": 0}, prefix="GptOss")["-text"]),
                     "training": {**made["training"], "attention": "eager"}},
    "hunyuan-dense-text": heads_of("", HUNYUAN, prefix="HunYuanDenseV1")["-text"],
    "olmo3-text": heads_of("", OLMO3, prefix="Olmo3")["-text"],
    "olmo-text": heads_of("", OLMO, prefix="Olmo")["-text"],
    "arcee-tokens": heads_of("", {**ARCEE, "pad_token_id": 0}, prefix="Arcee")["-tokens"],
    "ministral-text": heads_of("", {**MINISTRAL, "pad_token_id": 0}, prefix="Ministral")["-text"],
    "glm-tokens": heads_of("", GLM, prefix="Glm")["-tokens"],
    **heads_of("phi", {**PHI, "pad_token_id": 0}, prefix="Phi"),
    **heads_of("phi3", PHI3, prefix="Phi3"),
    **heads_of("stablelm", {**STABLELM, "pad_token_id": 0}, prefix="StableLm"),
    **heads_of("nemotron", {**NEMOTRON, "pad_token_id": 0}, prefix="Nemotron"),
    **heads_of("exaone4", {**EXAONE4, "pad_token_id": 0}, prefix="Exaone4"),
    **heads_of("smollm3", SMOLLM3, prefix="SmolLM3"),
    **heads_of("starcoder2", {**STARCODER2, "pad_token_id": 0}, prefix="Starcoder2"),
    **heads_of("glm4", GLM4, prefix="Glm4"),
    "olmo2-text": heads_of("", OLMO2, prefix="Olmo2")["-text"],
    "hunyuan-moe-text": heads_of("", HUNYUAN_MOE, prefix="HunYuanMoEV1")["-text"],
    **heads_of("seed-oss", SEED_OSS, prefix="SeedOss"),
    **heads_of("helium", HELIUM, prefix="Helium"),
    **later_heads(),
    "llama-text-one-row": case(heads_of("", config("llama"), prefix="Llama")["-text"]["config"], seq=64),
    **{name: {**made, "training": {**made["training"], "seq": 37, "micro_batch": 2}}
       for name, made in family("vit", VIT, frozen=("vit.embeddings.*", "vit.layers.0.*"),
                                odd={"hidden_dropout_prob": 0.1, "qkv_bias": False}).items()
       if name != "vit-checkpoint-reentrant"},
    **{name: {**made, "training": {**made["training"], "seq": 37, "micro_batch": 2}}
       for name, made in family("dinov2", DINOV2, targets=("query", "value"), frozen=("dinov2.embeddings.*", "dinov2.encoder.layer.0.*"),
                                odd={"hidden_dropout_prob": 0.1, "qkv_bias": False, "use_mask_token": False}).items()
       if name != "dinov2-checkpoint-reentrant"},
    **{f"dinov2-resampled{name}": case(DINOV2, micro_batch=2, seq=17, **more)
       for name, more in {"": {}, "-checkpoint": {"checkpoint": "full"}, "-autocast": {"dtype": "fp32", "autocast": "bf16"}}.items()},
    "dinov2-resampled-wider": case({**DINOV2, "image_size": 32}, micro_batch=3, seq=50, grad_accum=2, dtype="fp32", attention="math"),
    "dinov2-gated": case({**DINOV2, "use_swiglu_ffn": True}, micro_batch=2, seq=37),
    "dinov2-gated-autocast": case({**DINOV2, "use_swiglu_ffn": True}, micro_batch=3, seq=37, dtype="fp32", autocast="bf16"),
    "qwen2-moe-window": case({**QWEN2_MOE, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
                             micro_batch=2, seq=77),
    "qwen2-window": case({**QWEN2, "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
                         micro_batch=2, seq=77),
}
WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim", "d_ff", "n_inner",
          "encoder_ffn_dim", "decoder_ffn_dim")


def drawn(name, made):
    """A family's configuration by lot, and how it is trained: what nobody thought of asking."""
    draw = random.Random(name)
    config, training = dict(made[name]["config"]), dict(made[name]["training"])
    for key in WIDTHS:
        if config.get(key):
            config[key] = 8 * draw.randrange(6, 30)
    if "vocab_size" in config:
        config["vocab_size"] = draw.randrange(515, 1100)
    if "tie_word_embeddings" in config:
        config["tie_word_embeddings"] = draw.random() < 0.5
    heads = config.get("num_attention_heads", 0)
    if config.get("num_key_value_heads") and "kv_lora_rank" not in config:
        config["num_key_value_heads"] = draw.choice([n for n in range(2, heads + 1) if heads % n == 0])
    training.update(micro_batch=draw.randrange(1, 4), grad_accum=draw.choice((1, 1, 2)))
    if "vocab_size" in config and config["model_type"] != "whisper":
        training["seq"] = draw.randrange(17, 120)
    if draw.random() < 0.4 and name != "albert":  # Which has none.
        training["checkpoint"] = "full"
    way = draw.choice(("lora", "frozen", "autocast", ""))
    other = made.get(f"{name}-{way}", made[name])["training"]
    training.update({key: other[key] for key in ("lora", "freeze", "dtype", "autocast") if key in other})
    return {"config": config, "training": training}


def all_drawn(families):
    """Of each family the first of its cases."""
    kinds = {}
    for name, made in families.items():
        kinds.setdefault(made["config"]["model_type"], name)
    return {f"{kind.replace('_', '-')}-drawn": drawn(name, families) for kind, name in kinds.items()}


# All of ACT2FN that no other case has, but for those that no graph has: erf written out, ReLU6, and what has
# parameters of its own.
ACTIVATIONS = ("gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python_tanh", "gelu_pytorch_tanh",
               "hardswish", "leaky_relu", "linear", "mish", "quick_gelu", "relu", "relu2", "sigmoid", "sqrtsoftplus",
               "swish", "tanh")

# All that use_liger_kernel puts in place of a model's own operators.
ALL_KERNELS = {"liger_kernels": "rope,rms_norm,swiglu", "loss": "liger"}


def liger_kernels():
    llama, mistral = {**LLAMA}, {**MISTRAL}
    return {
        "llama-kernels": case(llama, micro_batch=2, seq=72, **ALL_KERNELS),
        "llama-kernels-checkpoint": case(llama, micro_batch=2, seq=64, checkpoint="full", **ALL_KERNELS),
        "llama-kernels-checkpoint-reentrant": case(llama, seq=64, checkpoint="full", reentrant=True,
                                                   input_require_grads=True, **ALL_KERNELS),
        "llama-kernels-accumulate": case(llama, seq=64, grad_accum=2, **ALL_KERNELS),
        "llama-kernels-lora": case(llama, micro_batch=2, seq=64, lora=LORA, **{**ALL_KERNELS, "loss": "hf"}),
        "llama-kernels-lora-liger": case(llama, micro_batch=2, seq=64, lora=LORA, **ALL_KERNELS),
        "llama-kernels-lora-autocast": case(llama, micro_batch=2, seq=70, lora=LORA, autocast="bf16", checkpoint="full",
                                            **ALL_KERNELS),
        "llama-liger-autocast": case(llama, micro_batch=2, seq=70, autocast="bf16", loss="liger"),
        "qwen2-kernels-lora-liger": case(QWEN2, seq=64, micro_batch=2, lora={**LORA, "dtype": "bf16"}, **ALL_KERNELS),
        "llama-kernels-frozen": case(llama, seq=96, freeze=["model.embed_tokens.*", "model.layers.0.*"], **ALL_KERNELS),
        "llama-kernels-odd": case(ONE_HEAD, seq=83, dtype="fp16", **ALL_KERNELS),
        "llama-kernels-autocast": case(llama, micro_batch=2, seq=64, dtype="fp32", autocast="bf16",
                                       **{**ALL_KERNELS, "loss": "hf"}),
        "llama-kernels-eager": case(llama, micro_batch=2, seq=64, attention="eager", **{**ALL_KERNELS, "loss": "hf"}),
        "llama-kernels-math": case(llama, micro_batch=2, seq=64, attention="math", **{**ALL_KERNELS, "loss": "hf"}),
        "llama-kernels-rope": case(llama, seq=64, liger_kernels="rope"),
        "llama-kernels-norm": case(llama, seq=64, liger_kernels="rms_norm"),
        "llama-kernels-swiglu": case(llama, seq=64, liger_kernels="swiglu"),
        "mistral-kernels": case(mistral, micro_batch=2, seq=77, **ALL_KERNELS),
        "mistral-kernels-checkpoint": case(mistral, micro_batch=2, seq=77, checkpoint="full", grad_accum=2, **ALL_KERNELS),
        "qwen2-kernels": case(QWEN2, seq=64, dtype="fp16", **ALL_KERNELS),
        "qwen2-kernels-lora": case(QWEN2, seq=64, micro_batch=2, lora=LORA, **{**ALL_KERNELS, "loss": "hf"}),
        "qwen3-kernels": case(QWEN3, micro_batch=2, seq=72, freeze=["lm_head.*"], **ALL_KERNELS),
        "qwen3-kernels-checkpoint": case(QWEN3, seq=65, checkpoint="full", **ALL_KERNELS),
    }


# axolotl's functions of adapted projections, with all that it makes of its default file: adapters in fp32 over weights in
# 16 bits, under autocast, reentrant checkpoints.
TWO_PRODUCTS = [one for one in ALL_LINEAR if one != "gate_proj"]


def adapter_kernels():
    def of(config, kernels="qkv,o,mlp", lora=None, **more):
        return case(config, lora={**LORA, "targets": ALL_LINEAR, **(lora or {})}, lora_kernels=kernels, **more)
    bf16, llama = {"autocast": "bf16"}, {**LLAMA}
    return {
        "llama-adapted": of(llama, micro_batch=2, seq=64, **bf16),
        "llama-adapted-checkpoint": of(llama, micro_batch=2, seq=64, checkpoint="full", reentrant=True,
                                       input_require_grads=True, **bf16),
        "llama-adapted-non-reentrant": of(llama, seq=70, checkpoint="full", **bf16),
        "llama-adapted-dropout": of(llama, micro_batch=2, seq=72, lora={"dropout": 0.05}, **bf16),
        "llama-adapted-accumulate": of(llama, seq=64, grad_accum=2, **bf16),
        "llama-adapted-bf16": of(llama, seq=64, lora={"dtype": "bf16"}),
        "llama-adapted-qkv": of(llama, "qkv", micro_batch=2, seq=64, lora={"dropout": 0.1}, **bf16),
        "llama-adapted-o": of(llama, "o", micro_batch=2, seq=64, lora={"dropout": 0.1}, **bf16),
        "llama-adapted-mlp": of(llama, "mlp", seq=96, **bf16),
        "llama-adapted-q-v": of(llama, seq=64, lora={"targets": ["q_proj", "v_proj", "o_proj"]}, **bf16),
        "mistral-adapted": of({**MISTRAL}, micro_batch=2, seq=77, checkpoint="full", reentrant=True,
                              input_require_grads=True, grad_accum=2, **bf16),
        "qwen2-adapted": of(QWEN2, micro_batch=2, seq=64, lora={"dropout": 0.05}, **bf16),
        "qwen3-adapted": of(QWEN3, micro_batch=2, seq=72, **bf16),
        "gemma-adapted": of(GEMMA, micro_batch=2, seq=72, **bf16),
        "gemma2-adapted": of(GEMMA2, micro_batch=2, seq=64, attention="eager", lora={"dropout": 0.05}, **bf16),
        "gemma3-adapted": of(GEMMA3, micro_batch=2, seq=72, lora={"dropout": 0.05}, **bf16),
        "gemma3-adapted-checkpoint": of(GEMMA3, micro_batch=2, seq=64, checkpoint="full", reentrant=True,
                                        input_require_grads=True, **bf16),
        "glm4-adapted": of(GLM4, micro_batch=2, seq=72, lora={"targets": ALL_LINEAR[:4] + ["gate_up_proj", "down_proj"]},
                           **bf16),
        "granite-adapted": of(GRANITE, micro_batch=2, seq=72, **bf16),
        "smollm3-adapted": of(SMOLLM3, micro_batch=2, seq=72, **bf16),
        "ernie4_5-adapted": of(ERNIE4_5, micro_batch=2, seq=72, **bf16),
        "seed-oss-adapted": of(SEED_OSS, micro_batch=2, seq=72, **bf16),
        "hunyuan-dense-adapted": of(HUNYUAN, micro_batch=2, seq=72, **bf16),
        "exaone4-adapted": of(EXAONE4, micro_batch=2, seq=72, **bf16),
        "ministral-adapted": of(MINISTRAL, micro_batch=2, seq=72, **bf16),
        "cohere2-adapted": of(COHERE2, micro_batch=2, seq=72, lora={"dropout": 0.05}, **bf16),
        "cohere2-adapted-checkpoint": of(COHERE2, micro_batch=2, seq=64, checkpoint="full", reentrant=True,
                                         input_require_grads=True, **bf16),
        # MLPs of two products are left to peft.
        "apertus-adapted": of(APERTUS, micro_batch=2, seq=72, lora={"targets": TWO_PRODUCTS, "dropout": 0.05}, **bf16),
        "apertus-adapted-checkpoint": of(APERTUS, seq=64, lora={"targets": TWO_PRODUCTS}, checkpoint="full", reentrant=True,
                                         input_require_grads=True, **bf16),
        "arcee-adapted": of(ARCEE, micro_batch=2, seq=72, lora={"targets": TWO_PRODUCTS, "dropout": 0.05}, **bf16),
        "nemotron-adapted": of(NEMOTRON, micro_batch=2, seq=72, lora={"targets": TWO_PRODUCTS}, **bf16),
        "nemotron-adapted-checkpoint": of(NEMOTRON, micro_batch=2, seq=64, lora={"targets": TWO_PRODUCTS},
                                          checkpoint="full", reentrant=True, input_require_grads=True, **bf16),
    }


def shown_adapter_kernels():
    """In the text behind pictures, whose tower is left to peft."""
    def of(config, parts, **more):
        targets = [f"language_model.layers.{layer}.{part}_proj" for layer, part in parts]
        lora = {**LORA, "targets": targets, **more.pop("lora", {})}
        plain = {"micro_batch": 2, "seq": 96, "images": 1, "autocast": "bf16", "lora_kernels": "qkv,o,mlp", "lora": lora}
        return case(config, **{**plain, **more})
    attention = [f"self_attn.{one}" for one in "qkvo"]
    mlp = [f"mlp.{one}" for one in ("gate", "up", "down")]
    every = [(layer, part) for layer in (0, 1) for part in attention + mlp]
    # A layer of linear attention before one that attends; qwen3.5's examples adapt no gate.
    gated = [(1, part) for part in attention] + [(layer, part) for layer in (0, 1) for part in mlp[1:]]
    again = {"checkpoint": "full", "reentrant": True, "input_require_grads": True}
    return {
        "gemma3-shown-adapted": of(GEMMA3_SHOWN, every, autocast=None, lora={"dtype": "bf16", "dropout": 0.05}),
        "gemma3-shown-adapted-checkpoint": of(GEMMA3_SHOWN, every, autocast=None, lora={"dtype": "bf16"}, checkpoint="full"),
        # axolotl patches mistral's class of attention, which the first has and the second has not.
        "mistral3-adapted": of(MISTRAL3, every, image_size=[40, 24], lora={"dropout": 0.05}),
        "mistral3-ministral3-adapted": of(MINISTRAL3_SHOWN, every, image_size=[40, 24], lora={"dropout": 0.05}),
        "mistral3-ministral3-adapted-checkpoint": of(MINISTRAL3_SHOWN, every, image_size=[40, 24], **again),
        "qwen3-5-vl-adapted": of(QWEN3_5_VL, gated, image_size=[40, 24], lora={"dropout": 0.05}),
        "qwen3-5-vl-adapted-checkpoint": of(QWEN3_5_VL, gated, image_size=[40, 24], checkpoint="full"),
        "qwen3-5-vl-adapted-gates": of(QWEN3_5_VL, gated + [(layer, "mlp.gate") for layer in (0, 1)], image_size=[40, 24]),
    }


# Liger's loss in the releases at both ends of what it does one way; each model in turn, so that tied and frozen weights,
# rests of a piece, fp16 and a capped logit meet every way. Before 0.6.5 gemma2 does not load beside transformers 5.
LIGER = {"llama": case(LLAMA, micro_batch=2, seq=70, loss="liger"),
         "qwen3": case(QWEN3, micro_batch=2, seq=72, loss="liger", freeze=["lm_head.*"]),
         "llama-tied": case(config("llama", tie_word_embeddings=True), seq=96, loss="liger"),
         "mistral-checkpoint": case(MISTRAL, micro_batch=2, seq=77, loss="liger", checkpoint="full", grad_accum=2),
         "qwen2-tied": case(QWEN2, seq=64, loss="liger", dtype="fp16"),
         "gemma2": case(GEMMA2, micro_batch=2, seq=90, loss="liger")}
LIGER_RELEASES = {"0.5.10": ["llama"], "0.6.1": [name for name in LIGER if name != "gemma2"], "0.6.2": ["llama"],
                  "0.8.0": list(LIGER), "0.8.1": ["llama"], "0.8.2": list(LIGER), "0.8.3": ["llama", "qwen3"]}


def with_liger(name, release):
    made = LIGER[name]
    return {**made, "training": {**made["training"], "liger_version": release}}


SEEN = {"hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 48,
        "patch_size": 8}
CLIP = {"model_type": "clip", "architectures": ["CLIPForImageClassification"], "text_config": {"model_type": "clip_text_model"},
        "vision_config": {**SEEN, "model_type": "clip_vision_model"}, "id2label": {str(i): str(i) for i in range(7)}}
SIGLIP = {"model_type": "siglip", "architectures": ["SiglipForImageClassification"],
          "text_config": {"model_type": "siglip_text_model"},
          "vision_config": {**SEEN, "model_type": "siglip_vision_model", "vision_use_head": False},
          "id2label": {str(i): str(i) for i in range(7)}}
READ = {"vocab_size": 320, "hidden_size": 48, "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 3,
        "max_position_embeddings": 40}
CLIP_BOTH = {**CLIP, "architectures": ["CLIPModel"], "projection_dim": 24,
             "text_config": {**READ, "model_type": "clip_text_model", "eos_token_id": 2}}
SIGLIP_BOTH = {"model_type": "siglip", "architectures": ["SiglipModel"],
               "text_config": {**READ, "model_type": "siglip_text_model", "projection_size": 32},
               "vision_config": {**SEEN, "model_type": "siglip_vision_model"}}
MLLAMA = {"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"], "image_token_index": 512,
          "vision_config": {"model_type": "mllama_vision_model", "hidden_size": 32, "intermediate_size": 72,
                            "num_hidden_layers": 4, "num_global_layers": 2, "attention_heads": 2, "image_size": 48,
                            "patch_size": 8, "vision_output_dim": 96, "max_num_tiles": 4,
                            "intermediate_layers_indices": [1, 2]},
          "text_config": {**without(config("llama", num_hidden_layers=4), "model_type"), "model_type": "mllama_text_model",
                          "pad_token_id": 0, "cross_attention_layers": [1, 3]}}
LLAVA = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 500,
         "vision_config": CLIP["vision_config"], "text_config": config("llama")}
LLAVA_NEXT = {**LLAVA, "model_type": "llava_next", "architectures": ["LlavaNextForConditionalGeneration"],
              "image_grid_pinpoints": [[48, 96], [96, 48], [96, 96], [144, 48], [48, 144]]}
PALIGEMMA = {"model_type": "paligemma", "architectures": ["PaliGemmaForConditionalGeneration"], "image_token_index": 500,
             "projection_dim": 64, "vision_config": SIGLIP["vision_config"], "text_config": GEMMA}
IDEFICS3 = {"model_type": "idefics3", "architectures": ["Idefics3ForConditionalGeneration"], "image_token_id": 500,
            "scale_factor": 2, "vision_config": {**SEEN, "model_type": "idefics3_vision"}, "text_config": config("llama")}
SMOLVLM = {**IDEFICS3, "model_type": "smolvlm", "architectures": ["SmolVLMForConditionalGeneration"],
           "vision_config": {**SEEN, "model_type": "smolvlm_vision"}}
GEMMA3_SHOWN = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 500,
                "mm_tokens_per_image": 9, "vision_config": SIGLIP["vision_config"], "text_config": GEMMA3}
INTERNVL = {"model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"], "image_token_id": 500,
            "tie_word_embeddings": False, "text_config": config("qwen2"),
            "vision_config": {**SEEN, "model_type": "internvl_vision", "attention_bias": True}}
LLAMA4_VL = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "image_token_index": 500,
             "text_config": {**LLAMA4, "vocab_size": 512},
             "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 32, "intermediate_size": 128,
                               "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 24, "patch_size": 4,
                               "projector_input_dim": 48, "projector_output_dim": 48, "vision_output_dim": 48}}
MROPE = {"rope_type": "default", "type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
QWEN25_VL = {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "image_token_id": 500,
             "video_token_id": 501, "vision_start_token_id": 502, "vision_end_token_id": 503,
             "text_config": {**config("qwen2_5_vl_text", num_key_value_heads=2, rope_parameters=MROPE)},
             "vision_config": {"model_type": "qwen2_5_vl_vision", "depth": 3, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2,
                               "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16,
                               "out_hidden_size": 64, "fullatt_block_indexes": [1], "hidden_act": "silu"}}
QWEN2_VL = {**QWEN25_VL, "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
            "text_config": {**QWEN25_VL["text_config"], "model_type": "qwen2_vl_text"},
            "vision_config": {"model_type": "qwen2_vl_vision", "depth": 3, "embed_dim": 32, "mlp_ratio": 2, "num_heads": 2,
                              "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_size": 64,
                              "hidden_act": "quick_gelu"}}
QWEN3_VL = {**QWEN25_VL, "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"],
            "text_config": {**QWEN25_VL["text_config"], "model_type": "qwen3_vl_text", "head_dim": 16},
            "vision_config": {"model_type": "qwen3_vl_vision", "depth": 3, "hidden_size": 32, "intermediate_size": 72, "num_heads": 2,
                              "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
                              "num_position_embeddings": 49, "deepstack_visual_indexes": [0, 2],
                              "hidden_act": "gelu_pytorch_tanh"}}
QWEN3_VL_MOE = {**QWEN3_VL, "model_type": "qwen3_vl_moe", "architectures": ["Qwen3VLMoeForConditionalGeneration"],
                "text_config": {**QWEN3_VL["text_config"], "model_type": "qwen3_vl_moe_text", "num_experts": 4,
                                "num_experts_per_tok": 2, "moe_intermediate_size": 48},
                "vision_config": {**QWEN3_VL["vision_config"], "model_type": "qwen3_vl_moe_vision"}}
PIXTRAL = {"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 2,
           "image_size": 64, "patch_size": 4, "hidden_act": "silu"}
MISTRAL3 = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 500,
            "spatial_merge_size": 2, "tie_word_embeddings": False, "vision_config": PIXTRAL,
            "text_config": config("mistral", head_dim=16, sliding_window=None)}
LLAVA_PIXTRAL = {**without(MISTRAL3, "spatial_merge_size"), "model_type": "llava", "architectures": ["LlavaForConditionalGeneration"],
                 "vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
GLM_VISION = {"model_type": "glm4v_vision", "depth": 3, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64, "intermediate_size": 88,
              "patch_size": 4, "image_size": 24, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
AXES = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}}
GLM4V = {"model_type": "glm4v", "architectures": ["Glm4vForConditionalGeneration"], "image_token_id": 500, "vision_config": GLM_VISION,
         "text_config": {**config("glm4v_text"), **AXES}}
GLM4V_MOE = {"model_type": "glm4v_moe", "architectures": ["Glm4vMoeForConditionalGeneration"], "image_token_id": 500,
             "vision_config": {**GLM_VISION, "model_type": "glm4v_moe_vision"},
             "text_config": {**config("glm4v_moe_text"), **AXES, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
                             "moe_intermediate_size": 48, "n_shared_experts": 1, "first_k_dense_replace": 1}}
GLM46V = {**GLM4V, "model_type": "glm46v", "architectures": ["Glm46VForConditionalGeneration"]}
GLM46V_MOE = {**GLM4V_MOE, "model_type": "glm46v", "architectures": ["Glm46VForConditionalGeneration"]}
GEMMA4_VISION = {"model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 72, "num_hidden_layers": 3,
                 "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 2,
                 "position_embedding_size": 64}
# As gemma-4-e2b sees, and as gemma-4-31b and -26b-a4b do.
GEMMA4_SHOWN = {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "image_token_id": 500,
                "video_token_id": 501, "audio_token_id": 502, "vision_soft_tokens_per_image": 20,
                "text_config": GEMMA4, "vision_config": {**GEMMA4_VISION, "use_clipped_linears": True}}
GEMMA4_SHOWN_DENSE = {**GEMMA4_SHOWN, "text_config": {**GEMMA4_DENSE, "use_bidirectional_attention": "vision"},
                      "vision_config": {**GEMMA4_VISION, "standardize": True}}
QWEN3_5_VL = {**QWEN3_VL, "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
              "text_config": {**QWEN3_5, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
              "vision_config": {**without(QWEN3_VL["vision_config"], "deepstack_visual_indexes"), "model_type": "qwen3_5_vision"}}
QWEN3_5_MOE_VL = {**QWEN3_5_VL, "model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                  "text_config": {**QWEN3_5_MOE, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
                  "vision_config": {**QWEN3_5_VL["vision_config"], "model_type": "qwen3_5_moe_vision"}}
MINISTRAL3_SHOWN = {**MISTRAL3, "text_config": {**MINISTRAL3, "vocab_size": 512}}
SIZED = "model.visual."
TOWER = "model.vision_tower."
SEEING = "model.vision_model."
BEHIND = [TOWER + "encoder.layers.2.*", TOWER + "post_layernorm.*"]  # What the projector does not read.


def classifier(name, config, places, unread=()):
    """A tower under a classifier; `unread` is what no loss reaches."""
    base = {"micro_batch": 2, "seq": places, **({"freeze": list(unread)} if unread else {})}
    frozen = [*unread, "vision_model.embeddings.*", "vision_model.encoder.layers.0.*"]
    seen = config["vision_config"]
    return {
        name: case(config, **base),
        f"{name}-checkpoint": case(config, **base, checkpoint="full"),
        f"{name}-checkpoint-reentrant": case(config, **base, checkpoint="full", reentrant=True),
        f"{name}-accumulate": case(config, **base, grad_accum=2),
        f"{name}-lora": case(config, **{**base, "lora": {**LORA, "targets": ["q_proj", "fc1"]}, "freeze": []}),
        f"{name}-frozen": case(config, **{**base, "freeze": frozen}),
        f"{name}-odd": case({**config, "vision_config": {**seen, "image_size": 50, "attention_dropout": 0.1,
                                                         "hidden_act": "gelu", "num_channels": 3}},
                            **{**base, "dtype": "fp16", "micro_batch": 3}),
        f"{name}-autocast": case(config, **base, dtype="fp32", autocast="bf16"),
        f"{name}-eager": case(config, **base, attention="eager"),
    }


def contrasted(name, config):
    """A tower of pictures and one of texts."""
    base = {"micro_batch": 3, "seq": 29}
    return {
        name: case(config, **base),
        f"{name}-many": case(config, micro_batch=70, seq=40),
        f"{name}-checkpoint": case(config, **base, checkpoint="full"),
        f"{name}-accumulate": case(config, **base, grad_accum=2),
        f"{name}-lora": case(config, **base, lora={**LORA, "targets": ["q_proj", "fc1"]}),
        f"{name}-lora-checkpoint": case(config, **base, lora={**LORA, "targets": ["q_proj", "v_proj"]}, checkpoint="full"),
        f"{name}-frozen": case(config, **base, freeze=["vision_model.*"]),
        f"{name}-frozen-texts": case(config, **base, freeze=["text_model.*"]),
        f"{name}-frozen-checkpoint": case(config, **base, freeze=["vision_model.*"], checkpoint="full"),
        f"{name}-frozen-words": case(config, **base, freeze=["text_model.embeddings.*", "text_model.encoder.layers.0.*"]),
        f"{name}-frozen-scale": case(config, **base, freeze=["logit_*"]),
        f"{name}-odd": case({**config, "text_config": {**config["text_config"], "attention_dropout": 0.1, "hidden_act": "gelu",
                                                       "eos_token_id": 7}}, micro_batch=2, seq=31, dtype="fp16"),
        f"{name}-fp32": case(config, **base, dtype="fp32", attention="math"),
        f"{name}-autocast": case(config, **base, dtype="fp32", autocast="bf16"),
        f"{name}-eager": case(config, **base, attention="eager"),
        f"{name}-eager-checkpoint": case(config, **base, attention="eager", checkpoint="full"),
    }


def shown(name, config, tower, behind, text="model.language_model.", projector="model.multi_modal_projector.",
          attending=(0, 1), head="lm_head.*", **more):
    """A language model and its tower: all of it trained but what the projector does not read, the tower frozen, the
    projector alone trained, adapters in the text, both forms of checkpointing, with the tower trained and frozen."""
    plain = {"micro_batch": 2, "seq": 96, "images": 1, "freeze": behind, **more}
    seen = [tower + "*"] if not projector.startswith(tower) else [tower + "patch_embed.*", tower + "blocks.*"]
    frozen = {**plain, "freeze": seen}
    targets = [f"{text.removeprefix('model.')}layers.{layer}.self_attn.{one}_proj" for layer in attending for one in "qv"]
    return {
        name: case(config, **plain),
        f"{name}-frozen": case(config, **frozen),
        f"{name}-frozen-both": case(config, **{**frozen, "freeze": [*seen, projector + "*"], "micro_batch": 1}),
        f"{name}-projector": case(config, **{**frozen, "freeze": [*seen, text + "*", head]}),
        f"{name}-checkpoint": case(config, **plain, checkpoint="full"),
        f"{name}-checkpoint-frozen": case(config, **frozen, checkpoint="full"),
        f"{name}-checkpoint-both": case(config, **{**frozen, "freeze": [*seen, projector + "*"]}, checkpoint="full"),
        f"{name}-checkpoint-reentrant": case(config, **frozen, checkpoint="full", reentrant=True,
                                             input_require_grads=True),
        f"{name}-accumulate": case(config, **frozen, grad_accum=2),
        f"{name}-lora": case(config, **{**plain, "freeze": [], "lora": {**LORA, "targets": targets}}),
        f"{name}-lora-checkpoint": case(config, **{**plain, "freeze": [], "lora": {**LORA, "targets": targets}},
                                        checkpoint="full"),
        f"{name}-autocast": case(config, **plain, dtype="fp32", autocast="bf16"),
        f"{name}-eager": case(config, **plain, attention="eager"),
        f"{name}-two": case(config, **{**plain, "images": 2, "seq": 2 * plain["seq"] - 85, "micro_batch": 3, "dtype": "fp16"}),
        f"{name}-text": case(config, micro_batch=2, seq=96, images=0),
    }


SHOWN = {
    **without(shown("mllama", MLLAMA, "model.vision_model.", [], projector="model.multi_modal_projector.", attending=(0, 2)),
              "mllama-checkpoint-reentrant", "mllama-projector", "mllama-text"),
    "mllama-projector-eager": case(MLLAMA, micro_batch=2, seq=96, images=1, attention="eager",
                                   freeze=["model.vision_model.*", "model.language_model.*", "lm_head.*"]),
    "mllama-lora-all": case(MLLAMA, micro_batch=2, seq=96, images=1,
                            lora={**LORA, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "up_proj"]}),
    "mllama-lora-all-checkpoint": case(MLLAMA, micro_batch=2, seq=96, images=1, checkpoint="full",
                                       lora={**LORA, "targets": ["q_proj", "v_proj", "fc2"]}),
    "mllama-eager-checkpoint": case(MLLAMA, micro_batch=2, seq=96, images=1, attention="eager", checkpoint="full"),
    "mllama-fp32": case(MLLAMA, micro_batch=2, seq=96, images=1, dtype="fp32", attention="math+mem-efficient"),
    "mllama-fp32-checkpoint": case(MLLAMA, micro_batch=2, seq=90, images=2, dtype="fp32", attention="math+mem-efficient",
                                   checkpoint="full"),
    "mllama-one": case(MLLAMA, seq=96, images=1),
    "mllama-drawn-sizes": case({**MLLAMA, "vision_config": {**MLLAMA["vision_config"], "image_size": 40, "max_num_tiles": 2,
                                "supported_aspect_ratios": [[1, 1], [1, 2]], "intermediate_layers_indices": [0],
                                "vision_output_dim": 64, "num_global_layers": 1},
                                "text_config": {**MLLAMA["text_config"], "cross_attention_layers": [0, 2],
                                                "num_key_value_heads": 4, "dropout": 0.1}}, micro_batch=3, seq=61, images=2),
    **classifier("clip", CLIP, 37, ["vision_model.post_layernorm.*"]),
    **without(classifier("siglip", SIGLIP, 36), "siglip-checkpoint-reentrant"),
    **contrasted("clip-both", CLIP_BOTH),
    "clip-both-checkpoint-reentrant": case(CLIP_BOTH, micro_batch=3, seq=29, checkpoint="full", reentrant=True),
    **without(contrasted("siglip-both", SIGLIP_BOTH), "siglip-both-autocast"),
    **shown("llava", LLAVA, TOWER, BEHIND),
    "llava-siglip": case({**LLAVA, "vision_config": SIGLIP["vision_config"], "vision_feature_layer": -1,
                          "vision_feature_select_strategy": "full"},
                         micro_batch=2, seq=96, images=1, freeze=[TOWER + "post_layernorm.*"]),
    # Two squares beside each other with rows cut off, two above each other with columns cut off, four of which nothing
    # is cut off, three of either, and siglip's.
    **shown("llava-next", LLAVA_NEXT, TOWER, BEHIND, image_size=[30, 90], seq=160),
    "llava-next-tall": case(LLAVA_NEXT, micro_batch=2, seq=170, images=1, image_size=[90, 30], freeze=BEHIND),
    "llava-next-square": case(LLAVA_NEXT, micro_batch=2, seq=300, images=1, image_size=[64, 64], freeze=BEHIND),
    "llava-next-wide": case({**LLAVA_NEXT, "text_config": QWEN2}, seq=200, images=1, image_size=[20, 140]),
    "llava-next-narrow": case({**LLAVA_NEXT, "text_config": MISTRAL}, seq=250, images=1, image_size=[70, 47], grad_accum=2),
    "llava-next-newline": case(LLAVA_NEXT, micro_batch=2, seq=160, images=1, image_size=[30, 90],
                               freeze=["model.vision_tower.*", "model.multi_modal_projector.*"]),
    "llava-next-siglip": case({**LLAVA_NEXT, "vision_config": SIGLIP["vision_config"], "vision_feature_layer": -1,
                               "vision_feature_select_strategy": "full"},
                              micro_batch=2, seq=170, images=1, image_size=[90, 40], freeze=[TOWER + "post_layernorm.*"]),
    # Siglip's hidden states lie column by column, which neither works with yet.
    **without(shown("paligemma", PALIGEMMA, TOWER, []), "paligemma-checkpoint-reentrant", "paligemma-autocast", "paligemma-text"),
    "paligemma-2": case({**PALIGEMMA, "text_config": {**GEMMA2, "use_bidirectional_attention": None}}, micro_batch=2,
                        seq=96, images=1),
    "paligemma-2-window": case({**PALIGEMMA, "text_config": {**GEMMA2, "sliding_window": 32}}, micro_batch=2, seq=77,
                               images=1, freeze=[TOWER + "*"]),
    "paligemma-2-eager": case({**PALIGEMMA, "text_config": {**GEMMA2, "sliding_window": 32}}, seq=77, images=1,
                              attention="eager"),
    **without(shown("gemma3-shown", GEMMA3_SHOWN, TOWER, []), "gemma3-shown-checkpoint-reentrant",
              "gemma3-shown-autocast"),
    **shown("qwen2-5-vl", QWEN25_VL, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]),
    "qwen2-5-vl-even": case(QWEN25_VL, seq=61, images=2, image_size=[32, 32], freeze=[SIZED + "patch_embed.*"]),
    **shown("qwen2-vl", QWEN2_VL, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]),
    **shown("qwen3-vl", QWEN3_VL, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]),
    **without(shown("qwen3-vl-moe", QWEN3_VL_MOE, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]),
              "qwen3-vl-moe-autocast", "qwen3-vl-moe-two"),
    **shown("qwen3-5-vl", QWEN3_5_VL, SIZED, [], projector=SIZED + "merger.", attending=(1,), image_size=[40, 24]),
    **without(shown("qwen3-5-moe-vl", QWEN3_5_MOE_VL, SIZED, [], projector=SIZED + "merger.", attending=(1,), image_size=[40, 24]),
              "qwen3-5-moe-vl-autocast", "qwen3-5-moe-vl-two"),
    "qwen3-vl-moe-odd": case(QWEN3_VL_MOE, micro_batch=3, seq=107, images=2, image_size=[24, 40]),
    # A table's gradient that lies otherwise is copied where there is none yet, and in fp16 the convolution at the end lies
    # channel by channel: neither is followed.
    **without(shown("glm4v", GLM4V, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]), "glm4v-two", "glm4v-accumulate"),
    "glm4v-accumulate-frozen": case(GLM4V, micro_batch=2, seq=96, images=1, image_size=[40, 24], freeze=[SIZED + "*"], grad_accum=2),
    "glm4v-odd": case({**GLM4V, "vision_config": {**GLM_VISION, "attention_bias": True, "attention_dropout": 0.1, "hidden_act": "gelu", "image_size": 20}},
                      micro_batch=2, seq=91, images=3, image_size=[24, 40]),
    **without(shown("glm4v-moe", GLM4V_MOE, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]),
              "glm4v-moe-autocast", "glm4v-moe-two", "glm4v-moe-accumulate"),
    "glm4v-moe-odd": case(GLM4V_MOE, micro_batch=3, seq=107, images=2, image_size=[24, 40]),
    **{name.replace("glm4v", "glm46v"): one for name, one in shown("glm4v", GLM46V, SIZED, [], projector=SIZED + "merger.", image_size=[40, 24]).items()
       if name not in ("glm4v-two", "glm4v-accumulate")},
    "glm46v-moe": case(GLM46V_MOE, micro_batch=2, seq=96, images=1, image_size=[40, 24]),
    "glm46v-moe-checkpoint": case(GLM46V_MOE, micro_batch=2, seq=107, images=2, image_size=[24, 40], checkpoint="full"),
    "glm46v-moe-frozen": case(GLM46V_MOE, micro_batch=3, seq=96, images=1, image_size=[40, 24], freeze=[SIZED + "*"]),
    **shown("internvl", INTERNVL, TOWER, []),
    **without(shown("idefics3", IDEFICS3, SEEING, [], text="model.text_model.", projector="model.connector."),
              "idefics3-checkpoint-reentrant"),
    **without(shown("smolvlm", SMOLVLM, SEEING, [], text="model.text_model.", projector="model.connector."),
              *(f"smolvlm-{one}" for one in ("autocast", "projector", "checkpoint", "checkpoint-both", "checkpoint-reentrant", "lora", "eager"))),
    "internvl-one": case(INTERNVL, seq=96, images=1),
    "internvl-one-accumulate": case(INTERNVL, seq=96, images=1, grad_accum=2),
    "internvl-one-checkpoint": case(INTERNVL, seq=96, images=1, checkpoint="full", dtype="fp32", autocast="bf16"),
    "llava-one": case(LLAVA, seq=96, images=1, freeze=BEHIND),
    # Of text alone no part of a tower gets a gradient, trained or not.
    "llava-text-checkpoint": case(LLAVA, micro_batch=2, seq=96, images=0, checkpoint="full"),
    "llava-text-eager": case(LLAVA, micro_batch=2, seq=96, images=0, attention="eager"),
    "gemma3-shown-text-accumulate": case(GEMMA3_SHOWN, micro_batch=2, seq=96, images=0, grad_accum=2),
    "gemma3-shown-text-frozen": case(GEMMA3_SHOWN, micro_batch=2, seq=96, images=0, freeze=[TOWER + "*"]),
    "gemma3-shown-text-eager": case(GEMMA3_SHOWN, micro_batch=2, seq=96, images=0, attention="eager"),
    "qwen2-5-vl-text-checkpoint": case(QWEN25_VL, micro_batch=2, seq=96, images=0, checkpoint="full"),
    "qwen2-5-vl-text-eager": case(QWEN25_VL, micro_batch=1, seq=77, images=0, attention="eager"),
    "qwen3-vl-text-checkpoint": case(QWEN3_VL, micro_batch=1, seq=77, images=0, checkpoint="full"),
    "qwen2-vl-text-lora": case(QWEN2_VL, micro_batch=2, seq=96, images=0, lora=LORA),
    "llama4-vl-text-checkpoint": case(LLAMA4_VL, micro_batch=2, seq=96, images=0, checkpoint="full"),
    "internvl-text-autocast": case(INTERNVL, micro_batch=2, seq=96, images=0, dtype="fp32", autocast="bf16"),
    "gemma4-shown-text-checkpoint": case(GEMMA4_SHOWN, micro_batch=2, seq=96, images=0, checkpoint="full"),
    "gemma4-shown-text-eager": case(GEMMA4_SHOWN, micro_batch=1, seq=77, images=0, attention="eager"),
    # As they come from the hub: what no loss reaches is trained, and gets no gradient.
    "llava-whole": case(LLAVA, micro_batch=2, seq=96, images=1),
    "llava-whole-checkpoint": case(LLAVA, micro_batch=2, seq=96, images=1, checkpoint="full"),
    "llava-whole-accumulate": case(LLAVA, micro_batch=2, seq=96, images=1, grad_accum=2),
    "llava-whole-autocast": case(LLAVA, micro_batch=2, seq=96, images=1, dtype="fp32", autocast="bf16"),
    "llava-whole-lora": case(LLAVA, micro_batch=2, seq=96, images=1, lora=LORA),
    "clip-whole": case(CLIP, micro_batch=2, seq=37),
    "clip-whole-checkpoint": case(CLIP, micro_batch=2, seq=37, checkpoint="full"),
    "clip-one": case(CLIP, seq=37, freeze=["vision_model.post_layernorm.*"]),
    "vit-one": case(VIT, seq=37),
    "internvl-odd": case({**INTERNVL, "tie_word_embeddings": True, "projector_hidden_act": "gelu_pytorch_tanh",
                          "vision_config": {**INTERNVL["vision_config"], "attention_bias": False, "use_qk_norm": True,
                                            "norm_type": "rms_norm", "hidden_dropout_prob": 0.1, "attention_dropout": 0.1}},
                         micro_batch=2, seq=91, images=3, freeze=[TOWER + "embeddings.*"]),
    # A reentrant checkpoint of a layer that is called with keywords alone gives nothing inside a gradient.
    **without(shown("llama4-vl", LLAMA4_VL, "vision_model.", [], text="language_model.model.",
                    projector="multi_modal_projector.", head="language_model.lm_head.*"), "llama4-vl-checkpoint-reentrant"),
    "llama4-vl-odd": case({**LLAMA4_VL, "text_config": {**LLAMA4, "vocab_size": 512, "attention_chunk_size": 32},
                           "vision_config": {**LLAMA4_VL["vision_config"], "attention_dropout": 0.1, "projector_dropout": 0.1,
                                             "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 256}},
                          micro_batch=2, seq=91, images=3, freeze=["vision_model.patch_embedding.*"]),
    **shown("mistral3", MISTRAL3, TOWER, [], image_size=[40, 24]),
    **shown("llava-pixtral", LLAVA_PIXTRAL, TOWER, [], image_size=[40, 24]),
    "mistral3-odd": case({**MISTRAL3, "tie_word_embeddings": True, "multimodal_projector_bias": True,
                          "vision_config": {**PIXTRAL, "num_attention_heads": 4, "attention_dropout": 0.1, "hidden_act": "gelu"},
                          "text_config": {**MINISTRAL3, "vocab_size": 512}},
                         micro_batch=1, seq=91, images=3, image_size=[24, 40], freeze=[TOWER + "patch_conv.*"]),
    **without(shown("gemma4-shown", GEMMA4_SHOWN, TOWER, [], projector="model.embed_vision.", image_size=[40, 24]),
              "gemma4-shown-checkpoint-reentrant"),
    **without(shown("gemma4-shown-dense", GEMMA4_SHOWN_DENSE, TOWER, [], projector="model.embed_vision.", image_size=[40, 24]),
              "gemma4-shown-dense-checkpoint-reentrant"),
    "gemma4-shown-filled": case({**GEMMA4_SHOWN, "vision_soft_tokens_per_image": 15}, micro_batch=2, seq=96, images=1,
                                image_size=[40, 24]),
    "llava-odd": case({**LLAVA, "vision_feature_select_strategy": "full", "multimodal_projector_bias": False,
                       "projector_hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True,
                       "text_config": QWEN2},
                      micro_batch=2, seq=91, images=2, freeze=[TOWER + "*"]),
}

# Of each form of attention one whose model keeps keys and values.
CACHED = {
    "gpt2": gpt2(), "gpt-neox": GPT_NEOX, "opt": OPT, "phi": PHI, "gemma3": GEMMA3, "cohere": COHERE, "cohere2": COHERE2,
    "olmo": OLMO, "olmo2": OLMO2, "olmo3": OLMO3, "glm4": GLM4, "stablelm": STABLELM, "exaone4": EXAONE4,
    "starcoder2": STARCODER2, "granite": GRANITE, "smollm3": SMOLLM3, "helium": HELIUM, "ministral3": MINISTRAL3,
    "qwen3-moe": QWEN3_MOE,
}
CASES = {
    **{f"{name}-cache": case(one, micro_batch=2, seq=64, use_cache=True) for name, one in CACHED.items()},
    "gpt2": case(gpt2(), micro_batch=2, seq=100),
    "gpt2-no-dropout-gelu": case(gpt2(resid_pdrop=0.0, embd_pdrop=0.0, activation_function="gelu"), seq=64),
    "gpt2-checkpoint": case(gpt2(n_layer=3), micro_batch=2, seq=100, checkpoint="full"),
    "gpt2-accumulate": case(gpt2(), seq=96, grad_accum=2),
    "gpt2-foreach": case(gpt2(), seq=64, optimizer={"name": "adamw", "implementation": "foreach"}),
    "gpt2-fp32-autocast": case(gpt2(), micro_batch=2, seq=64, dtype="fp32", autocast="bf16"),
    "gpt2-fp32": case(gpt2(), micro_batch=2, seq=70, dtype="fp32", attention="mem-efficient"),
    "gpt2-bf16-autocast": case(gpt2(), micro_batch=2, seq=64, dtype="bf16", autocast="bf16"),
    "gpt2-lora-checkpoint": case(gpt2(), seq=96, lora={**LORA, "targets": "all-linear"}, checkpoint="full"),
    "gpt2-eager": case(gpt2(attn_pdrop=0.1), micro_batch=2, seq=64, attention="eager"),
    "llama": case(LLAMA),
    "llama-batch2-odd": case(config("llama", hidden_size=72, intermediate_size=190, num_attention_heads=3,
                                    num_key_value_heads=1, vocab_size=997), micro_batch=2, seq=83),
    "llama-multi-head": case(config("llama", num_key_value_heads=4), micro_batch=2, seq=64),
    "llama-biases": case(config("llama", attention_bias=True, mlp_bias=True), seq=64),
    "llama-tied": case(config("llama", tie_word_embeddings=True), seq=96),
    "llama-checkpoint": case(LLAMA, micro_batch=2, seq=96, checkpoint="full"),
    "llama-checkpoint-reentrant": case(LLAMA, micro_batch=2, seq=96, checkpoint="full", reentrant=True,
                                       input_require_grads=True),
    "llama-accumulate": case(LLAMA, micro_batch=2, seq=64, grad_accum=2),
    "llama-checkpoint-accumulate": case(LLAMA, seq=64, grad_accum=2, checkpoint="full"),
    "llama-fp16": case(LLAMA, seq=65, dtype="fp16"),
    "llama-fp32-autocast": case(LLAMA, micro_batch=2, seq=64, dtype="fp32", autocast="bf16"),
    "llama-fp32-autocast-checkpoint": case(LLAMA, seq=64, dtype="fp32", autocast="bf16", checkpoint="full"),
    "llama-frozen": case(LLAMA, seq=96, freeze=["model.embed_tokens.*", "model.layers.0.*", "*.input_layernorm.weight"]),
    "llama-fp32-multi-head": case(config("llama", num_key_value_heads=4), seq=70, dtype="fp32",
                                  attention="mem-efficient"),
    "llama-frozen-checkpoint": case(LLAMA, seq=96, freeze=["model.embed_tokens.*", "model.layers.0.*"],
                                    checkpoint="full"),
    "llama-eager": case(LLAMA, micro_batch=2, seq=64, attention="eager"),
    "llama-eager-autocast": case(config("llama"), micro_batch=2, seq=64, attention="eager", dtype="fp32",
                                 autocast="bf16"),
    "llama-cache": case(LLAMA, micro_batch=2, seq=72, use_cache=True),
    "llama-cache-accumulate": case(LLAMA, seq=64, grad_accum=2, use_cache=True),
    "llama-cache-autocast": case(LLAMA, micro_batch=2, seq=64, dtype="fp32", autocast="bf16", use_cache=True),
    "llama-cache-eager": case(LLAMA, micro_batch=2, seq=64, attention="eager", use_cache=True),
    "llama-cache-eager-multi-head": case(config("llama", num_key_value_heads=4), seq=64, attention="eager", use_cache=True),
    "llama-cache-efficient": case(LLAMA, seq=72, dtype="fp32", attention="mem-efficient", use_cache=True),
    "llama-cache-lora": case(LLAMA, micro_batch=2, seq=64, lora=LORA, use_cache=True),
    "llama-cache-frozen": case(LLAMA, seq=96, freeze=["model.embed_tokens.*", "model.layers.0.*"], use_cache=True),
    "llama-cache-math": case(LLAMA, micro_batch=2, seq=64, attention="math", use_cache=True),
    "llama-cache-native": case(LLAMA, seq=64, loss="native", use_cache=True),
    "llama-cache-odd": case(ONE_HEAD, micro_batch=2, seq=83, dtype="fp16", use_cache=True),
    "qwen3-cache": case(QWEN3, micro_batch=2, seq=64, use_cache=True),
    "phi3-cache": case(PHI3, micro_batch=2, seq=64, use_cache=True),
    "gemma2-cache": case(GEMMA2, seq=64, attention="eager", use_cache=True),
    "mixtral-cache": case(MIXTRAL, seq=64, use_cache=True),
    "gpt2-cache-eager": case(gpt2(), micro_batch=2, seq=64, attention="eager", use_cache=True),
    "opt-cache-eager": case(OPT, micro_batch=2, seq=64, attention="eager", use_cache=True),
    "llama-sgd": case(LLAMA, seq=64, optimizer={"name": "sgd", "implementation": "foreach", "momentum": 0.9}),
    "llama-for-loop": case(LLAMA, seq=64, optimizer={"name": "adamw", "implementation": "for-loop"}),
    "llama-lora": case(LLAMA, seq=96, lora=LORA),
    "llama-lora-autocast-checkpoint": case(LLAMA, seq=96, dtype="fp32", autocast="bf16",
                                           lora={**LORA, "dropout": 0.1}, checkpoint="full"),
    "llama-lora-bf16-dropout": case(LLAMA, micro_batch=2, seq=64, lora={**LORA, "dtype": "model", "dropout": 0.05}),
    "llama-lora-checkpoint": case(LLAMA, seq=96, lora=LORA, checkpoint="full"),
    "llama-lora-usual": case(LLAMA, seq=64, lora={"r": 8, "dtype": "fp32", "rslora": True}),
    "llama-lora-save": case(LLAMA, micro_batch=2, seq=64, lora={**LORA, "save": ["lm_head", "embed_tokens"]}),
    "llama-lora-save-checkpoint": case(LLAMA, seq=96, lora={**LORA, "dtype": "model", "save": ["model.norm", "lm_head"]},
                                       checkpoint="full"),
    "llama-lora-save-autocast": case(LLAMA, seq=64, dtype="fp32", autocast="bf16",
                                     lora={**LORA, "save": ["embed_tokens", "input_layernorm"]}),
    "gpt2-lora-save": case(gpt2(), seq=64, lora={**LORA, "targets": ["c_attn"], "save": ["ln_f", "wpe"]}),
    "gpt2-lora-bias": case(gpt2(), seq=64, lora={**LORA, "targets": ["c_attn"], "bias": "all"}),
    "qwen2-lora-bias": case(config("qwen2"), micro_batch=2, seq=64, lora={**LORA, "bias": "lora_only"}),
    "llama-dora": case(LLAMA, micro_batch=2, seq=64, lora={**LORA, "dora": True}),
    "llama-dora-checkpoint": case(LLAMA, seq=96, lora={**LORA, "dora": True, "targets": "all-linear"}, checkpoint="full"),
    "llama-dora-autocast": case(LLAMA, micro_batch=2, seq=64, dtype="fp32", autocast="bf16", lora={**LORA, "dora": True}),
    "llama-dora-dropout": case(LLAMA, seq=64, lora={**LORA, "dora": True, "dropout": 0.1}),
    "llama-dora-dropout-autocast": case(LLAMA, seq=64, dtype="bf16", autocast="bf16",
                                        lora={**LORA, "dora": True, "dropout": 0.1}),
    "qwen2-dora-biases": case(config("qwen2"), micro_batch=2, seq=64, lora={**LORA, "dora": True}),
    "mistral": case(MISTRAL, micro_batch=2, seq=77),
    "mistral-checkpoint": case(MISTRAL, seq=128, checkpoint="full"),
    "qwen2-tied": case(QWEN2, micro_batch=2, seq=96),
    "qwen2-lora-all": case(config("qwen2", tie_word_embeddings=True), micro_batch=2, seq=96,
                           lora={**LORA, "targets": "all-linear"}),
    "qwen2-tied-checkpoint": case(QWEN2, seq=64, checkpoint="full"),
    "qwen2-tied-accumulate": case(QWEN2, seq=64, grad_accum=2),
    "qwen3": case(QWEN3, micro_batch=2, seq=72),
    "qwen3-checkpoint": case(QWEN3, seq=72, checkpoint="full"),
    "gemma2-tied": case(GEMMA2, micro_batch=2, seq=90),
    "gemma2-checkpoint": case(GEMMA2, seq=90, checkpoint="full"),
    "gemma2-fp16": case(GEMMA2, seq=90, dtype="fp16"),
    "mixtral": case(MIXTRAL, micro_batch=2, seq=64),
    "mixtral-checkpoint": case(MIXTRAL, seq=64, checkpoint="full"),
    "llama-eager-checkpoint": case(LLAMA, micro_batch=2, seq=64, attention="eager", checkpoint="full"),
    "llama-eager-fp16": case(LLAMA, micro_batch=2, seq=64, attention="eager", dtype="fp16"),
    "llama-eager-multi-head": case(config("llama", num_key_value_heads=4), micro_batch=2, seq=64, attention="eager"),
    "llama-eager-one-head": case(ONE_HEAD, micro_batch=2, seq=83, attention="eager"),
    "llama-eager-one-row": case({**ONE_HEAD, "attention_dropout": 0.1}, seq=83, attention="eager"),
    "gpt2-eager-one-row": case(gpt2(), seq=64, attention="eager"),
    "mistral-eager-window": case({**MISTRAL, "sliding_window": 32}, micro_batch=2, seq=77, attention="eager"),
    "qwen3-eager": case(QWEN3, seq=72, attention="eager"),
    "gemma2-eager": case(GEMMA2, micro_batch=2, seq=90, attention="eager"),
    "mixtral-eager": case(MIXTRAL, micro_batch=2, seq=64, attention="eager"),
    "llama-native-loss": case(LLAMA, micro_batch=2, seq=64, loss="native"),
    "llama-chunked-loss": case(LLAMA, seq=96, loss="chunked:4"),
    "llama-tied-chunked-loss": case(config("llama", tie_word_embeddings=True), micro_batch=2, seq=96, loss="chunked:3"),
    "mistral-window": case({**MISTRAL, "sliding_window": 32}, micro_batch=2, seq=77, attention="mem-efficient"),
    "mistral-window-checkpoint": case({**MISTRAL, "sliding_window": 64}, micro_batch=2, seq=64,
                                      attention="mem-efficient", checkpoint="full"),
    "mistral-window-fp32": case({**MISTRAL, "sliding_window": 32}, seq=72, dtype="fp32", attention="mem-efficient"),
    "mistral-window-autocast": case({**MISTRAL, "sliding_window": 32}, micro_batch=2, seq=77, dtype="fp32",
                                    autocast="bf16", attention="mem-efficient"),
    "mixtral-window": case({**MIXTRAL, "sliding_window": 48}, micro_batch=2, seq=64, attention="mem-efficient"),
    "gemma2-window": case({**GEMMA2, "sliding_window": 64}, micro_batch=2, seq=90),
    "llama-math": case(LLAMA, micro_batch=2, seq=70, attention="math"),
    "llama-math-multi-head": case(config("llama", num_key_value_heads=4), micro_batch=2, seq=64, attention="math"),
    "llama-math-one-head": case({**ONE_HEAD, "attention_dropout": 0.1}, seq=83, attention="math"),
    "llama-math-checkpoint": case(LLAMA, seq=64, attention="math", checkpoint="full"),
    "llama-math-autocast": case(config("llama"), micro_batch=2, seq=64, attention="math", dtype="fp32",
                                autocast="bf16"),
    "llama-fp32-grouped": case(LLAMA, micro_batch=2, seq=70, dtype="fp32", attention="math"),
    "qwen3-math-fp16": case(QWEN3, micro_batch=2, seq=72, dtype="fp16", attention="math"),
    "gpt2-math": case(gpt2(attn_pdrop=0.1), micro_batch=2, seq=64, attention="math"),
    **liger_kernels(),
    **torchtitan_cases(),
    **adapter_kernels(),
    **shown_adapter_kernels(),
    "llama-liger": case(LLAMA, micro_batch=2, seq=70, loss="liger"),
    "llama-tied-liger": case(config("llama", tie_word_embeddings=True), seq=96, loss="liger"),
    "mistral-liger-checkpoint": case(MISTRAL, micro_batch=2, seq=77, loss="liger", checkpoint="full", grad_accum=2),
    "qwen2-tied-liger": case(QWEN2, seq=64, loss="liger", dtype="fp16"),
    "qwen3-liger": case(QWEN3, micro_batch=2, seq=72, loss="liger", freeze=["lm_head.*"]),
    "gemma2-liger": case(GEMMA2, micro_batch=2, seq=90, loss="liger"),
    "mixtral-liger": case(MIXTRAL, micro_batch=2, seq=64, loss="liger"),
    "gpt2-tp2": case(gpt2(), micro_batch=2, seq=100, tp=2),
    "gpt2-tp4-checkpoint": case(gpt2(n_layer=3), seq=100, checkpoint="full", tp=4),
    "gpt2-tp2-fp32": case(gpt2(resid_pdrop=0.0), micro_batch=2, seq=70, dtype="fp32", attention="mem-efficient", tp=2),
    "llama-tp2": case(LLAMA, micro_batch=2, seq=96, tp=2),
    "llama-tp4-shared-heads": case(LLAMA, seq=64, grad_accum=2, tp=4),
    "llama-tp2-biases": case(config("llama", attention_bias=True, mlp_bias=True), seq=64, tp=2),
    "llama-tp2-checkpoint": case(LLAMA, micro_batch=2, seq=96, checkpoint="full", tp=2),
    "llama-tp2-checkpoint-reentrant": case(LLAMA, seq=96, checkpoint="full", reentrant=True, input_require_grads=True,
                                           tp=2),
    "llama-tp2-frozen": case(LLAMA, seq=96, freeze=["model.embed_tokens.*", "model.layers.0.*"], tp=2),
    "llama-tp2-eager": case(LLAMA, micro_batch=2, seq=64, attention="eager", tp=2),
    "mistral-tp3": case({**MISTRAL, "intermediate_size": 204}, micro_batch=2, seq=77, tp=3),
    "qwen2-tied-tp2": case(QWEN2, micro_batch=2, seq=96, tp=2),
    "qwen3-tp2-fp16": case(QWEN3, micro_batch=2, seq=72, dtype="fp16", tp=2),
    "gemma2-tied-tp2-checkpoint": case(GEMMA2, micro_batch=2, seq=90, checkpoint="full", tp=2),
    "llama-one-token": case(LLAMA, seq=1),
    "llama-4.53": case(LLAMA, transformers_version="4.53.3"),
    "llama-4.53-checkpoint": case(LLAMA, micro_batch=2, seq=96, checkpoint="full", checkpoint_impl="non_reentrant",
                                  transformers_version="4.53.3"),
    "llama-4.53-multi-head": case(config("llama", num_key_value_heads=4), micro_batch=2, seq=64,
                                  transformers_version="4.53.3"),
    "llama-4.53-one-head": case(ONE_HEAD, micro_batch=2, seq=83, transformers_version="4.53.3"),
    "mistral-4.53": case(MISTRAL, micro_batch=2, seq=77, transformers_version="4.53.3"),
    "qwen2-tied-4.53": case(QWEN2, micro_batch=2, seq=96, transformers_version="4.53.3"),
    "qwen3-4.53": case(QWEN3, micro_batch=2, seq=72, transformers_version="4.53.3"),
    "llama-4.57": case(LLAMA, transformers_version="4.57.6"),
    "qwen3-4.57-checkpoint": case(QWEN3, seq=72, checkpoint="full", checkpoint_impl="non_reentrant",
                                  transformers_version="4.57.6"),
    **FAMILIES,
    **all_drawn(FAMILIES),
    **SHOWN,
    **{f"{name}-liger-{release}": with_liger(name, release) for release, names in LIGER_RELEASES.items() for name in names},
    **{f"llama-{name}": case(config("llama", num_hidden_layers=1, hidden_act=name), seq=40) for name in ACTIVATIONS},
    **{f"gpt2-{name}": case(gpt2(n_layer=1, activation_function=name), seq=40)
       for name in ("relu", "quick_gelu", "gelu_fast", "linear", "gelu_10")},
    **mixtures(),
    "mixtral-relu2": case({**MIXTRAL, "hidden_act": "relu2", "num_hidden_layers": 1}, seq=40),
    "llama-quick_gelu-autocast": case(config("llama", num_hidden_layers=1, hidden_act="quick_gelu"), seq=40,
                                      dtype="fp32", autocast="bf16", checkpoint="full"),
}
