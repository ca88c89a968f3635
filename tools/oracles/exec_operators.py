#!/usr/bin/env python3
"""What PyTorch computes, for the executor's kernels: whole tiny models, and single operators. Needs torch and
transformers.

  tools/oracles/exec_operators.py tests/witnesses/exec

Everything is computed in float64 and written with nine digits, so that it is exact for what runs in fp32. Weights and
inputs are sines of their place, so that the tests make the same ones without reading them. A model's weights are those
sines in fp32: else what runs in fp32 would be that of other weights, by 1e-6 in single gradients.
"""
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
# What each family has beside SMALL.
FAMILIES = {
    "mistral": {}, "qwen2": {"tie_word_embeddings": True}, "qwen3": {"head_dim": 4},
    "gemma": {"head_dim": 4, "tie_word_embeddings": True}, "phi": {"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-6},
    "phi3": {}, "gpt_neox": {"rotary_pct": 0.5, "layer_norm_eps": 1e-6}, "smollm3": {"no_rope_layer_interval": 2},
    "starcoder2": {"norm_epsilon": 1e-6},
    "olmo": {}, "exaone4": KINDS, "nemotron": {"norm_eps": 1e-6}, "hunyuan_v1_dense": {"head_dim": 4},
    "arcee": {}, "seed_oss": {"head_dim": 4, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "cwm": {"head_dim": 4, **KINDS, **PLAIN}, "ministral": {"head_dim": 4, **KINDS},
}


def wave(count, which):
    """Number `which` of the sequences: element i is sin(1.3 i + 0.7 which + 0.1)."""
    return torch.tensor([math.sin(1.3 * i + 0.7 * which + 0.1) for i in range(count)], dtype=torch.float64)


def line(name, tensor):
    return name + " " + " ".join(f"{x:.9g}" for x in tensor.detach().double().flatten().tolist())


def model(config):
    """Loss, gradients of all parameters, and of what the token embedding gives."""
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double().train()
    for at, (name, parameter) in enumerate(made.named_parameters()):
        values = wave(parameter.numel(), at).reshape(parameter.shape)
        norm = "norm" in name or "ln_" in name
        values = values * 0.1 + 1 if norm and name.endswith("weight") else values * 0.3
        parameter.data = values.float().double()
    vocabulary = config.vocab_size
    ids = torch.tensor([(7 * i + 3) % vocabulary for i in range(ROWS * TOKENS)]).reshape(ROWS, TOKENS)
    labels = ids.clone()
    labels[0, 3] = -100
    held = {}

    def keep(_module, _inputs, output):
        output.retain_grad()
        held["embedded"] = output

    made.get_input_embeddings().register_forward_hook(keep)
    loss = made(input_ids=ids, labels=labels, use_cache=False).loss
    loss.backward()
    lines = [line("loss", loss), line("embedded", held["embedded"].grad)]
    lines += [line(name, parameter.grad) for name, parameter in made.named_parameters() if parameter.requires_grad]
    return lines


def family(kind, more):
    """A family's small model, whose config stands in the file."""
    config = {"model_type": kind, **SMALL, **more}
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


def main(folder):
    head = f"# torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}; " \
           "tools/oracles/exec_operators.py"
    texts = {"gpt2": model(transformers.GPT2Config(**GPT2)),
             "llama": model(transformers.LlamaConfig(**LLAMA)),
             "operators": operators(),
             **{kind: family(kind, more) for kind, more in FAMILIES.items()}}
    for name, lines in texts.items():
        (pathlib.Path(folder) / f"{name}.txt").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
