"""How a row of published-memory.csv is said in dsplan's words, or why it cannot be.

A figure is compared as it is. A `max_batch` row says only that a batch ran, or that it ran out of memory: that is
compared with the verdict.
"""

import json
import pathlib
import re

from . import published_ops

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Which figure of a prediction answers to which quantity.
PEAKS = {"peak_allocated": "allocated", "peak_reserved": "reserved", "nvidia_smi": "process"}
# Words of "model" with the bundled model of the same dimensions.
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Llama-2-13b-hf": "llama-2-13b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b", "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.2-1B": "llama-3.2-1b", "meta-llama/Llama-3.2-3B": "llama-3.2-3b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b", "unsloth/mistral-7b-v0.2 (7.24B, vocab 32000)": "mistral-7b",
    "TinyLlama/TinyLlama-1.1B": "tinyllama-1.1b", "google/gemma-2-2b": "gemma-2-2b",
    "google/gemma-2-9b": "gemma-2-9b", "gpt2-xl": "gpt2-xl", "huggyllama/llama-7b": "llama-7b",
    "Qwen/Qwen2.5-0.5B": "qwen2.5-0.5b", "meta-llama/Meta-Llama-3-70B": "llama-3-70b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b", "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "Llama-7B (32L h4096 32 heads ffn 11008 vocab 32000)": "llama-2-7b",
}
# GPT-2's shape with other dimensions; its vocabulary is padded to a multiple of 128 as Megatron pads it.
GPT2 = re.compile(r"GPT-2 \S+ \((\d+)L h(\d+)(?: (\d+) heads)?|HF GPT2LMHeadModel \S+ \((\d+)L h(\d+)\) (\d+) heads")
# Families that have parameters here but no operators.
STATES_ONLY = re.compile(r"bert|phi|gemma-2b|gemma-7b|falcon|stablelm|ViT|timm", re.IGNORECASE)
TARGETS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "projection": "o_proj",
           "mlp": "gate_proj up_proj down_proj", "head": "lm_head", "q": "q_proj", "v": "v_proj"}
GPUS = {"V100-32GB": "v100-sxm2-32", "A100-40GB": "a100-sxm-40", "A10G-24GB": "a10g", "Titan RTX 24GB": "titanrtx",
        "A100-SXM4-80GB": "a100-sxm-80"}
REMARKS = ("compile", "inference", "offloading", "chunked", "packed +", "+ activation", "+ optimizer")


class No(Exception):
    """The row cannot be expressed; the text says why."""


class Case:
    """What dsplan is asked: `model` (a name, or the text of a file), a training file, a DeepSpeed JSON, options; and
    `figure`, which takes the wanted bytes out of a prediction (None: the verdict is wanted)."""

    def __init__(self, model, label, figure, training=None, deepspeed=None, options=()):
        self.model, self.label, self.figure = model, label, figure
        self.training, self.deepspeed, self.options = training, deepspeed, list(options)


def whole(row, key):
    if not re.fullmatch(r"\d+", row[key]):
        raise No(f"no number of {'rows' if key == 'batch_per_gpu' else 'tokens'} is stated")
    return int(row[key])


def model_of(row):
    """(what `dsplan simulate` takes, its name in the table)."""
    text = row["model"]
    if text in MODELS:
        return MODELS[text], MODELS[text]
    found = GPT2.match(text)
    if found:
        layers, hidden, heads = [int(part) for part in found.groups() if part]
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": hidden,
                "n_head": heads, "n_positions": 1024, "vocab_size": 50304}, text.split(" (")[0]
    if STATES_ONLY.search(text):
        raise No("a family without an operator graph")
    raise No("a model whose dimensions are not all stated, or that is not bundled")


def lora_of(text):
    if text == "none":
        return None
    if "bnb" in text or "nf4" in text:
        raise No("quantized weights")
    found = re.fullmatch(r"LoRA r(\d+) (\S+)", text)
    words = re.split(r"[+,]", found.group(2)) if found else []
    if not words or any(word not in TARGETS for word in words):
        raise No(f'adapters "{text}"')
    return {"r": int(found.group(1)), "targets": [name for word in words for name in TARGETS[word].split()],
            "dtype": "model"}


def training_of(row, tokens=True):
    """The training file of a row without DeepSpeed, without its head."""
    precision = row["precision"]
    known = {"bf16-true": ("bf16", "none"), "bf16": ("bf16", "none"), "fp32": ("fp32", "none"),
             "bf16 params, e4m3 matmul": ("bf16", "none"), "fp16 autocast (fp32 weights)": ("fp32", "fp16"),
             "bf16 AMP (fp32 weights)": ("fp32", "bf16")}
    if precision not in known:
        raise No(f'precision "{precision}"')
    optimizers = {"AdamW": "adamw", "AdamW fused": "adamw", "Adam": "adam", "Adafactor": "adafactor",
                  "AdamW bf16 states": "adamw"}
    if row["optimizer"] not in optimizers:
        raise No("inference" if not row["optimizer"] else f'optimizer "{row["optimizer"]}"')
    dtype, autocast = known[precision]
    training = {"dtype": dtype, "autocast": autocast, "optimizer": {"name": optimizers[row["optimizer"]]},
                "micro_batch": whole(row, "batch_per_gpu"), "seq": whole(row, "seq_len") if tokens else 512,
                "checkpoint": checkpoint_of(row), "lora": lora_of(row["lora/quant"])}
    return {key: value for key, value in training.items() if value is not None}


def checkpoint_of(row):
    if row["act_ckpt"] in ("no", "n/a", "block"):
        return "none"
    if row["act_ckpt"] in ("yes", "full"):
        return "full"
    raise No(f'checkpointing "{row["act_ckpt"]}"')


def deepspeed_of(row):
    """The DeepSpeed JSON of a row under ZeRO, or under Adam in fp16 without it."""
    stage = re.match(r"zero(\d)", row["parallelism"])
    zero = {"stage": int(stage.group(1)) if stage else 0}
    for key, word in (("offload_optimizer", "optimizer"), ("offload_param", "param")):
        if word in row["offload"]:
            zero[key] = {"device": "cpu"}
    if "SGD" in row["optimizer"]:
        optimizer = {"type": "SGD", "params": {"lr": 1e-4}}
    elif "Adam" in row["optimizer"]:
        optimizer = {"type": "Adam", "params": {"lr": 1e-4}}
    else:
        raise No(f'optimizer "{row["optimizer"]}"')
    return {"train_micro_batch_size_per_gpu": whole(row, "batch_per_gpu"), "fp16": {"enabled": True},
            "zero_allow_untested_optimizer": True, "optimizer": optimizer, "zero_optimization": zero}


def bound_case(row):
    """A row that says that a batch ran, or did not."""
    if "max_model" in row["other"]:
        raise No("a largest model instead of a largest batch")
    if "fsdp" in row["parallelism"]:
        return sharded_case(row, None)
    if re.search(r"tp\d|pp\d", row["parallelism"]):
        raise No("pipeline stages")
    if not row["optimizer"]:
        raise No("inference")
    gpu = next((name for words, name in GPUS.items() if words in row["other"]), None)
    model, label = model_of(row)
    if gpu is None:
        raise No("a device without a file of its own")
    options = ["--hardware", gpu, "--gpus", row["n_gpus"]]
    if row["precision"] == "fp16":
        training = {"seq": whole(row, "seq_len"), "attention": "eager", "checkpoint": checkpoint_of(row)}
        return Case(model, label, None, training, deepspeed_of(row), options)
    return Case(model, label, None, training_of(row), None, options)


def states_case(row):
    """Rows of states that somebody read off; what is arithmetic alone is no measurement."""
    at_init = {"allocated at init": lambda p: phase(p, "init")["marks"][-1]["allocated"]}
    for words, figure in at_init.items():
        if words in row["other"]:
            model, label = model_of(row)
            return Case(model, label, figure, training_of({**row, "act_ckpt": "no"}, tokens=False))
    if row["source"].startswith("LOMO") and row["optimizer"] in ("AdamW", "SGD"):
        model, label = model_of(row)
        return Case(model, label, states("total"), {"seq": whole(row, "seq_len")}, deepspeed_of(row))
    if row["id"].startswith("LLMQ"):
        model, label = model_of(row)
        one = states("gradients") if "gradients" in row["other"] else states("optimizer", share=2)
        return Case(model, label, one, training_of(row))
    if row["parallelism"].startswith("fsdp") and "printed after init" in row["other"]:
        return sharded_case({**row, "act_ckpt": "no"}, at_init["allocated at init"])
    if re.search(r"tp\d|pp\d|fsdp", row["parallelism"]):
        raise No("states of pipeline or tensor parallel stages, or of FSDP")
    model_of(row)
    raise No("states by arithmetic, or of an optimizer that is not modelled")


# What the configurations that torchtitan's figures were made with say: selective_ac_option = "op".
BY_OPERATOR = "keep:linear/2+scaled_dot_product_attention"
SELECTIVE = ("selective", "selective op", "selective (op)")


def resharding_of(row):
    """fsdp_reshard_after_forward, where the remarks say it. Its default also kept the last layer, which no setting says."""
    return {"reshard_after_forward": "false"} if "reshard_after_forward never" in row["other"] else {}


def sharded_case(row, figure):
    """torchtitan's calls of fully_shard before July 2025: layers and the model; bf16 over fp32 shards, fp32 sums, each
    micro-batch reduced, clipped, AdamW. Its own model code is not transformers'."""
    if re.search(r"[ctp]p\d", row["parallelism"]):
        raise No("FSDP with tensor, context or pipeline parallelism")
    for word in ("compile", "float8", "chunked cross-entropy loss"):
        if word in row["other"]:
            raise No(f'"{word}" in the remarks')
    if "fp32 sharded" not in row["precision"]:
        raise No(f'precision "{row["precision"]}" under FSDP')
    model, label = model_of(row)
    first = row["parallelism"].startswith("fsdp1 ")  # Whose clipping, which takes little, is not followed.
    training = {"runtime": "fsdp1" if first else "fsdp2", "dtype": "fp32", "optimizer": {"name": "adamw"},
                **({} if first else {"max_grad_norm": 1.0}),
                "micro_batch": whole(row, "batch_per_gpu"), "seq": whole(row, "seq_len"),
                "checkpoint": BY_OPERATOR if row["act_ckpt"] in SELECTIVE else checkpoint_of(row),
                "fsdp": {"wrap": "layers", "param_dtype": "bf16", "reduce_dtype": "fp32", "gradient_sync": "every",
                         **resharding_of(row)}}
    if "first step only" in row["other"]:
        figure = lambda prediction: phase(prediction, "first_step")["peak_reserved"]  # noqa: E731
    elif "peak ACTIVE" in row["other"]:
        figure = lambda prediction: prediction["memory"]["peak"]["active"]  # noqa: E731
    gpu = "a100-sxm-80" if "A100-80GB" in row["other"] else "h100-sxm"
    options = ["--gpus", row["n_gpus"], "--hardware", gpu, "--gpus-per-node", "8"]
    return Case(model, label, figure, training, options=options)


def states(name, share=1):
    return lambda prediction: prediction["memory"]["states"][name] // share


def phase(prediction, name):
    return next(one for one in prediction["memory"]["phases"] if one["name"] == name)


def operator_case(row):
    graph = published_ops.graph_of(row)
    if graph is None:
        raise No("an operator of Liger's that is not modelled")
    gpu = next((name for words, name in GPUS.items() if words in row["other"]), None)
    return Case(graph, row["model"].removeprefix("op ").split(" B=")[0].split(" H=")[0], peak_figure(row),
                options=["--hardware", gpu] if gpu else [])


def peak_figure(row):
    return lambda prediction: prediction["memory"]["peak"][PEAKS[row["quantity"]]]


def case_of(row):
    """The Case of a row; raises No."""
    if row["model"].startswith("op "):
        return operator_case(row)
    if row["quantity"] == "max_batch":
        return bound_case(row)
    if row["quantity"] == "model_states":
        return states_case(row)
    if row["quantity"] not in PEAKS:
        raise No(f'quantity "{row["quantity"]}"')
    if row["parallelism"].startswith("fsdp") and row["optimizer"]:
        return sharded_case(row, peak_figure(row))
    if row["parallelism"].startswith("cp"):
        raise No("context parallelism")
    if re.search(r"tp\d|pp\d|tensor parallel|sequential", row["parallelism"]):
        raise No("pipeline or tensor parallel stages")
    if row["parallelism"] != "none" or row["n_gpus"] != "1":
        model_of(row)
        raise No("parallelism: " + re.sub(r"\d+", "N", row["parallelism"]))
    if row["offload"] != "none":
        raise No("offload beside DeepSpeed")
    if row["model"].startswith("none"):
        raise No("a CUDA context alone")
    for word in REMARKS:
        if word in row["other"]:
            raise No(f'"{word.strip("+ ")}" in the remarks')
    model, label = model_of(row)
    if row["id"].startswith("LITGPT"):
        return litgpt_case(row, model, label)
    if row["quantity"] == "peak_reserved" and "at init" in row["other"]:
        return Case(model, label, lambda p: phase(p, "init")["peak_reserved"],
                    training_of({**row, "act_ckpt": "no"}, tokens=False))
    return Case(model, label, peak_figure(row), training_of(row))


def litgpt_case(row, model, label):
    """litgpt ties no weights, drops out in its adapters, steps with torch's AdamW as it is by default, and sums the
    gradients of several micro-batches (litgpt: finetune/lora.py, finetune/full.py, config_hub/finetune)."""
    training = training_of(row)
    training["optimizer"] = {**training["optimizer"], "implementation": "foreach"}
    training["grad_accum"] = 8
    if "lora" in training:
        training["lora"] = {**training["lora"], "dropout": 0.05}
    config = {**json.loads((ROOT / "models" / f"{model}.json").read_text()), "tie_word_embeddings": False}
    gpu = next((name for words, name in GPUS.items() if words in row["other"]), None)
    return Case(config, label, peak_figure(row), training, options=["--hardware", gpu] if gpu else [])


def ran(row):
    """Of a max_batch row: True where the batch ran, False where it ran out of memory."""
    return "bound=upper" not in row["other"] and row["value"] != "0"


def stratum_of(row):
    if row["model"].startswith("op "):
        return "single operators"
    if row["parallelism"].startswith("fsdp"):
        return "FSDP, as torchtitan calls it"
    if row["quantity"] == "model_states":
        return "states"
    parts = ["LoRA" if row["lora/quant"] != "none" else "all weights"]
    if row["act_ckpt"] != "no":
        parts.append("checkpointing")
    return ", ".join(parts)
