"""Peaks that others measured beside the speed of their steps, predicted where their configuration can be expressed.

tests/data/reference-memory.csv: those rows of a collection of published steps that state a peak. As in published.py the
code that was measured is mostly not transformers, and no constant is tuned on any. A run that published-memory.csv has
as well is said as there, where ranks and settings stand that this collection leaves out.
"""

import collections
import csv
import functools
import re
import statistics

from . import tables
from . import published_rows, published_sharded
from .published import FILE as PUBLISHED, UNITS, predict
from .published_case import Case, No, group_of, peak_of

FILE = "tests/data/reference-memory.csv"
FIGURES = {"torch_max_allocated": "allocated", "torch_max_reserved": "reserved", "torch_peak_active": "active",
           "torch_peak (active)": "active", "torch_peak_reserved": "reserved"}
# Code whose modules are transformers', or nearly: what differs stands beside its stratum.
FRAMEWORKS = {
    "HF+PEFT+bitsandbytes": "QLoRA and LoRA on an RTX 4080",
    "HF PEFT method_comparison": "peft's own comparison: each batch padded to its longest text, at most 768 tokens",
    "fsdp_qlora (HF+FSDP)": "fsdp_qlora: FSDP1 and LoRA",
}
# Code of its own, whose runs stand in published-memory.csv under these ids.
ELSEWHERE = {"litgpt": ("LITGPT", "litgpt's own model"), "torchtitan": ("TITAN", "torchtitan"),
             "torchtune": ("TUNE", "torchtune")}
GPUS = {"RTX4080": "rtx4080", "L40S": "l40s"}
MODELS = {"Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b", "Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b",
          "Qwen/Qwen2.5-3B-Instruct": "qwen2.5-3b", "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
          "llama3.2-3b": "llama-3.2-3b", "llama2-7b": "llama-2-7b", "yi-34b": "yi-34b", "llama2-70b": "llama-2-70b",
          "mistral-7b": "mistral-7b-v0.2", "sshleifer/tiny-gpt2": "tiny-gpt2"}


def framework_of(row):
    return re.split(r"[ +/(]", row["framework"])[0]


def adapters_of(row):
    text = row["peft"]
    if not text:
        return None
    if row["framework"] == "HF+PEFT+bitsandbytes":
        return {"r": 16, "targets": "q_proj k_proj v_proj o_proj".split()}
    found = re.match(r"lora--llama-3\.2-3B-rank(\d+)(-dora|-rslora)?(-target-mlp)?;", row["extra"])
    if not found:
        raise No("adapters that are not LoRA, or are a variant of it")
    names = "up_proj gate_proj down_proj" if found.group(3) else "q_proj v_proj"
    adapters = {"r": int(found.group(1)), "targets": names.split()}
    return {**adapters, "dora": True} if found.group(2) == "-dora" else adapters


def no_figure(kind):
    """Why a peak of this kind is not compared."""
    if "nvidia" in kind or "device" in kind:
        return "the device's whole use, as nvidia-smi or the like prints it"
    if "approximate" in kind or "digitised" in kind:
        return "an approximate figure, or one read off a picture"
    return "a figure whose meter is not stated"


def same_run(row, published):
    """The row of published-memory.csv that is the same run: as many rows and devices, and the same bytes."""
    prefix = ELSEWHERE[framework_of(row)][0]
    measured = float(row["peak_mem_gib"]) * 2**30
    for one in published:
        if not one["id"].startswith(prefix + "-") or one["unit"] not in UNITS:
            continue
        bytes_there = float(one["value"]) * UNITS[one["unit"]]
        alike = one["batch_per_gpu"] == row["micro_batch"] and one["n_gpus"] == row["n_gpus"]
        if alike and abs(bytes_there - measured) < 1e-3 * measured:
            return one
    return None


def own_case(row, published):
    """The Case of a run of litgpt, torchtitan or torchtune."""
    for word in ("Thunder", "compile"):
        if word in row["framework"] or re.search(rf"(^|;){word}(;|$)", row["extra"]):
            raise No("Thunder, a compiler" if word == "Thunder" else "torch.compile")
    one = same_run(row, published)
    if one is not None:
        return published_rows.case_of(one)
    if row["framework"] == "litgpt+Eager":
        return pretraining(row)
    if row["peft"] and framework_of(row) != "torchtitan":
        raise No("adapters whose rank is not stated")
    if framework_of(row) == "torchtune":
        raise No("torchtune's own model, without a number of tokens that is stated")
    if row["pp"] not in ("", "1") or row["tp"] not in ("", "1"):
        raise No("pipeline or tensor parallel stages")
    raise No("a run of " + framework_of(row) + " whose settings are not all stated")


def pretraining(row):
    """litgpt's pretrain.py under eager PyTorch: all weights, gradients summed, AdamW fused."""
    if row["dp"] != "1":
        raise No("litgpt under DDP or FSDP, whose accumulation is not stated")
    model = MODELS.get(row["model"], "tinyllama-1.1b" if row["model"] == "tinyllama" else None)
    training = published_sharded.litgpt_training({
        "dtype": "bf16", "optimizer": {"name": "adamw"}, "checkpoint": "none", "seq": int(row["seq_len"]),
        "micro_batch": int(row["micro_batch"])})
    training["optimizer"] = {"name": "adamw", "implementation": "fused"}
    return Case(published_sharded.untied(model), model, None, training, options=["--hardware", "a100-sxm-80"])


def sharded_case(row):
    """fsdp_qlora's train.py, with its defaults."""
    if row["peft"] == "qlora":
        raise No(published_sharded.PACKED_WHERE)
    training = published_sharded.fsdp_qlora_training(False, row["shard"] == "ddp", "cpu" in row["offload"],
                                                     int(row["seq_len"]), int(row["micro_batch"]))
    gpu = re.match(r"RTX\d+", row["gpu"]).group(0).lower()
    return Case(MODELS[row["model"]], MODELS[row["model"]], None, training, None,
                ["--gpus", row["n_gpus"], "--hardware", gpu])


def case_of(row, published):
    if row["framework"] == "ms-swift 2024":
        raise No("PyTorch and transformers of early 2024, which are not modelled")
    if row["mem_kind"] not in FIGURES:
        raise No(no_figure(row["mem_kind"]))
    if framework_of(row) in ELSEWHERE:
        return own_case(row, published)
    if row["framework"] not in FRAMEWORKS:
        raise No("other code than transformers': " + framework_of(row))
    if row["model"] not in MODELS:
        raise No("a model that is not bundled: " + row["model"])
    if row["framework"].startswith("fsdp_qlora"):
        return sharded_case(row)
    adapters = adapters_of(row)
    optimizer = "paged_adamw_8bit" if row["optimizer"] != "AdamW" else "adamw"
    training = {"dtype": "bf16", "seq": int(row["seq_len"]), "micro_batch": int(row["micro_batch"]),
                "checkpoint": row["recompute"], "loop": "script", "optimizer": {"name": optimizer}}
    if row["model"] == "sshleifer/tiny-gpt2":
        raise No("adapters on GPT-2's packed modules")
    if row["peft"].startswith("qlora"):
        training |= {"quantization": "nf4", "double_quant": True}
    if adapters:
        training["lora"] = adapters
    return Case(MODELS[row["model"]], MODELS[row["model"]], None, training, None, ["--hardware", GPUS[row["gpu"]]])


def measured_of(row):
    """{figure: GiB}: the peak of the row, and a second one where its remarks have it."""
    figures = {FIGURES[row["mem_kind"]]: float(row["peak_mem_gib"])}
    for name in ("reserved", "allocated"):
        found = re.search(rf"peak[_ ]{name}[= ]([\d.]+)", row["extra"])
        if found:
            figures[name] = float(found.group(1))
    return figures


def stratum_of(row):
    return FRAMEWORKS.get(row["framework"]) or ELSEWHERE[framework_of(row)][1]


@functools.lru_cache(maxsize=None)
def compared_rows(root, dsplan):
    """([(row, model, figure, measured, predicted, runtime)], {reason: rows})."""
    compared, reasons = [], collections.Counter()
    with open(root / PUBLISHED, encoding="utf-8", newline="") as file:
        published = list(csv.DictReader(file))
    with open(root / FILE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                case = case_of(row, published)
                prediction = predict(dsplan, case)
                if prediction["memory"]["peak"] is None:
                    raise No("no schedule: " + prediction["model"])
            except No as no:
                reasons[str(no)] += 1
                continue
            compared += [(row, case.label, figure, measured, peak_of(prediction, figure) / 2**30, group_of(case))
                         for figure, measured in measured_of(row).items()]
    return compared, reasons


def error(measured, predicted):
    return 100 * (predicted / measured - 1)


def judged(errors):
    if len(errors) < 10:
        return len(errors), "insufficient evidence", ""
    return len(errors), f"{statistics.median(errors):+.2f} %", f"{max(errors, key=abs):+.2f} %"


def section(root, dsplan):
    if not (root / FILE).is_file():
        return ""
    compared, reasons = compared_rows(root, dsplan)
    text = ("## Peaks published beside speeds\n\n" + FILE + " has the rows of published steps that state a peak, from "
            "forty projects. What runs\ntransformers' modules is predicted, and what litgpt and torchtitan run where "
            "published-memory.csv has the same run with its\nsettings; the rest is listed below by reason.\n\n")
    strata = collections.defaultdict(list)
    for row, _, figure, measured, predicted, _ in compared:
        strata[(stratum_of(row), figure)].append(error(measured, predicted))
    text += tables.table(("stratum", "figure", ">n", ">median error", ">worst error"),
                         [(name, figure, *judged(errors)) for (name, figure), errors in sorted(strata.items())])
    text += "\n" + tables.table(
        ("row", "model", "adapters", ">seq", ">rows", "checkpoint", "figure", ">measured GiB", ">predicted GiB",
         ">error"),
        [(row["id"], label, row["peft"].split(" trainable")[0] or "all weights", row["seq_len"], row["micro_batch"],
          row["recompute"], figure, f"{measured:.2f}", f"{predicted:.2f}", f"{error(measured, predicted):+.2f} %")
         for row, label, figure, measured, predicted, _ in compared])
    missing = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    text += f"\nNot expressed: {sum(reasons.values())} rows.\n\n"
    return text + tables.table(("why", ">rows"), missing)
