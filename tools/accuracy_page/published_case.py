"""What a mapping of a published row is made of (published_rows.py and those beside it)."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Which figure of a prediction answers to which quantity.
PEAKS = {"peak_allocated": "allocated", "peak_reserved": "reserved", "nvidia_smi": "process"}
GPUS = {"V100-32GB": "v100-sxm2-32", "V100-16GB": "v100-sxm2-16", "A100-40GB": "a100-sxm-40", "A10G-24GB": "a10g",
        "Titan RTX 24GB": "titanrtx", "A100-SXM4-80GB": "a100-sxm-80", "RTX3090": "rtx3090", "RTX4090": "rtx4090",
        "T4-16GB": "t4", "L40S": "l40s", "H100-80GB": "h100-sxm", "h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm-80",
        "a100_40gb": "a100-sxm-40"}


class No(Exception):
    """The row cannot be expressed; the text says why."""


class Case:
    """What dsplan is asked: `model` (a name, or the text of a file), a training file, a DeepSpeed JSON, options; and
    `figure`, which takes the wanted bytes out of a prediction (None: the verdict is wanted). `stratum`: its own, where
    the row's words do not say it."""

    def __init__(self, model, label, figure, training=None, deepspeed=None, options=(), stratum=None):
        self.model, self.label, self.figure = model, label, figure
        self.training, self.deepspeed, self.options = training, deepspeed, list(options)
        self.stratum = stratum


def group_of(case):
    """Which runtime a case is of: a row of the page's first table."""
    if isinstance(case.model, dict) and case.model.get("kind") == "graph":
        return "single operators"
    training = case.training or {}
    runtime = training.get("runtime")
    if runtime in ("fsdp1", "fsdp2", "hsdp"):
        return "FSDP1" if runtime == "fsdp1" else "FSDP2 and HSDP"
    if case.deepspeed is not None:
        return f"ZeRO-{case.deepspeed.get('zero_optimization', {}).get('stage', 0)}"
    if "--gpus" in case.options and case.options[case.options.index("--gpus") + 1] != "1":
        return "DDP"
    return "one GPU, adapters" if "lora" in training else "one GPU, all weights"


def whole(row, key):
    if not re.fullmatch(r"\d+", row[key]):
        raise No(f"no number of {'rows' if key == 'batch_per_gpu' else 'tokens'} is stated")
    return int(row[key])


def checkpoint_of(row):
    if row["act_ckpt"] in ("no", "n/a", "block"):
        return "none"
    if row["act_ckpt"] in ("yes", "full") or row["act_ckpt"].startswith("yes (FSDP Block"):
        return "full"
    if row["act_ckpt"] in ("", "unstated", "see doc", "default"):
        raise No("whether anything is recomputed is not stated")
    raise No(f'checkpointing "{row["act_ckpt"]}"')


def gpu_of(row):
    return next((name for words, name in GPUS.items() if words in row["other"]), None)


def peak_of(prediction, name):
    """A peak of the prediction. Where it depends on when streams are done: of reserved bytes the expected one, of
    active ones the low end."""
    peak = prediction["memory"]["peak"]
    if isinstance(peak.get("reserved_expected"), int):
        name = {"reserved": "reserved_expected", "active": "allocated"}.get(name, name)
    return peak[name]


def peak_figure(row):
    return lambda prediction: peak_of(prediction, PEAKS[row["quantity"]])


def phase(prediction, name):
    return next(one for one in prediction["memory"]["phases"] if one["name"] == name)


def states(name, share=1):
    return lambda prediction: prediction["memory"]["states"][name] // share


def bundled(name):
    return json.loads((ROOT / "models" / f"{name}.json").read_text(encoding="utf-8"))
