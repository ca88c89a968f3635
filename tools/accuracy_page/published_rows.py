"""How a row of published-memory.csv is said in dsplan's words, or why it cannot be.

A figure is compared as it is. A `max_batch` row says only that a batch ran, or that it ran out of memory: that is
compared with the verdict. A mapping says what the published run did; what nobody states is a reason, not a guess.
"""

import re

from . import published_ops, published_sharded
from .published_case import Case, No, checkpoint_of, gpu_of, peak_figure, phase, PEAKS, states, whole
from .published_words import PARTS, deepspeed_of, lora_of, model_of, training_of

REMARKS = {"inference": "inference", "generation script": "inference", "compile": "torch.compile",
           "extra savings": "offload of activations"}
LADDER = re.compile(r"cumulative techniques; (?!packed to)")
# Products that litgpt adapts in part, and transformers' model has as one.
AS_ONE = ("falcon-7b", "falcon-40b", "phi-3-mini")


def bound_case(row):
    """A row that says that a batch ran, or did not."""
    if "max_model" in row["other"]:
        raise No("a largest model instead of a largest batch")
    if row["unit"].startswith("tokens"):
        raise No("a longest sequence, of positions that the model has not")
    if "TensorFlow" in row["other"]:
        raise No("TensorFlow")
    if row["id"].startswith("MPT"):
        return published_sharded.mpt_case(row, *model_of(row))
    if row["id"].startswith("LITGPT") and "fsdp" in row["parallelism"]:
        return litgpt_sharded(row, None)
    if "fsdp" in row["parallelism"]:
        return sharded_case(row, None)
    if re.search(r"[tp]p[2-9]|naive pp", row["parallelism"]):
        raise No(stages_of(row))
    if not row["optimizer"] or "inference" in row["parallelism"]:
        raise No("inference")
    if "transformer kernel" in row["other"]:
        raise No("DeepSpeed's fused transformer kernel")
    gpu = gpu_of(row)
    if row["lora/quant"] != "none" and not row["id"].startswith("LITGPT"):
        lora_of(row)
    model, label = model_of(row)
    if gpu is None:
        raise No("a device without a file of its own")
    options = ["--hardware", gpu, "--gpus", row["n_gpus"]]
    if row["precision"] == "fp16":
        training = {"seq": whole(row, "seq_len"), "attention": "eager", "checkpoint": checkpoint_of(row)}
        return Case(model, label, None, training, deepspeed_of(row), options)
    if row["id"].startswith("LITGPT"):
        return litgpt_case(row, model, label, None)
    return Case(model, label, None, training_of(row), None, options)


def states_case(row):
    """Rows of states that somebody read off; what is arithmetic alone is no measurement."""
    at_init = {"allocated at init": lambda p: phase(p, "init")["marks"][-1]["allocated"]}
    if row["id"].startswith("FQLORA"):
        return published_sharded.fsdp_qlora_case(row, *model_of(row),
                                                 lambda p: phase(p, "init")["peak_reserved"])
    for words, figure in at_init.items():
        if words in row["other"]:
            model, label = model_of(row)
            return Case(model, label, figure, training_of({**row, "act_ckpt": "no"}, tokens=False))
    if row["source"].startswith("LOMO") and row["optimizer"] in ("AdamW", "SGD"):
        model, label = model_of(row)
        return Case(model, label, states("total"), {"seq": whole(row, "seq_len")}, deepspeed_of(row))
    if row["id"].startswith("LLMQ"):
        if "weights" in row["other"]:
            raise No("weights in 8 bits, or masters beside them")
        model, label = model_of(row)
        one = states("gradients") if "gradients" in row["other"] else states("optimizer", share=2)
        return Case(model, label, one, training_of(row))
    if row["parallelism"].startswith("fsdp") and "printed after init" in row["other"]:
        return sharded_case({**row, "act_ckpt": "no"}, at_init["allocated at init"])
    if "see_memory_usage" in row["other"]:
        raise No("DeepSpeed's memory before training, in 2021's form of ZeRO-3")
    if re.search(r"[tp]p[1-9]|fsdp", row["parallelism"]):
        raise No(stages_of(row))
    model_of(row)
    raise No("states by arithmetic, or of an optimizer that is not modelled")


def stages_of(row):
    """Why a row of Megatron's, or with stages, is not predicted."""
    if re.search(r"[tp]p[2-9]|[tp]p\d\d|ep\d|tensor parallel|sequential|naive pp|fsdp", row["parallelism"]):
        return "pipeline, tensor or expert parallel stages"
    return "Megatron-Core's own model and optimizer"


# What the configurations that torchtitan's figures were made with say: selective_ac_option = "op".
BY_OPERATOR = "keep:linear/2+scaled_dot_product_attention"
SELECTIVE = ("selective", "selective op", "selective (op)")
# Not torchtitan's eager path with its own operators.
TITANS_OTHERS = {"compile": "torch.compile", "graph_trainer": "graph_trainer, a compiler", "SimpleFSDP": "SimpleFSDP",
                 "float8": "float8", "chunked cross-entropy loss": "torchtitan's loss in chunks",
                 "SAC policy variant": "another policy of recomputation"}


def resharding_of(row):
    """fsdp_reshard_after_forward, where the remarks say it. Its default kept the last layer, which no setting says."""
    return {"reshard_after_forward": "false"} if "reshard_after_forward never" in row["other"] else {}


def sharded_case(row, figure):
    """torchtitan's calls of fully_shard before July 2025: layers and the model; bf16 over fp32 shards, fp32 sums, each
    micro-batch reduced, clipped, AdamW. Of Llama 3.1 its own model too; of Llama 2, which its version of today has no
    more, transformers'."""
    if re.search(r"[ctpe]p\d", row["parallelism"]):
        raise No("FSDP with tensor, context, expert or pipeline parallelism")
    for word, why in TITANS_OTHERS.items():
        if word in row["other"]:
            raise No(why)
    if row["other"] == "H100":
        raise No("which of two programs ran is not stated")
    if "2024-03 policy" in row["act_ckpt"]:
        raise No("another policy of recomputation")
    if not row["id"].startswith("TITAN"):
        raise No("FSDP of a program whose settings are not stated")
    if "fp32 sharded" not in row["precision"]:
        checkpoint_of(row)
        raise No(f'precision "{row["precision"]}" under FSDP')
    model, label = model_of(row)
    first = row["parallelism"].startswith("fsdp1 ")  # Whose clipping, which takes little, is not followed.
    own = {"model_code": "torchtitan", "torchtitan_version": "0.1.0", "loop": "torchtitan"}
    training = {"runtime": "fsdp1" if first else "fsdp2", "dtype": "fp32", "optimizer": {"name": "adamw"},
                **({} if first else {"max_grad_norm": 1.0}), **(own if label.startswith("llama-3.1") else {}),
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


def operator_case(row):
    graph = published_ops.graph_of(row)
    if isinstance(graph, str):
        raise No(graph)
    gpu = gpu_of(row)
    label = re.split(" [A-Za-z_]+=", row["model"].removeprefix("op "))[0]
    return Case(graph, label, peak_figure(row), options=["--hardware", gpu] if gpu else [])


def elsewhere(row):
    """Raises No for what no mapping below is made for."""
    if row["quantity"] not in PEAKS:
        raise No(f'quantity "{row["quantity"]}"')
    if row["model"].startswith("none"):
        raise No("a CUDA context alone")
    if row["id"].startswith("COLOSS"):
        raise No("ColossalAI's own ZeRO and Gemini, and trainers with a second model")
    if re.match(r"MLM|MBRIDGE|MEGA|BLOOMP|BIGSCI", row["id"]) and "HF GPT2" not in row["model"]:
        raise No(stages_of(row))
    if "before optimizer init" in row["other"] or "after optimizer init" in row["other"]:
        raise No("DeepSpeed's memory before training, in 2021's form of ZeRO-3")
    if row["id"].startswith("LOMO"):
        raise No("a sum of parts over several devices, some of them added by the authors")
    if "percentile" in row["other"]:
        raise No("a percentile over steps instead of the peak")
    if "value at OOM" in row["other"]:
        raise No("what was allocated when memory ran out")
    if "upper bound" in row["other"]:
        raise No("a device that the allocator's cache fills: an upper bound")
    if row["parallelism"].startswith("cp"):
        raise No("context parallelism")


def case_of(row):
    """The Case of a row; raises No."""
    if row["model"].startswith("op "):
        return operator_case(row)
    if row["quantity"] == "max_batch":
        return bound_case(row)
    if row["quantity"] == "model_states":
        return states_case(row)
    elsewhere(row)
    figure = peak_figure(row)
    if row["id"].startswith("FQLORA"):
        return published_sharded.fsdp_qlora_case(row, *model_of(row), figure)
    if row["id"].startswith("LITGPT") and row["parallelism"] == "fsdp":
        return litgpt_sharded(row, figure)
    if row["id"].startswith("PEFT"):
        return peft_case(row, figure)
    if row["parallelism"].startswith("fsdp") and row["optimizer"]:
        return sharded_case(row, figure)
    if re.search(r"tp\d|pp\d|tensor parallel|sequential", row["parallelism"]):
        raise No("inference" if not row["optimizer"] or row["optimizer"] == "none" else stages_of(row))
    if row["parallelism"] != "none" or row["n_gpus"] != "1":
        model_of(row)
        whole(row, "seq_len")
        raise No("parallelism: " + re.sub(r"\d+", "N", row["parallelism"]))
    if row["offload"] != "none":
        raise No("offload beside DeepSpeed")
    for word, why in REMARKS.items():
        if word in row["other"]:
            raise No(why)
    if LADDER.search(row["other"]):
        raise No("torch.compile, which that ladder's steps before had switched on")
    model, label = model_of(row)
    if row["id"].startswith("LITGPT"):
        return litgpt_case(row, model, label, figure)
    if row["quantity"] == "peak_reserved" and "at init" in row["other"]:
        return Case(model, label, lambda p: phase(p, "init")["peak_reserved"],
                    training_of({**row, "act_ckpt": "no"}, tokens=False))
    if row["id"].startswith("HFDOC"):
        return trainer_case(row, model, label, figure)
    return Case(model, label, figure, training_of(row))


def trainer_case(row, model, label, figure):
    """transformers' Trainer of when BERT had no other attention; accumulation as the remarks say it."""
    if row["optimizer"] == "none":
        raise No("a CUDA context, or weights alone")
    accumulated = re.search(r"gradient accumulation (\d+)", row["other"])
    training = {**training_of(row), "loop": "trainer", "attention": "eager",
                "grad_accum": int(accumulated.group(1)) if accumulated else 1}
    return Case(model, label, figure, training, options=["--hardware", gpu_of(row)])


def litgpt_case(row, model, label, figure):
    """litgpt ties no weights, drops out in its adapters, steps with torch's AdamW as it is by default, sums the
    gradients of several micro-batches, does not cast the logits to fp32 for the loss, and keeps them in a variable of
    its loop (litgpt: finetune/lora.py, finetune/full.py, utils.py, config_hub/finetune)."""
    if label in AS_ONE and lora_of(row):
        raise No(PARTS)
    return Case(published_sharded.untied(model), label, figure, published_sharded.litgpt_training(training_of(row)),
                options=["--hardware", gpu] if (gpu := gpu_of(row)) else [])


def litgpt_sharded(row, figure):
    model, label = model_of(row)
    if label in AS_ONE and lora_of(row):
        raise No(PARTS)
    return published_sharded.litgpt_case(row, model, label, training_of, figure)


def peft_case(row, figure):
    """peft's own comparison on an L40S: 768 tokens at most, four texts at a time (reference.py has the same runs); and
    its documentation's DeepSpeed job."""
    if row["parallelism"] == "zero3" and row["lora/quant"].startswith("LoRA r8 all-linear"):
        zero = {"stage": 3}
        names = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"
        adapters = {"r": 8, "targets": names.split(), "dtype": "model"}
        json_of = {"train_micro_batch_size_per_gpu": whole(row, "batch_per_gpu"), "bf16": {"enabled": True},
                   "zero_allow_untested_optimizer": True, "zero_optimization": zero,
                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
        training = {"seq": whole(row, "seq_len"), "attention": "flash", "checkpoint": checkpoint_of(row),
                    "lora": adapters}
        return Case(*model_of(row), figure, training, json_of, ["--hardware", gpu_of(row), "--gpus", row["n_gpus"]])
    if not row["seq_len"].startswith("<=768"):
        whole(row, "seq_len")
        lora_of(row)
        raise No("parallelism: " + re.sub(r"\d+", "N", row["parallelism"]))
    training = {**training_of({**row, "seq_len": "768"}), "loop": "script"}
    if "lora" in training:
        training["lora"] = {**training["lora"], "dtype": "fp32"}
    return Case(*model_of(row), figure, training, options=["--hardware", "l40s"])


def ran(row):
    """Of a max_batch row: True where the batch ran, False where it ran out of memory."""
    return "bound=upper" not in row["other"] and row["value"] != "0"


def stratum_of(row):
    if row["model"].startswith("op "):
        return "single operators"
    if row["id"].startswith("FQLORA"):
        return "FSDP1 and LoRA, as fsdp_qlora calls them"
    if row["id"].startswith("LITGPT") and row["parallelism"] == "fsdp":
        return "FSDP1, as litgpt calls it"
    if row["parallelism"].startswith("fsdp"):
        return "FSDP, as torchtitan calls it"
    if row["quantity"] == "model_states":
        return "states"
    if row["id"].startswith("LITGPT"):
        return "litgpt, LoRA" if row["lora/quant"] != "none" else "litgpt, all weights"
    if row["id"].startswith("PEFT-0") and row["parallelism"] == "none":
        return "peft's own comparison"
    if row["id"].startswith("HFDOC"):
        return "the Trainer, and the context"
    if row["parallelism"].startswith("zero"):
        return "DeepSpeed"
    parts = ["LoRA" if not row["lora/quant"].startswith("none") else "all weights"]
    if row["act_ckpt"] not in ("no", "n/a"):
        parts.append("checkpointing")
    return ", ".join(parts)
