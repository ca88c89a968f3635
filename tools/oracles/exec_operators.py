#!/usr/bin/env python3
"""What PyTorch computes, for the executor's kernels: whole tiny models, and single operators. Needs torch and
transformers.

  tools/oracles/exec_operators.py tests/witnesses/exec [NAME...]

Everything is computed in float64 and written with nine digits, so that it is exact for what runs in fp32. Weights and
inputs are sines of their place, so that the tests make the same ones without reading them. A model's weights are those
sines in fp32: else what runs in fp32 would be that of other weights, by 1e-6 in single gradients.
"""
import dataclasses
import json
import math
import pathlib
import sys

import torch
import transformers

GPT2 = {"vocab_size": 23, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "bos_token_id": 0,
        "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LLAMA = {"vocab_size": 19, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
         "tie_word_embeddings": False, "rms_norm_eps": 1e-6}
ROWS, TOKENS = 2, 6
SMALL = {"vocab_size": 19, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 16, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 10000.0}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
TABLES = {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                              "full_attention": {"rope_type": "default", "rope_theta": 500.0}}}
MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "router_aux_loss_coef": 0.0,
         "output_router_logits": False}
CHOSEN = {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
          "routed_scaling_factor": 1.5, "norm_topk_prob": True}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
          "num_key_value_heads": 4, **CHOSEN}
ENCODES = {"layer_norm_eps": 1e-6, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
           "type_vocab_size": 2}
# Those that take nothing of SMALL.
OWN = ("gpt_bigcode", "gpt_neo", "distilbert", "t5", "umt5", "vit", "bart", "mbart", "marian", "m2m_100", "pegasus")
ENCODERS = ("distilbert", "modernbert")
TRANSLATES = {"vocab_size": 19, "d_model": 16, "encoder_ffn_dim": 12, "decoder_ffn_dim": 20, "encoder_layers": 2, "decoder_layers": 2,
              "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 16, "dropout": 0.0,
              "attention_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "pad_token_id": 1,
              "decoder_start_token_id": 2}
# What each family has beside SMALL. Behind a point: which of its variants.
FAMILIES = {
    "mistral": {}, "qwen2": {"tie_word_embeddings": True}, "qwen3": {"head_dim": 4},
    "gemma": {"head_dim": 4, "tie_word_embeddings": True}, "phi": {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-6},
    "phi3": {}, "gpt_neox": {"rotary_pct": 0.5, "layer_norm_eps": 1e-6}, "smollm3": {"no_rope_layer_interval": 2},
    "starcoder2": {"norm_epsilon": 1e-6},
    "olmo": {}, "exaone4": KINDS, "nemotron": {"norm_eps": 1e-6}, "hunyuan_v1_dense": {"head_dim": 4},
    "arcee": {}, "jais2": {"layer_norm_eps": 1e-6},
    "hyperclovax": {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 0.5},
    # Its norms stand behind what is small here: with the usual 1e-6 the error of fp32 itself is in the gradients.
    "flex_olmo": {**MIXED, "intermediate_size": 24, "rms_norm_eps": 1e-2},
    "seed_oss": {"head_dim": 4, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "cwm": {"head_dim": 4, **KINDS, **PLAIN}, "ministral": {"head_dim": 4, **KINDS},
    "gemma2": {"head_dim": 4, "attn_logit_softcapping": None, "final_logit_softcapping": 5.0, **KINDS},
    "vaultgemma": {"head_dim": 4, "attn_logit_softcapping": None, "final_logit_softcapping": 5.0, **KINDS},
    "gemma3_text": {"head_dim": 4, **KINDS, **TABLES},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.3, "logits_scaling": 2.0},
    "olmo2": {}, "olmo3": {**KINDS, **TABLES}, "stablelm": {"layer_norm_eps": 1e-6, "partial_rotary_factor": 0.5, "use_qkv_bias": True},
    "opt": {"ffn_dim": 12, "word_embed_proj_dim": 16, "dropout": 0.0},
    "cohere": {"layer_norm_eps": 1e-6}, "cohere2": {"layer_norm_eps": 1e-6, "head_dim": 4, **KINDS},
    "glm": {"head_dim": 4}, "glm4": {"head_dim": 4, "rms_norm_eps": 1e-3}, "ernie4_5": {"head_dim": 4}, "helium": {"head_dim": 4},
    "mixtral": {**MIXED, "num_local_experts": 4}, "qwen3_moe": {"head_dim": 4, **MIXED, "norm_topk_prob": True},
    "qwen2_moe": {**MIXED, "shared_expert_intermediate_size": 12}, "olmoe": MIXED,
    "granitemoe": {**MIXED, "num_local_experts": 4, "embedding_multiplier": 3.0, "attention_multiplier": 0.3},
    "granitemoeshared": {**MIXED, "num_local_experts": 4, "embedding_multiplier": 3.0, "attention_multiplier": 0.3,
                         "shared_intermediate_size": 20},
    "deepseek_v2": {**MIXED, **LATENT, "topk_method": "group_limited_greedy", "aux_loss_alpha": 0.0},
    "deepseek_v3": {**MIXED, **LATENT, "norm_topk_prob": True},
    "minicpm3": {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4,
                 "num_key_value_heads": 4},
    "dots1": {**MIXED, **CHOSEN}, "glm4_moe": {"head_dim": 4, **MIXED, **CHOSEN},
    "solar_open": {"head_dim": 4, **MIXED, **CHOSEN}, "hunyuan_v1_moe": {"head_dim": 4, **MIXED, "moe_topk": 2},
    "ernie4_5_moe": {"head_dim": 4, **MIXED, "moe_num_experts": 4, "moe_k": 2, "moe_layer_start_index": 0},
    "minimax_m2": {"head_dim": 4, **MIXED, "num_local_experts": 4},
    "gpt_oss": {"head_dim": 4, **MIXED, "num_local_experts": 4, **KINDS, **PLAIN},
    "gpt_neo": {"vocab_size": 23, "max_position_embeddings": 16, "hidden_size": 16, "num_layers": 2, "num_heads": 4,
                "intermediate_size": 12, "attention_types": [[["global", "local"], 1]], "window_size": 3,
                "bos_token_id": 0, "eos_token_id": 0},
    "nanochat": {"head_dim": 4},
    "gpt_bigcode": {**GPT2, "n_inner": 12, "n_embd": 16, "n_head": 4},
    "gpt_bigcode.apart": {**GPT2, "multi_query": False, "n_embd": 16, "n_head": 4, "activation_function": "gelu"},
    "bloom": {"n_head": 4, "n_layer": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    "falcon": {"num_attention_heads": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": False,
               "multi_query": True, "parallel_attn": True, "bias": False, "new_decoder_architecture": False},
    "falcon.groups": {"hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0,
                      "new_decoder_architecture": True},
    "falcon.alibi": {"num_attention_heads": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": True,
                     "multi_query": False, "parallel_attn": False, "bias": True},
    "bert": {**ENCODES, "architectures": ["BertForMaskedLM"]},
    "roberta": {**ENCODES, "architectures": ["RobertaForMaskedLM"], "pad_token_id": 1},
    "xlm-roberta": {**ENCODES, "architectures": ["XLMRobertaForMaskedLM"], "pad_token_id": 1},
    "camembert": {**ENCODES, "architectures": ["CamembertForMaskedLM"], "pad_token_id": 1},
    "distilbert": {"vocab_size": 19, "dim": 16, "hidden_dim": 12, "n_layers": 2, "n_heads": 4,
                   "max_position_embeddings": 16, "dropout": 0.0, "attention_dropout": 0.0,
                   "architectures": ["DistilBertForMaskedLM"]},
    "modernbert": {**ENCODES, "architectures": ["ModernBertForMaskedLM"], "layer_types": KINDS["layer_types"],
                   "local_attention": 16, "norm_eps": 1e-5, "attention_dropout": 0.0, "mlp_dropout": 0.0,
                   "embedding_dropout": 0.0, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
    "t5": {"vocab_size": 19, "d_model": 12, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 2,
           "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
           "dropout_rate": 0.0, "decoder_start_token_id": 0, "architectures": ["T5ForConditionalGeneration"]},
    "t5.gated": {"vocab_size": 19, "d_model": 12, "d_kv": 6, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 2,
                 "num_heads": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "dropout_rate": 0.0,
                 "pad_token_id": 3, "decoder_start_token_id": 2, "architectures": ["T5ForConditionalGeneration"]},
    "umt5": {"vocab_size": 19, "d_model": 12, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
             "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "dropout_rate": 0.0, "pad_token_id": 0,
             "decoder_start_token_id": 0, "architectures": ["UMT5ForConditionalGeneration"]},
    "electra": {**ENCODES, "embedding_size": 8, "architectures": ["ElectraForMaskedLM"], "pad_token_id": 0},
    "bart": {**TRANSLATES, "encoder_layers": 1, "architectures": ["BartForConditionalGeneration"]},
    "mbart": {**TRANSLATES, "scale_embedding": True, "architectures": ["MBartForConditionalGeneration"]},
    "marian": {**TRANSLATES, "scale_embedding": True, "activation_function": "silu", "architectures": ["MarianMTModel"]},
    "m2m_100": {**TRANSLATES, "scale_embedding": True, "activation_function": "relu",
                "architectures": ["M2M100ForConditionalGeneration"]},
    "pegasus": {**TRANSLATES, "activation_function": "relu", "architectures": ["PegasusForConditionalGeneration"]},
    "vit": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 12,
            "image_size": 8, "patch_size": 4, "num_channels": 3, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0, "num_labels": 5, "architectures": ["ViTForImageClassification"]},
}


def wave(count, which):
    """Number `which` of the sequences: element i is sin(1.3 i + 0.7 which + 0.1)."""
    return torch.tensor([math.sin(1.3 * i + 0.7 * which + 0.1) for i in range(count)], dtype=torch.float64)


def line(name, tensor):
    return name + " " + " ".join(f"{x:.9g}" for x in tensor.detach().double().flatten().tolist())


def model(config):
    """Loss, gradients of all parameters, and of what the token embedding gives."""
    config._experts_implementation = "eager"  # The grouped product takes no float64.
    attention = "eager" if config.model_type in ("t5", "umt5", "gpt_oss", "bloom", "gpt_neo") else "sdpa"
    named = getattr(transformers, config.architectures[0])._from_config if config.architectures else \
        transformers.AutoModelForCausalLM.from_config
    made = named(config, attn_implementation=attention).double().train()
    for at, (name, parameter) in enumerate(made.named_parameters()):
        values = wave(parameter.numel(), at).reshape(parameter.shape)
        norm = "norm" in name.lower() or "ln_" in name
        values = values * 0.1 + 1 if norm and name.endswith("weight") else values * 0.3
        parameter.data = values.float().double()
    if config.model_type == "vit":
        side, channels = config.image_size, config.num_channels
        return answers(made, {}, pixel_values=wave(ROWS * channels * side * side, 0).reshape(ROWS, channels, side, side),
                       labels=torch.tensor([3, 1]))
    vocabulary = config.vocab_size
    ids = torch.tensor([(7 * i + 3) % vocabulary for i in range(ROWS * TOKENS)]).reshape(ROWS, TOKENS)
    labels = ids.clone()
    labels[0, 3] = -100
    held = {}

    def keep(_module, _inputs, output):
        if "embedded" not in held:
            output.retain_grad()
            held["embedded"] = output

    made.get_input_embeddings().register_forward_hook(keep)
    if config.is_encoder_decoder:
        made.get_encoder().embed_tokens.register_forward_hook(keep)
    decodes = {} if hasattr(config, "type_vocab_size") or config.model_type in ENCODERS else {"use_cache": False}
    return answers(made, held, input_ids=ids, labels=labels, **decodes)


def answers(made, held, **inputs):
    loss = made(**inputs).loss
    loss.backward()
    lines = [line("loss", loss), *(line(name, output.grad) for name, output in held.items())]
    lines += [line(name, parameter.grad if parameter.grad is not None else torch.zeros(0))
              for name, parameter in made.named_parameters() if parameter.requires_grad]
    return [text for text in lines if " " in text.strip()]


def reads(config_class, key):
    """Whether a configuration class reads a key of the dictionaries that families share."""
    shared = key in {**SMALL, **MIXED, **CHOSEN, **ENCODES} and key not in ("rope_theta", "tie_word_embeddings")
    return not shared or key in config_class.attribute_map or key in {field.name for field in dataclasses.fields(config_class)}


def family(kind, more):
    """A family's small model, whose config stands in the file."""
    kind = kind.split(".")[0]
    wanted = {**({} if kind in OWN else SMALL), **more}
    config_class = transformers.CONFIG_MAPPING[kind]
    config = {"model_type": kind, **{key: value for key, value in wanted.items() if reads(config_class, key)}}
    return ["# config " + json.dumps(config), *model(transformers.AutoConfig.for_model(**config))]


def operators():
    """Forward, and the gradient of the first input, of operators whose formula could be misread."""
    functional = torch.nn.functional
    x = (wave(24, 1) * 2).reshape(4, 6)
    weight, bias = wave(6, 2) + 1, wave(6, 3)
    seed = wave(24, 4).reshape(4, 6)
    cases = {
        "gelu": lambda a: functional.gelu(a),
        "gelu_tanh": lambda a: functional.gelu(a, approximate="tanh"),
        "silu": functional.silu,
        "tanh": torch.tanh,
        "rsqrt": lambda a: torch.rsqrt(a * a + 0.5),
        "softmax": lambda a: torch.softmax(a, -1),
        "log_softmax": lambda a: torch.log_softmax(a, -1),
        "layer_norm": lambda a: functional.layer_norm(a, (6,), weight, bias, 1e-5),
        "pow": lambda a: a ** 3,
    }
    lines = []
    for name, function in cases.items():
        start = x.clone().requires_grad_(True)
        result = function(start)
        result.backward(seed)
        lines += [line(name, result), line(name + ".gradient", start.grad)]
    return lines


def main(folder, *names):
    head = f"# torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}; " \
           "tools/oracles/exec_operators.py"
    texts = {"gpt2": lambda: model(transformers.GPT2Config(**GPT2)),
             "llama": lambda: model(transformers.LlamaConfig(**LLAMA)),
             "operators": operators,
             **{kind: (lambda kind=kind, more=more: family(kind, more)) for kind, more in FAMILIES.items()}}
    for name in names or texts:
        lines = texts[name]()
        (pathlib.Path(folder) / f"{name}.txt").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
