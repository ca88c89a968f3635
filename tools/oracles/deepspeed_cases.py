"""The configurations that deepspeed_witness.py runs: small models, DeepSpeed JSON, world size, what the loop does."""

import memory_cases as wider

GPT2 = {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": True}
LLAMA = {"model_type": "llama", "vocab_size": 72, "hidden_size": 16, "intermediate_size": 24,
         "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
         "tie_word_embeddings": False}
# An encoder and a decoder, which sees what the encoder made; dropout draws nothing that another rank would not.
T5 = {"model_type": "t5", "vocab_size": 72, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
      "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}
# bart and its kin; none draws.
BART = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "vocab_size": 72, "d_model": 16,
        "encoder_ffn_dim": 24, "decoder_ffn_dim": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32, "pad_token_id": 1,
        "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "dropout": 0.0}
MBART = {**BART, "model_type": "mbart", "architectures": ["MBartForConditionalGeneration"], "scale_embedding": True}
MARIAN = {**BART, "model_type": "marian", "architectures": ["MarianMTModel"], "scale_embedding": True, "pad_token_id": 71,
          "decoder_start_token_id": 71, "eos_token_id": 0, "activation_function": "silu"}
M2M_100 = {**BART, "model_type": "m2m_100", "architectures": ["M2M100ForConditionalGeneration"], "scale_embedding": True,
           "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "attention_dropout": 0.0, "activation_function": "relu"}
PEGASUS = {**BART, "model_type": "pegasus", "architectures": ["PegasusForConditionalGeneration"], "pad_token_id": 0,
           "eos_token_id": 1, "decoder_start_token_id": 0}
TRANSLATORS = {"bart": BART, "mbart": MBART, "marian": MARIAN, "m2m-100": M2M_100, "pegasus": PEGASUS}
# Four patches and a class token; the projector reads what the first of two layers of the tower returns.
LLAVA = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 70,
         "vision_config": {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24,
                           "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
         "text_config": LLAMA}


def like_llama(kind, without=(), **more):
    made = {**LLAMA, "model_type": kind, "pad_token_id": None, "bos_token_id": 0, "eos_token_id": 1, **more}
    return {key: value for key, value in made.items() if key not in without}


# How attention and MLP hang on the residual, a family each.
PHI = like_llama("phi", num_key_value_heads=2, resid_pdrop=0.0, embd_pdrop=0.0)
COHERE = like_llama("cohere", tie_word_embeddings=True, use_qk_norm=True)
GPT_NEOX = like_llama("gpt_neox", ["num_key_value_heads"], hidden_dropout=0.0, attention_dropout=0.0, rotary_pct=0.5)
OLMO2 = like_llama("olmo2")
GEMMA3 = like_llama("gemma3_text", head_dim=8, tie_word_embeddings=True, sliding_window=64, query_pre_attn_scalar=8,
                    layer_types=["sliding_attention", "full_attention"])
GLM4 = like_llama("glm4", head_dim=8)
# Inputs of each layer's own, and layers that read the keys and values of another; keys that are values; experts.
GEMMA4 = like_llama("gemma4_text", head_dim=8, global_head_dim=16, num_hidden_layers=5, hidden_size_per_layer_input=8,
                    vocab_size_per_layer_input=72, num_kv_shared_layers=2, use_double_wide_mlp=True, sliding_window=64,
                    tie_word_embeddings=True, final_logit_softcapping=30.0, layer_types=[
                        "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"])
GEMMA4_DENSE = {**GEMMA4, "num_hidden_layers": 3, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                "use_double_wide_mlp": False, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
                "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
GEMMA4_MOE = {**GEMMA4_DENSE, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8}
FALCON = {"model_type": "falcon", "vocab_size": 72, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
          "new_decoder_architecture": True, "num_kv_heads": 1, "bos_token_id": 0, "eos_token_id": 1}
OPT = {"model_type": "opt", "vocab_size": 72, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
       "num_attention_heads": 2, "max_position_embeddings": 32, "word_embed_proj_dim": 16, "dropout": 0.0}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 72, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODERNBERT = {**BERT, "model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"], "local_attention": 64,
              "global_attn_every_n_layers": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
              "cls_token_id": 1, "sep_token_id": 2}
# Mixtures: experts are a leaf of their own, with a shared one beside them and without.
MIXTRAL = like_llama("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
QWEN3_MOE = like_llama("qwen3_moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8)
QWEN2_MOE = like_llama("qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                       shared_expert_intermediate_size=16)
DEEPSEEK_V3 = like_llama("deepseek_v3", num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8,
                         qk_rope_head_dim=8, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2,
                         moe_intermediate_size=8, n_shared_experts=1, first_k_dense_replace=1, n_group=2, topk_group=1)
GPT_OSS = like_llama("gpt_oss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=64,
                     layer_types=["sliding_attention", "full_attention"])
LLAMA4 = like_llama("llama4_text", head_dim=8, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2,
                    intermediate_size_mlp=32, no_rope_layers=[1, 0], attention_chunk_size=64)
# States in the place of attention, which are called by keyword, among layers that attend.
SCANNED = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
           "layer_types": ["linear_attention", "full_attention"], "head_dim": 8}
QWEN3_NEXT = like_llama("qwen3_next", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                        shared_expert_intermediate_size=16, **SCANNED)
QWEN3_5 = like_llama("qwen3_5_text", **SCANNED)
HYBRID = like_llama("granitemoehybrid", num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=16,
                    mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=8,
                    layer_types=["linear_attention", "full_attention"])
MAMBA2 = {"model_type": "mamba2", "hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 2,
          "num_hidden_layers": 2, "vocab_size": 72, "chunk_size": 8, "pad_token_id": None}
BLOOM = {"model_type": "bloom", "hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 72}
STABLELM = like_llama("stablelm", ["rms_norm_eps"], use_parallel_residual=True)
GLM4_MOE = like_llama("glm4_moe", head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                      n_shared_experts=1, first_k_dense_replace=1)
ELECTRA = {**BERT, "model_type": "electra", "architectures": ["ElectraForMaskedLM"], "embedding_size": 8}
DISTILBERT = {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"], "dim": 16, "hidden_dim": 24,
              "n_layers": 2, "n_heads": 2, "vocab_size": 72, "max_position_embeddings": 32, "dropout": 0.0,
              "attention_dropout": 0.0}
DEBERTA = {**BERT, "model_type": "deberta-v2", "architectures": ["DebertaV2ForMaskedLM"], "type_vocab_size": 0,
           "position_biased_input": False, "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm",
           "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1}
GPT_BIGCODE = {"model_type": "gpt_bigcode", "vocab_size": 72, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32,
               "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1}
GPTJ = {"model_type": "gptj", "vocab_size": 72, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32,
        "rotary_dim": 4, "bos_token_id": 0, "eos_token_id": 1}
GPT_NEO = {"model_type": "gpt_neo", "vocab_size": 72, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
           "max_position_embeddings": 32, "attention_types": [[["global", "local"], 1]], "window_size": 8,
           "bos_token_id": 0, "eos_token_id": 1}
APERTUS = like_llama("apertus", hidden_act="xielu")
NANOCHAT = like_llama("nanochat", hidden_act="relu2")
PHIMOE = like_llama("phimoe", num_local_experts=4)
TOPOLOGIES = {"phi": PHI, "cohere": COHERE, "gpt-neox": GPT_NEOX, "olmo2": OLMO2, "gemma3": GEMMA3, "glm4": GLM4,
              "falcon": FALCON, "gemma4": GEMMA4, "gemma4-dense": GEMMA4_DENSE}
# Without checkpoints.
OTHERS = {"llama4": LLAMA4, "bloom": BLOOM, "stablelm": STABLELM, "glm4-moe": GLM4_MOE}
SCANS = {"qwen3-next": QWEN3_NEXT, "qwen3-5": QWEN3_5, "granitemoehybrid": HYBRID, "mamba2": MAMBA2}
# Whose constants, or a row of padding in whose tables, transformers' own initialization does not find under zero.Init.
PADDED = {"gpt-bigcode": GPT_BIGCODE, "gptj": GPTJ, "gpt-neo": GPT_NEO, "apertus": APERTUS, "nanochat": NANOCHAT,
          "phimoe": PHIMOE, "opt": OPT, "bert": BERT, "modernbert": MODERNBERT, "electra": ELECTRA,
          "distilbert": DISTILBERT, "deberta": DEBERTA, **TRANSLATORS, **SCANS}
MIXTURES = {"mixtral": MIXTRAL, "qwen3-moe": QWEN3_MOE, "qwen2-moe": QWEN2_MOE, "deepseek-v3": DEEPSEEK_V3, "gpt-oss": GPT_OSS,
            "gemma4-moe": GEMMA4_MOE}
# Modules of module_graph_cases.py, which tests/witnesses/modules has recorded, and their rows.
RECORDED = {"unet": 2, "nanogpt": 2, "resnet": 2, "mamba": 2, "graph-network": 12, "diffusion-transformer": 2,
            "torchtitan-llama": 2, "hand-written-function": 4, "attention": 2}
# The tiny example: one group a=10, b=7, c=5. `tiny` is made by hand: y = x * sum(a) + sum(b) + sum(c).
TINY = {"model_type": "tiny"}
ADAM = {"type": "AdamW", "params": {"lr": 1e-3}}


def case(model, zero, *, world=2, accumulation=1, dtype="bf16", steps=2, deepspeed=None, **loop):
    """`loop`: init ("after": the model is built outside zero.Init),
    checkpoint (None, "reentrant", "non_reentrant"), freeze (globs), evaluate (steps before which an eval forward
    runs)."""
    file = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": accumulation,
            "optimizer": ADAM, "zero_optimization": zero}
    if dtype != "fp32":
        file[dtype] = {"enabled": True}
    if dtype == "fp16":
        file["fp16"]["initial_scale_power"] = 4  # Or the first steps overflow and are skipped.
    file.update(deepspeed or {})
    return {"model": model, "deepspeed": file, "world": world, "steps": steps, **loop}


def z3(**keys):
    """Numbers of the size of the models: all of ZeRO-3's defaults would hold everything."""
    return {"stage": 3, "reduce_bucket_size": 1000, "stage3_prefetch_bucket_size": 600,
            "stage3_param_persistence_threshold": 20, "stage3_max_reuse_distance": 0, **keys}


def z1(**keys):
    return {"stage": 1, "reduce_bucket_size": 1500, **keys}


def z2(**keys):
    return {"stage": 2, "reduce_bucket_size": 1500, **keys}


FP32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
FP32_SENT = {"communication_data_type": "fp32"}
TORCH_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
TINY_BUCKET = {"reduce_bucket_size": 12}

SHOWN = {"freeze": ["*vision_tower*"]}
SHOWN_WHOLE = {"freeze": ["*vision_tower.encoder.layers.1.*", "*post_layernorm*", "*class_embedding"]}

# Batches of text alone: no part of the tower gets a gradient.
TEXT = {"images": 0}
# Other towers, as memory_cases.py has them: rows of a picture and text.
def shown(config, *freeze, **more):
    zero = z3(reduce_bucket_size=40000, stage3_prefetch_bucket_size=20000, stage3_param_persistence_threshold=40)
    frozen = {"freeze": [name + "*" for name in freeze]} if freeze else {}
    return case(config, zero, init="after", seq=24, **frozen, **more)


PALIGEMMA = {**wider.PALIGEMMA, "vision_config": {**wider.PALIGEMMA["vision_config"], "image_size": 24}}
PICTURES = {
    "gemma3-shown": shown(wider.GEMMA3_SHOWN, wider.TOWER),
    "paligemma": shown(PALIGEMMA, wider.TOWER),
    "paligemma-trained": shown(PALIGEMMA),
    "internvl": shown(wider.INTERNVL, wider.TOWER),
    "mistral3": shown(wider.MISTRAL3, wider.TOWER, image_size=[40, 24]),
    "gemma4-shown": shown(wider.GEMMA4_SHOWN, wider.TOWER, image_size=[40, 24]),
    "qwen2-vl": shown(wider.QWEN2_VL, wider.SIZED, image_size=[40, 24]),
    "qwen2-5-vl": shown(wider.QWEN25_VL, wider.SIZED, image_size=[40, 24]),
    "qwen3-vl": shown(wider.QWEN3_VL, wider.SIZED, image_size=[40, 24]),
    "qwen3-5-vl": shown(wider.QWEN3_5_VL, wider.SIZED, image_size=[40, 24]),
    # Gradients inside of towers.
    "gemma3-shown-trained": shown(wider.GEMMA3_SHOWN),
    "mistral3-trained": shown(wider.MISTRAL3, image_size=[40, 24]),
    "mistral3-checkpoint": shown(wider.MISTRAL3, wider.TOWER, image_size=[40, 24], checkpoint="non_reentrant"),
    "gemma3-shown-checkpoint": shown(wider.GEMMA3_SHOWN, wider.TOWER, checkpoint="non_reentrant"),
    "gemma4-shown-checkpoint": shown(wider.GEMMA4_SHOWN, wider.TOWER, image_size=[40, 24], checkpoint="non_reentrant"),
    "internvl-trained": shown(wider.INTERNVL, wider.TOWER + "embeddings."),
    "internvl-checkpoint": shown(wider.INTERNVL, wider.TOWER, checkpoint="non_reentrant"),
    "qwen2-vl-trained": shown(wider.QWEN2_VL, image_size=[40, 24]),
    "qwen3-5-vl-trained": shown(wider.QWEN3_5_VL, image_size=[40, 24]),
    "qwen2-5-vl-merger": shown(wider.QWEN25_VL, wider.SIZED + "patch_embed.", wider.SIZED + "blocks.", image_size=[40, 24]),
    "qwen2-5-vl-trained": shown(wider.QWEN25_VL, image_size=[40, 24]),
    "qwen2-5-vl-checkpoint": shown(wider.QWEN25_VL, wider.SIZED, image_size=[40, 24], checkpoint="non_reentrant"),
    "qwen2-5-vl-reentrant": shown(wider.QWEN25_VL, wider.SIZED, image_size=[40, 24], checkpoint="reentrant"),
    "qwen2-5-vl-trained-checkpoint": shown(wider.QWEN25_VL, image_size=[40, 24], checkpoint="non_reentrant"),
    "qwen3-vl-trained": shown(wider.QWEN3_VL, image_size=[40, 24]),
    "qwen3-vl-checkpoint": shown(wider.QWEN3_VL, wider.SIZED, image_size=[40, 24], checkpoint="non_reentrant"),
}

CASES = {
    **{"z3-" + name: made for name, made in PICTURES.items()},
    # A tower beside a language model, frozen and trained.
    "z2-llava": case(LLAVA, z2(), **SHOWN),
    "z3-llava": case(LLAVA, z3(), **SHOWN),
    "z3-llava-trained": case(LLAVA, z3(), **SHOWN_WHOLE),
    "z3-llava-checkpoint": case(LLAVA, z3(), checkpoint="non_reentrant", **SHOWN),
    # Trained, and in no batch.
    "z0-llava-text": case(LLAVA, {"stage": 0}, **TEXT),
    "z0-llava-text-fp16": case(LLAVA, {"stage": 0}, dtype="fp16", **TEXT),
    "z0-llava-text-fp32": case(LLAVA, {"stage": 0}, dtype="fp32", **TEXT),
    "z1-llava-text": case(LLAVA, z1(), **TEXT),
    "z1-llava-text-w4": case(LLAVA, z1(), world=4, **TEXT),
    "z1-llava-text-accumulate": case(LLAVA, z1(), accumulation=2, **TEXT),
    "z1-llava-text-sums-fp32": case(LLAVA, z1(), deepspeed=FP32_SUMS, **TEXT),
    "z2-llava-text": case(LLAVA, z2(), **TEXT),
    "z2-llava-text-w4": case(LLAVA, z2(), world=4, **TEXT),
    "z2-llava-text-accumulate": case(LLAVA, z2(), accumulation=2, **TEXT),
    "z2-llava-text-not-contiguous": case(LLAVA, z2(contiguous_gradients=False), **TEXT),
    "z2-llava-text-sums-fp32": case(LLAVA, z2(), accumulation=2, deepspeed=FP32_SUMS, **TEXT),
    "z2-llava-text-offload": case(LLAVA, z2(offload_optimizer={"device": "cpu"}), accumulation=2, **TEXT),
    "z3-llava-text": case(LLAVA, z3(), steps=3, **TEXT),
    "z3-llava-text-w4": case(LLAVA, z3(), world=4, **TEXT),
    "z3-llava-text-accumulate": case(LLAVA, z3(), accumulation=2, **TEXT),
    "z3-llava-text-frozen": case(LLAVA, z3(), freeze=["*vision_tower*"], **TEXT),
    "z3-llava-text-offload": case(LLAVA, z3(offload_optimizer={"device": "cpu"}), **TEXT),
    # Without ZeRO.
    "z0-llama-bf16": case(LLAMA, {"stage": 0}),
    "z0-llama-bf16-accumulate": case(LLAMA, {"stage": 0}, accumulation=2),
    "z0-llama-fp16": case(LLAMA, {"stage": 0}, dtype="fp16"),
    "z0-llama-fp16-unfused": case(LLAMA, {"stage": 0}, dtype="fp16", deepspeed=TORCH_ADAM),
    "z0-llama-fp32": case(LLAMA, {"stage": 0}, dtype="fp32"),
    "z0-llama-sent-fp32": case(LLAMA, {"stage": 0}, deepspeed=FP32_SENT),
    "z0-gpt2-frozen": case(GPT2, {"stage": 0}, freeze=["*wte*"]),
    # ZeRO-1 and BF16_Optimizer.
    "z1-llama": case(LLAMA, z1()),
    "z1-llama-w4": case(LLAMA, z1(), world=4),
    "z1-llama-accumulate": case(LLAMA, z1(), accumulation=2),
    "z1-llama-overlap": case(LLAMA, z1(overlap_comm=True), accumulation=2),
    "z1-llama-large": case(LLAMA, z1(reduce_bucket_size=500)),
    "z1-llama-fp16": case(LLAMA, z1(), dtype="fp16"),
    "z1-llama-fp32": case(LLAMA, z1(), dtype="fp32"),
    "z1-llama-fp16-sums-fp32": case(LLAMA, z1(), dtype="fp16", accumulation=2, deepspeed=FP32_SUMS),
    "z1-llama-no-scatter": case(LLAMA, z1(reduce_scatter=False)),
    "z1-llama-round-robin": case(LLAMA, z1(round_robin_gradients=True), world=4),
    "z1-llama-not-contiguous": case(LLAMA, z1(contiguous_gradients=False)),
    "z1-llama-bf16-optimizer": case(LLAMA, z1(), deepspeed=FP32_SUMS),
    "z1-llama-bf16-optimizer-accumulate": case(LLAMA, z1(), accumulation=2, deepspeed=FP32_SUMS, world=4),
    "z1-llama-bf16-optimizer-immediate": case(LLAMA, z1(), accumulation=2, deepspeed={
        **FP32_SUMS, "bf16": {"enabled": True, "immediate_grad_update": True}}),
    "z1-llama-bf16-optimizer-sent-fp32": case(LLAMA, z1(), deepspeed={**FP32_SUMS, **FP32_SENT}),
    "z1-gpt2-bf16-optimizer-frozen": case(GPT2, z1(), deepspeed=FP32_SUMS, freeze=["*wpe*"]),
    # ZeRO-2.
    "z2-llama": case(LLAMA, z2()),
    "z2-llama-w4": case(LLAMA, z2(), world=4),
    "z2-llama-accumulate": case(LLAMA, z2(), accumulation=3),
    "z2-llama-large": case(LLAMA, z2(reduce_bucket_size=500), world=4),
    "z2-llama-large-straddles": case(LLAMA, z2(reduce_bucket_size=100), world=4),
    "z2-llama-overlap": case(LLAMA, z2(overlap_comm=True), accumulation=2),
    "z2-llama-no-scatter": case(LLAMA, z2(reduce_scatter=False)),
    "z2-llama-per-owner": case(LLAMA, z2(use_multi_rank_bucket_allreduce=False), world=4),
    "z2-llama-per-owner-small": case(LLAMA, z2(use_multi_rank_bucket_allreduce=False, reduce_bucket_size=300),
                                     world=4),
    "z2-llama-round-robin": case(LLAMA, z2(round_robin_gradients=True), world=4),
    "z2-llama-not-contiguous": case(LLAMA, z2(contiguous_gradients=False)),
    "z2-llama-not-contiguous-accumulate": case(LLAMA, z2(contiguous_gradients=False), accumulation=2, world=4),
    "z2-llama-sums-fp32": case(LLAMA, z2(), accumulation=2, deepspeed=FP32_SUMS),
    "z2-llama-sums-fp32-w4": case(LLAMA, z2(), world=4, deepspeed=FP32_SUMS),
    "z2-llama-sent-fp32": case(LLAMA, z2(), deepspeed=FP32_SENT, world=4),
    "z2-llama-fp16": case(LLAMA, z2(), dtype="fp16"),
    "z2-llama-fp32": case(LLAMA, z2(), dtype="fp32"),
    "z2-llama-no-overflow-check": case(LLAMA, z2(), deepspeed={
        "bf16": {"enabled": True, "check_grad_overflow": False}}),
    "z2-llama-checkpoint": case(LLAMA, z2(), checkpoint="non_reentrant"),
    "z2-llama-reentrant": case(LLAMA, z2(), checkpoint="reentrant"),
    "z2-llama-torch-adam": case(LLAMA, z2(), deepspeed=TORCH_ADAM),
    "z2-gpt2": case(GPT2, z2()),
    "z2-gpt2-frozen": case(GPT2, z2(), freeze=["*wte*", "*h.0.*"]),
    "z1-llama-offload-accumulate": case(LLAMA, z1(offload_optimizer={"device": "cpu"}), accumulation=2),
    "z1-llama-offload-sums-fp32": case(LLAMA, z1(offload_optimizer={"device": "cpu"}), accumulation=2,
                                       deepspeed=FP32_SUMS),
    "z2-llama-offload-large": case(LLAMA, z2(offload_optimizer={"device": "cpu"}, reduce_bucket_size=500), world=4,
                                   accumulation=2),
    "z2-llama-offload-fp16": case(LLAMA, z2(offload_optimizer={"device": "cpu"}, round_robin_gradients=True), world=4,
                                  dtype="fp16", accumulation=3),
    "z2-llama-offload-fp32": case(LLAMA, z2(offload_optimizer={"device": "cpu"}), dtype="fp32", accumulation=2),
    "z2-llama-offload-sums-fp32": case(LLAMA, z2(offload_optimizer={"device": "cpu"}), accumulation=2,
                                       deepspeed=FP32_SUMS),
    "z1-llama-offload-accumulate": case(LLAMA, z1(offload_optimizer={"device": "cpu"}), accumulation=2),
    "z1-llama-offload-sums-fp32": case(LLAMA, z1(offload_optimizer={"device": "cpu"}), accumulation=2,
                                       deepspeed=FP32_SUMS),
    "z2-llama-offload-large": case(LLAMA, z2(offload_optimizer={"device": "cpu"}, reduce_bucket_size=500), world=4,
                                   accumulation=2),
    "z2-llama-offload-fp16": case(LLAMA, z2(offload_optimizer={"device": "cpu"}, round_robin_gradients=True), world=4,
                                  dtype="fp16", accumulation=3),
    "z2-llama-offload-sums-fp32": case(LLAMA, z2(offload_optimizer={"device": "cpu"}), accumulation=2,
                                       deepspeed=FP32_SUMS),
    "z2-llama-offload": case(LLAMA, z2(offload_optimizer={"device": "cpu"})),
    "z2-llama-offload-accumulate": case(LLAMA, z2(offload_optimizer={"device": "cpu"}), accumulation=2),
    # The tiny example.
    "z1-tiny": case(TINY, {"stage": 1, **TINY_BUCKET}, world=4),
    "z2-tiny": case(TINY, {"stage": 2, **TINY_BUCKET}, world=4),
    "z2-tiny-accumulate": case(TINY, {"stage": 2, **TINY_BUCKET}, world=4, accumulation=2),
    "z2-tiny-per-owner": case(TINY, {"stage": 2, "use_multi_rank_bucket_allreduce": False, **TINY_BUCKET}, world=4),
    "z3-tiny": case(TINY, {"stage": 3, "stage3_param_persistence_threshold": 5, **TINY_BUCKET}, world=4),
    # ZeRO-3: the coordinator.
    "z3-llama": case(LLAMA, z3(), steps=3),
    "z3-llama-w4": case(LLAMA, z3(), world=4, steps=2),
    "z3-llama-defaults": case(LLAMA, {"stage": 3}, steps=3),
    "z3-llama-reuse": case(LLAMA, z3(stage3_max_reuse_distance=3000), steps=3),
    "z3-llama-reuse-edge": case(LLAMA, z3(stage3_max_reuse_distance=1168, stage3_param_persistence_threshold=0)),
    "z3-llama-no-prefetch": case(LLAMA, z3(stage3_prefetch_bucket_size=0), steps=3),
    "z3-llama-max-live": case(LLAMA, z3(stage3_max_live_parameters=2000), steps=3),
    "z3-llama-sequential": case(LLAMA, z3(stage3_allgather_sequential=True), steps=2),
    "z3-llama-all-reduce-fetch": case(LLAMA, z3(stage3_use_all_reduce_for_fetch_params=True), steps=2),
    "z3-llama-persist": case(LLAMA, z3(stage3_param_persistence_threshold=500,
                                       stage3_model_persistence_threshold=1100), steps=3),
    "z3-llama-accumulate": case(LLAMA, z3(), accumulation=2),
    "z3-llama-fp32-accumulation": case(LLAMA, z3(sub_group_size=1000), accumulation=2,
                                       deepspeed={"data_types": {"grad_accum_dtype": "fp32"}}),
    "z3-llama-subgroups": case(LLAMA, z3(sub_group_size=1000)),
    "z3-llama-all-reduce": case(LLAMA, z3(reduce_scatter=False)),
    "z3-llama-bucket-small": case(LLAMA, z3(reduce_bucket_size=300)),
    "z3-llama-reentrant": case(LLAMA, z3(), checkpoint="reentrant"),
    "z3-llama-non-reentrant": case(LLAMA, z3(), checkpoint="non_reentrant"),
    "z3-llama-non-reentrant-reuse": case(LLAMA, z3(stage3_max_reuse_distance=3000), checkpoint="non_reentrant"),
    "z3-llama-frozen": case(LLAMA, z3(), freeze=["*embed_tokens*", "*mlp.up_proj*"]),
    "z3-llama-evaluate": case(LLAMA, z3(), steps=4, evaluate=[2]),
    "z3-llama-init-after": case(LLAMA, z3(), init="after"),
    "z3-llama-fp16": case(LLAMA, z3(), dtype="fp16"),
    "z3-llama-fp32": case(LLAMA, z3(), dtype="fp32"),
    "z3-llama-offload": case(LLAMA, z3(offload_optimizer={"device": "cpu"}), accumulation=2),
    "z3-llama-offload-param": case(LLAMA, z3(offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"})),
    "z2-t5": case(T5, z2()),
    "z3-t5": case(T5, z3(), steps=3),
    "z3-t5-reuse": case(T5, z3(stage3_max_reuse_distance=3000), steps=3),
    "z3-t5-non-reentrant": case(T5, z3(), checkpoint="non_reentrant"),
    "z3-t5-frozen": case(T5, z3(), freeze=["shared*", "encoder.block.0*"]),
    **{f"z3-{name}": case(model, z3(), steps=3) for name, model in {**TOPOLOGIES, **MIXTURES}.items()},
    **{f"z3-{name}": case(model, z3()) for name, model in OTHERS.items()},
    "z3-mixtral-leaves": case(MIXTRAL, z3(leaf_module={"classes": ["MixtralExperts"], "name_suffixes": ["1.mlp"]})),
    "z3-mixtral-no-leaves": case(MIXTRAL, z3(leaf_module={"classes": []})),
    **{f"z3-{name}": case(model, z3(), init="after") for name, model in PADDED.items()},
    **{f"z3-{name}-non-reentrant": case(model, z3(), init="after", checkpoint="non_reentrant")
       for name, model in TRANSLATORS.items()},
    **{f"z3-{name}-non-reentrant": case(model, z3(), checkpoint="non_reentrant")
       for name, model in {**TOPOLOGIES, **MIXTURES}.items()},
    **{f"z3-recorded-{name}": case({"model_type": "recorded", "module": name}, z3(), dtype="fp32", steps=3,
                                   deepspeed={"train_micro_batch_size_per_gpu": rows}) for name, rows in RECORDED.items()},
    "z3-gpt2": case(GPT2, z3(), steps=3),
    "z3-gpt2-non-reentrant": case(GPT2, z3(), checkpoint="non_reentrant"),
}
