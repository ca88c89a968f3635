"""The words of published-memory.csv in dsplan's: models, adapters, precisions, optimizers."""

import re

from . import published_sharded
from .published_case import No, bundled, checkpoint_of, whole

# Words of "model" with the bundled model of the same dimensions.
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Llama-2-13b-hf": "llama-2-13b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b", "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.2-1B": "llama-3.2-1b", "meta-llama/Llama-3.2-3B": "llama-3.2-3b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b", "unsloth/mistral-7b-v0.2 (7.24B, vocab 32000)": "mistral-7b",
    "mistralai/Mistral-7B-v0.2": "mistral-7b-v0.2",
    "TinyLlama/TinyLlama-1.1B": "tinyllama-1.1b", "google/gemma-2-2b": "gemma-2-2b",
    "google/gemma-2-9b": "gemma-2-9b", "gpt2-xl": "gpt2-xl", "huggyllama/llama-7b": "llama-7b",
    "huggyllama/llama-13b": "llama-13b", "gpt2": "gpt2", "gpt2-medium": "gpt2-medium", "gpt2-large": "gpt2-large",
    "Qwen/Qwen2.5-0.5B": "qwen2.5-0.5b", "Qwen/Qwen2.5-3B": "qwen2.5-3b", "Qwen/Qwen3-8B": "qwen3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama-3-70b", "bigscience/bloomz-7b1": "bloom-7b1",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b", "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-405B": "llama-3.1-405b", "01-ai/Yi-34B": "yi-34b",
    "Llama-7B (32L h4096 32 heads ffn 11008 vocab 32000)": "llama-2-7b",
    "microsoft/phi-1_5": "phi-1.5", "microsoft/phi-2": "phi-2", "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "google/gemma-2b": "gemma-2b", "google/gemma-7b": "gemma-7b", "tiiuae/falcon-7b": "falcon-7b",
    "tiiuae/falcon-40b": "falcon-40b",
}
# GPT-2's shape with other dimensions; its vocabulary is padded to a multiple of 128 as Megatron pads it.
GPT2 = re.compile(r"GPT-2 \S+ \((\d+)L h(\d+)(?: (\d+) heads)?|HF GPT2LMHeadModel \S+ \((\d+)L h(\d+)\) (\d+) heads")
# BERT with another head than its file names, and what only other code builds.
BERT = {"google-bert/bert-large-uncased (sequence classification)": "BertForSequenceClassification",
        "bert-large-uncased SQuAD": "BertForQuestionAnswering"}
OTHERS = {"timm": "timm's code", "dinov2": "timm's code", "deberta-v2-xlarge": "a model whose dimensions are not all "
          "stated, or that is not bundled"}
TARGETS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "projection": "o_proj",
           "mlp": "gate_proj up_proj down_proj", "head": "lm_head", "q": "q_proj", "v": "v_proj", "MLP":
           "gate_proj up_proj down_proj"}
PHIS = {"projection": "dense", "mlp": "fc1 fc2"}
PARTS = "adapters of litgpt's on parts of a product that transformers' model has as one"


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
    if text in BERT:
        return {**bundled("bert-large"), "architectures": [BERT[text]]}, "bert-large"
    found = re.match(r"MPT (\S+) \((\d+)L h(\d+) (\d+) heads vocab (\d+);", text)
    if found:
        layers, hidden, heads, vocabulary = [int(part) for part in found.groups()[1:]]
        return published_sharded.mpt(layers, hidden, heads, vocabulary, whole(row, "seq_len")), "MPT " + found.group(1)
    if "stablelm-base-alpha" in text:
        raise No("inference" if not row["optimizer"] else PARTS)
    for words, why in OTHERS.items():
        if words in text:
            raise No(why)
    raise No("a model whose dimensions are not all stated, or that is not bundled")


def lora_of(row):
    text = row["lora/quant"]
    if text.startswith("none"):
        return None
    if row["id"].startswith("LITGPT") and "bnb" in text:
        raise No("litgpt packs the head in 4 bits as well, which no setting of ours says")
    if re.fullmatch(r"Q?LoRA(?: nf4| fp4|\S*bit)?|.*\+ LoRA|QLoRA nf4 double-quant", text):
        raise No("adapters whose rank is not stated")
    found = re.fullmatch(r"(LoRA|DoRA) r(\d+)(?: (\S+))?", text)
    if not found and not text.startswith("LoRA r"):
        raise No("adapters that are not LoRA, or are a variant of it")
    words = re.split(r"[+,]", found.group(3) or "q,v") if found else []
    names = {**TARGETS, **PHIS} if "microsoft/phi-" in row["model"] else TARGETS
    if not words or any(word not in names for word in words):
        raise No(f'adapters "{text}"')
    adapters = {"r": int(found.group(2)), "targets": [name for word in words for name in names[word].split()],
                "dtype": "model"}
    return {**adapters, "dora": True} if found.group(1) == "DoRA" else adapters


def training_of(row, tokens=True):
    """The training file of a row without DeepSpeed, without its head."""
    precision = row["precision"]
    known = {"bf16-true": ("bf16", "none"), "bf16": ("bf16", "none"), "fp32": ("fp32", "none"),
             "bf16 params, e4m3 matmul": ("bf16", "none"), "fp16 autocast (fp32 weights)": ("fp32", "fp16"),
             "bf16 AMP (fp32 weights)": ("fp32", "bf16"), "bf16 weights": ("bf16", "none"),
             "bf16 weights, fp32 adapter": ("bf16", "none"), "bf16 pure": ("bf16", "none"),
             "bf16 (pure)": ("bf16", "none")}
    if precision not in known:
        raise No(f'precision "{precision}"')
    optimizers = {"AdamW": "adamw", "AdamW fused": "adamw", "Adam": "adam", "Adafactor": "adafactor",
                  "AdamW bf16 states": "adamw", "bnb Adam8bit": "adamw_8bit"}
    if row["optimizer"] not in optimizers:
        raise No("inference" if not row["optimizer"] else f'optimizer "{row["optimizer"]}"')
    dtype, autocast = known[precision]
    training = {"dtype": dtype, "autocast": autocast, "optimizer": {"name": optimizers[row["optimizer"]]},
                "micro_batch": whole(row, "batch_per_gpu"), "seq": whole(row, "seq_len") if tokens else 512,
                "checkpoint": checkpoint_of(row), "lora": lora_of(row)}
    return {key: value for key, value in training.items() if value is not None}


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
    kind = "bf16" if row["precision"].startswith("bf16") else "fp16"
    return {"train_micro_batch_size_per_gpu": whole(row, "batch_per_gpu"), kind: {"enabled": True},
            "zero_allow_untested_optimizer": True, "optimizer": optimizer, "zero_optimization": zero}
