"""Memory figures that others measured and published, predicted where their configuration can be expressed.

tests/data/published-memory.csv: only rows of high confidence that are measurements count (no formulas, estimators or
parameter counts). The code that was measured is mostly not transformers, and its versions are old: an error holds both
dsplan's and theirs. No constant is tuned on any of them.
"""

import csv
import json
import re
import subprocess
import tempfile

from . import tables

FILE = "tests/data/published-memory.csv"
ANALYTIC = re.compile(r"ZERO|ZINF|KORT|DSEST")
# Which figure of a prediction answers to which quantity.
FIGURES = {"peak_allocated": "allocated", "peak_reserved": "reserved", "nvidia_smi": "process"}
UNITS = {"GB": 10**9, "GiB": 2**30, "MiB": 2**20}
# Words of "model" with the bundled model of the same dimensions.
MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b", "meta-llama/Llama-2-13b-hf": "llama-2-13b",
    "meta-llama/Meta-Llama-3-8B": "llama-3-8b", "meta-llama/Llama-3.1-8B": "llama-3.1-8b",
    "meta-llama/Llama-3.2-1B": "llama-3.2-1b", "meta-llama/Llama-3.2-3B": "llama-3.2-3b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b", "TinyLlama/TinyLlama-1.1B": "tinyllama-1.1b",
    "google/gemma-2-2b": "gemma-2-2b", "google/gemma-2-9b": "gemma-2-9b", "gpt2-xl": "gpt2-xl",
}
TARGETS = {"query+value": "q_proj+v_proj", "q,v": "q_proj+v_proj",
           "query+key+value+projection+mlp": "q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj"}


class No(Exception):
    """The row cannot be expressed; the text says why."""


def measured_rows(root):
    with open(root / FILE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["confidence"] != "high" or ANALYTIC.match(row["id"]):
                continue
            if row["quantity"] in ("param_count", "estimator_output"):
                continue
            yield row


def whole(row, key):
    if not re.fullmatch(r"\d+", row[key]):
        raise No(f"no number of {'rows' if key == 'batch_per_gpu' else 'tokens'} is stated")
    return int(row[key])


def training_of(row):
    """The training file of a row, without its head."""
    precision = row["precision"]
    known = {"bf16-true": ("bf16", "none"), "bf16": ("bf16", "none"), "fp32": ("fp32", "none"),
             "fp16 autocast (fp32 weights)": ("fp32", "fp16"), "bf16 AMP (fp32 weights)": ("fp32", "bf16")}
    if precision not in known:
        raise No(f'precision "{precision}"')
    optimizers = {"AdamW": "adamw", "AdamW fused": "adamw", "Adam": "adam", "Adafactor": "adafactor"}
    if row["optimizer"] not in optimizers:
        raise No("inference" if not row["optimizer"] else f'optimizer "{row["optimizer"]}"')
    if row["act_ckpt"] not in ("no", "yes", "full"):
        raise No(f'checkpointing "{row["act_ckpt"]}"')
    dtype, autocast = known[precision]
    training = {"dtype": dtype, "autocast": autocast, "micro_batch": whole(row, "batch_per_gpu"),
                "seq": whole(row, "seq_len"), "optimizer": {"name": optimizers[row["optimizer"]]},
                "checkpoint": "none" if row["act_ckpt"] == "no" else "full", "lora": lora_of(row["lora/quant"])}
    return {key: value for key, value in training.items() if value is not None}


def lora_of(text):
    if text == "none":
        return None
    if "bnb" in text or "nf4" in text:
        raise No("quantized weights")
    found = re.fullmatch(r"LoRA r(\d+) (\S+)", text)
    if not found or found.group(2) not in TARGETS:
        raise No(f'adapters "{text}"')
    return {"r": int(found.group(1)), "targets": TARGETS[found.group(2)].split("+"), "dtype": "model"}


def expressed(row):
    """(model, training file, figure) of a row; raises No."""
    if row["quantity"] not in FIGURES:
        raise No(f'quantity "{row["quantity"]}"')
    if row["parallelism"] != "none" or row["n_gpus"] != "1":
        raise No("parallelism: " + re.sub(r"\d+", "N", row["parallelism"]))
    if row["offload"] != "none":
        raise No("offload beside DeepSpeed")
    if row["model"].startswith("op "):
        raise No("a single operator")
    for word in ("compile", "inference", "offloading", "chunked", "packed +", "+ activation", "+ optimizer", "init"):
        if word in row["other"]:
            raise No(f'"{word.strip("+ ")}" in the remarks')
    if row["model"] not in MODELS:
        raise No("a model that is not bundled, or whose family has no operator graph")
    return MODELS[row["model"]], training_of(row), FIGURES[row["quantity"]]


def predict(dsplan, model, training):
    """memory.peak of one configuration; raises No where dsplan refuses it."""
    value = {"dsplan": 1, "kind": "training", "source": FILE, **training}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        done = subprocess.run([str(dsplan), "simulate", model, "--training", file.name, "--format", "json"],
                              capture_output=True, text=True, timeout=120, check=False)
    if done.returncode not in (0, 3):
        raise No("refused: " + done.stderr.split("error: ")[-1].splitlines()[0])
    peak = json.loads(done.stdout)["memory"]["peak"]
    if peak is None:
        raise No("no schedule: " + model)
    return peak


def stratum_of(row):
    parts = ["LoRA" if row["lora/quant"] != "none" else "all weights"]
    if row["act_ckpt"] != "no":
        parts.append("checkpointing")
    return ", ".join(parts)


def section(root, dsplan):
    if not (root / FILE).is_file():
        return ""
    strata, reasons, rows = {}, {}, []
    for row in measured_rows(root):
        try:
            model, training, figure = expressed(row)
            peak = predict(dsplan, model, training)
        except No as no:
            reasons.setdefault(str(no), []).append(row["id"])
            continue
        measured = float(row["value"]) * UNITS[row["unit"]]
        error = 100 * (peak[figure] - measured) / measured
        strata.setdefault((stratum_of(row), row["quantity"]), []).append(error)
        rows.append((row["id"], model, stratum_of(row), row["quantity"], f"{measured / 2**30:.2f}",
                     f"{peak[figure] / 2**30:.2f}", f"{error:+.1f} %"))
    text = ("## Published figures\n\nMeasured by others, of high confidence, as collected in\n" + FILE + ". The code "
            "that ran is mostly not transformers, its PyTorch years old, and\nhow the texts were padded nobody says. "
            "Each row is predicted from what it states; no constant was tuned on any.\n\n")
    summary = [(name, quantity, len(errors), tables.evidence(len(errors), tables.median(errors)),
                tables.evidence(len(errors), max(errors, key=abs)) if len(errors) >= 10 else "")
               for (name, quantity), errors in sorted(strata.items())]
    text += tables.table(("stratum", "quantity", ">n", ">median error", ">worst error"), summary) + "\n"
    text += tables.table(("row", "model", "stratum", "quantity", ">measured GiB", ">predicted GiB", ">error"), rows)
    missing = sorted(((why, len(ids), ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else ""))
                      for why, ids in reasons.items()), key=lambda item: (-item[1], item[0]))
    text += f"\nNot expressed: {sum(item[1] for item in missing)} rows.\n\n"
    return text + tables.table(("why", ">rows", "such as"), missing)
