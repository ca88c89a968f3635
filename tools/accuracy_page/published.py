"""Memory figures that others measured and published, predicted where their configuration can be expressed.

tests/data/published-memory.csv: rows that are measurements (no formulas, estimators or parameter counts), of high
confidence (every input of a prediction is stated) and of medium confidence (one is inferred, or the measure is coarse),
which are never averaged. The code that was measured is mostly not transformers, and its versions are old: an error
holds both dsplan's and theirs. No constant is tuned on any of them.
"""

import csv
import functools
import json
import math
import os
import re
import subprocess
import tempfile

from . import tables
from .published_case import No, group_of
from .published_rows import case_of, ran, stratum_of

FILE = "tests/data/published-memory.csv"
ANALYTIC = re.compile(r"ZERO|ZINF|KORT|DSEST")
UNITS = {"GB": 10**9, "GiB": 2**30, "MiB": 2**20}


def measured_rows(root, confidence):
    with open(root / FILE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["confidence"] != confidence or ANALYTIC.match(row["id"]):
                continue
            if row["quantity"] in ("param_count", "estimator_output"):
                continue
            yield row


def write(folder, name, value):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)
    return path


def predict(dsplan, case):
    """The prediction of one case; raises No where dsplan refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        model = case.model if isinstance(case.model, str) else write(folder, "config.json", case.model)
        command = [str(dsplan), "simulate", model, *case.options]
        if case.training is not None:
            head = {"dsplan": 1, "kind": "training", "source": FILE}
            command += ["--training", write(folder, "training.json", {**head, **case.training})]
        if case.deepspeed is not None:
            command += ["--deepspeed", write(folder, "deepspeed.json", case.deepspeed)]
        done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode not in (0, 1, 3):
        said = done.stderr.split("error: ")[-1].splitlines()[0]
        raise No("refused: " + re.sub(r" of tmp\w+", "", re.sub(r"^\S*/", "", said)))
    prediction = json.loads(done.stdout)
    return prediction


@functools.lru_cache(maxsize=None)
def figures(root, dsplan, confidence):
    """(figures, verdicts, reasons): rows of the two tables, each with its runtime at the end, and ids by reason."""
    compared, verdicts, reasons = [], [], {}
    for row in measured_rows(root, confidence):
        try:
            case = case_of(row)
            prediction = predict(dsplan, case)
            if case.figure is None:
                verdicts.append((*verdict_row(row, case, prediction), group_of(case)))
                continue
            predicted = figure_of(case, prediction)
        except No as no:
            reasons.setdefault(str(no), []).append(row["id"])
            continue
        measured = float(row["value"]) * UNITS[row["unit"]]
        compared.append((row["id"], case.label, stratum_of(row), row["quantity"], measured, predicted,
                         group_of(case)))
    return compared, verdicts, reasons


def figure_of(case, prediction):
    try:
        return case.figure(prediction)
    except TypeError:
        raise No("no schedule: " + prediction["model"]) from None


def verdict_row(row, case, prediction):
    said = prediction["verdict"]
    if prediction["memory"]["peak"] is None and said != "does_not_fit":
        raise No("no schedule: " + prediction["model"])
    agrees = said == "fits" if ran(row) else said == "does_not_fit"
    held = "agrees" if agrees else "leaves it open" if said not in ("fits", "does_not_fit") else "contradicts"
    what = f"batch {row['batch_per_gpu']} " + ("ran" if ran(row) else "ran out of memory")
    return row["id"], case.label, row["parallelism"], what, said, held


def error(measured, predicted):
    return 100 * (predicted - measured) / measured


def ninth_decile(errors):
    """The size that nine of ten do not exceed."""
    return sorted(abs(one) for one in errors)[math.ceil(0.9 * len(errors)) - 1]


def judged(errors):
    """Cells of a stratum: cases, median, nine in ten within, worst."""
    if len(errors) < 10:
        return len(errors), "insufficient evidence", "", ""
    return (len(errors), tables.percent(tables.median(errors)), f"{ninth_decile(errors):.3f} %",
            tables.percent(max(errors, key=abs)))


JUDGED = (">n", ">median error", ">nine in ten within", ">worst error")


def summary_of(compared):
    strata = {}
    for _, _, stratum, quantity, measured, predicted, _ in compared:
        strata.setdefault((stratum, quantity), []).append(error(measured, predicted))
    every = [one for errors in strata.values() for one in errors]
    rows = [(name, quantity, *judged(errors)) for (name, quantity), errors in sorted(strata.items())]
    return [*rows, ("all", "", *judged(every))]


def rows_of(compared):
    return [(row_id, label, stratum, quantity, f"{measured / 2**30:.2f}", f"{predicted / 2**30:.2f}",
             f"{error(measured, predicted):+.1f} %")
            for row_id, label, stratum, quantity, measured, predicted, _ in compared]


def verdicts_text(verdicts):
    if not verdicts:
        return ""
    counts = {held: sum(one[5] == held for one in verdicts) for held in ("agrees", "leaves it open", "contradicts")}
    text = ("\nRows that say only that a batch ran, or that it ran out of memory, against the verdict on that device: "
            f"{counts['agrees']} agree,\n{counts['leaves it open']} leave it open, {counts['contradicts']} contradict. "
            "A verdict of `tight`, or of retries, leaves it open.\n\n")
    return text + tables.table(("row", "model", "parallelism", "what happened", "verdict", ""),
                               [one[:6] for one in verdicts])


def reasons_text(reasons):
    missing = sorted(((why, len(ids), ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else ""))
                      for why, ids in reasons.items()), key=lambda item: (-item[1], item[0]))
    return (f"\nNot expressed: {sum(item[1] for item in missing)} rows.\n\n"
            + tables.table(("why", ">rows", "such as"), missing))


def part(root, dsplan, confidence, remarks):
    compared, verdicts, reasons = figures(root, dsplan, confidence)
    text = tables.table(("stratum", "quantity", *JUDGED), summary_of(compared)) + "\n"
    text += tables.table(("row", "model", "stratum", "quantity", ">measured GiB", ">predicted GiB", ">error"),
                         rows_of(compared))
    return text + remarks + verdicts_text(verdicts) + reasons_text(reasons)


HEAD = """## Published figures

Measured by others, as collected in tests/data/published-memory.csv. The code that ran is mostly not transformers, its
PyTorch years old, and how the texts were padded nobody says. Each row is predicted from what it states; no constant was
tuned on any. Reserved bytes are the expected ones, where they depend on when streams are done.

### Of high confidence: every input of a prediction is stated

"""
HIGH = """
Single operators (Liger's benchmark): gradients of the call before are there, swiglu's graph is kept (retain_graph), and
each of two threads has cuBLAS's workspace, as the op-graphs say. The fused loss is Liger's of 2024: beside one chunk of
logits it held a copy in fp32 and the gradient of the chunk before, three chunks more than today. The benchmark itself,
on the dry device, takes 6,092.28 and 9,162.31 MiB (LIGER-020 and 021) and 1,294.25 and 1,992.25 MiB (LIGER-040 and
041), as published, and with Liger 0.3.1 4,237.42 and 4,460.22 MiB for LIGER-016 and 017, 8.1 and 6.7 MiB less: a
workspace that an earlier benchmark of the same process left.

litgpt: as it runs, the loss takes logits in bf16, a variable keeps them, no weights are tied, and phi's gelu is one
operator. What is left is in its layers, which are not transformers': [litgpt itself](#code-that-is-not-transformers), on
the dry device, meets the published figures.

FSDP as torchtitan calls it (FSDP1 in TITAN-052 and 053; else FSDP2), all from before July 2025, when layers and the
model had groups, and the last layer did not reshard unless always was said. Llama 3.1 is torchtitan's own model
(`--model-code torchtitan`, 0.1.0), Llama 2 transformers'. torchtitan 0.1.0 itself, the job of TITAN-022 to 025 under
PyTorch 2.11 on the dry device, reserves 47.44 GiB in its first step and 51.35 GiB in the others, with always and by
default, and so says the prediction. What is left to the published figures is of then, PyTorch's release above all.

The Trainer on a V100: the device's whole use, with a context of 1,343 MiB where 600 MiB are assumed here, and BERT as
transformers had it in 2022.
"""
MEDIUM = """
### Of medium confidence: one input is inferred, or the measure is coarse

litgpt under FSDP is Lightning's FSDPStrategy: blocks are units and checkpoints. fsdp_qlora is its train.py with its
defaults. peft's own comparison pads to 768 tokens at most, and its peak holds an evaluation. MPT is GPT-2's layers to
the parameter, with the loss on 16-bit logits.

"""


def section(root, dsplan):
    if not (root / FILE).is_file():
        return ""
    return HEAD + part(root, dsplan, "high", HIGH) + MEDIUM + part(root, dsplan, "medium", "")
