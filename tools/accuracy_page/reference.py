"""Peaks that others measured beside the speed of their steps, predicted where their configuration can be expressed.

tests/data/reference-memory.csv: those rows of a collection of published steps that state a peak. As in published.py the
code that was measured is mostly not transformers, and no constant is tuned on any.
"""

import collections
import csv
import re
import statistics

from . import tables
from .published import predict
from .published_case import Case, No

FILE = "tests/data/reference-memory.csv"
FIGURES = {"torch_max_allocated": "allocated", "torch_max_reserved": "reserved"}
# Code whose modules are transformers', or nearly: what differs stands beside its stratum.
FRAMEWORKS = {
    "HF+PEFT+bitsandbytes": "QLoRA and LoRA on an RTX 4080",
    "HF PEFT method_comparison": "peft's own comparison: each batch padded to its longest text, at most 768 tokens",
}
GPUS = {"RTX4080": "rtx4080", "L40S": "l40s"}
MODELS = {"Qwen/Qwen2.5-0.5B-Instruct": "qwen2.5-0.5b", "Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b",
          "Qwen/Qwen2.5-3B-Instruct": "qwen2.5-3b", "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
          "llama3.2-3b": "llama-3.2-3b"}


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


def case_of(row):
    if row["framework"] == "ms-swift 2024":
        raise No("PyTorch and transformers of early 2024, which are not modelled")
    if row["mem_kind"] not in FIGURES:
        raise No("another figure than PyTorch's own counters, or an unstated one")
    if row["framework"] not in FRAMEWORKS:
        raise No("other code than transformers': " + re.split(r"[ +/(]", row["framework"])[0])
    if row["model"] not in MODELS:
        raise No("a model that is not bundled: " + row["model"])
    adapters = adapters_of(row)
    optimizer = "paged_adamw_8bit" if row["optimizer"] != "AdamW" else "adamw"
    training = {"dtype": "bf16", "seq": int(row["seq_len"]), "micro_batch": int(row["micro_batch"]),
                "checkpoint": row["recompute"], "loop": "script", "optimizer": {"name": optimizer}}
    if row["peft"].startswith("qlora"):
        training |= {"quantization": "nf4", "double_quant": True}
    if adapters:
        training["lora"] = adapters
    return Case(MODELS[row["model"]], MODELS[row["model"]], None, training, None, ["--hardware", GPUS[row["gpu"]]])


def measured_of(row):
    """{figure: GiB}: the peak of the row, and a second one where its remarks have it."""
    figures = {FIGURES[row["mem_kind"]]: float(row["peak_mem_gib"])}
    found = re.match(r"peak_reserved=([\d.]+);", row["extra"])
    return figures | {"reserved": float(found.group(1))} if found else figures


def compared_rows(root, dsplan):
    """([(row, model, figure, measured, predicted)], {reason: rows})."""
    compared, reasons = [], collections.Counter()
    with open(root / FILE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                case = case_of(row)
                peak = predict(dsplan, case)["memory"]["peak"]
            except No as no:
                reasons[str(no)] += 1
                continue
            compared += [(row, case.label, figure, measured, peak[figure] / 2**30)
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
            "forty projects. What runs\ntransformers' modules is predicted; the rest is listed below by reason.\n\n")
    strata = collections.defaultdict(list)
    for row, _, figure, measured, predicted in compared:
        strata[(FRAMEWORKS[row["framework"]], figure)].append(error(measured, predicted))
    text += tables.table(("stratum", "figure", ">n", ">median error", ">worst error"),
                         [(name, figure, *judged(errors)) for (name, figure), errors in sorted(strata.items())])
    text += "\n" + tables.table(
        ("row", "model", "adapters", ">seq", ">rows", "checkpoint", "figure", ">measured GiB", ">predicted GiB",
         ">error"),
        [(row["id"], label, row["peft"].split(" trainable")[0] or "all weights", row["seq_len"], row["micro_batch"],
          row["recompute"], figure, f"{measured:.2f}", f"{predicted:.2f}", f"{error(measured, predicted):+.2f} %")
         for row, label, figure, measured, predicted in compared])
    missing = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    text += f"\nNot expressed: {sum(reasons.values())} rows.\n\n"
    return text + tables.table(("why", ">rows"), missing)
