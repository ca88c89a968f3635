"""Memory figures that others measured and published, predicted where their configuration can be expressed.

tests/data/published-memory.csv: only rows of high confidence that are measurements count (no formulas, estimators or
parameter counts). The code that was measured is mostly not transformers, and its versions are old: an error holds both
dsplan's and theirs. No constant is tuned on any of them.
"""

import csv
import json
import os
import re
import subprocess
import tempfile

from . import tables
from .published_rows import No, case_of, ran, stratum_of

FILE = "tests/data/published-memory.csv"
ANALYTIC = re.compile(r"ZERO|ZINF|KORT|DSEST")
UNITS = {"GB": 10**9, "GiB": 2**30, "MiB": 2**20}


def measured_rows(root):
    with open(root / FILE, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["confidence"] != "high" or ANALYTIC.match(row["id"]):
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
        raise No("refused: " + re.sub(r"^\S*/", "", done.stderr.split("error: ")[-1].splitlines()[0]))
    prediction = json.loads(done.stdout)
    return prediction


def figures(root, dsplan):
    """(figures, verdicts, reasons): rows of the two tables, and ids by reason."""
    compared, verdicts, reasons = [], [], {}
    for row in measured_rows(root):
        try:
            case = case_of(row)
            prediction = predict(dsplan, case)
            if case.figure is None:
                verdicts.append(verdict_row(row, case, prediction))
                continue
            predicted = figure_of(case, prediction)
        except No as no:
            reasons.setdefault(str(no), []).append(row["id"])
            continue
        measured = float(row["value"]) * UNITS[row["unit"]]
        compared.append((row["id"], case.label, stratum_of(row), row["quantity"], measured, predicted))
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


def summary_of(compared):
    strata = {}
    for _, _, stratum, quantity, measured, predicted in compared:
        strata.setdefault((stratum, quantity), []).append(100 * (predicted - measured) / measured)
    return [(name, quantity, len(errors), tables.evidence(len(errors), tables.median(errors)),
             tables.evidence(len(errors), max(errors, key=abs)) if len(errors) >= 10 else "")
            for (name, quantity), errors in sorted(strata.items())]


def section(root, dsplan):
    if not (root / FILE).is_file():
        return ""
    compared, verdicts, reasons = figures(root, dsplan)
    text = ("## Published figures\n\nMeasured by others, of high confidence, as collected in\n" + FILE + ". The code "
            "that ran is mostly not transformers, its PyTorch years old, and\nhow the texts were padded nobody says. "
            "Each row is predicted from what it states; no constant was tuned on any.\n\n")
    text += tables.table(("stratum", "quantity", ">n", ">median error", ">worst error"), summary_of(compared)) + "\n"
    rows = [(row_id, label, stratum, quantity, f"{measured / 2**30:.2f}", f"{predicted / 2**30:.2f}",
             f"{100 * (predicted - measured) / measured:+.1f} %")
            for row_id, label, stratum, quantity, measured, predicted in compared]
    text += tables.table(("row", "model", "stratum", "quantity", ">measured GiB", ">predicted GiB", ">error"), rows)
    text += ("\nSingle operators: the benchmark's swiglu keeps its graph through backward (retain_graph), which an "
             "op-graph cannot\nsay.\n")
    text += ("\nFSDP as torchtitan calls it (FSDP1 in TITAN-052 and 053, of which 053 is held against the high end; else FSDP2):\nshards, "
             "states and buffers are its own, activations those of transformers' model instead of torchtitan's;\nTITAN-052, 053, 056 and 057 are older than FSDP2's release. All are from before July 2025,\nwhen "
             "layers and the model had groups, and the last layer did not reshard unless always was said. torchtitan 0.1.0 itself, "
             "the job of TITAN-022 to 025\nunder PyTorch 2.11 on the dry device, reserves 47.44 GiB in its first step and "
             "51.35 GiB in the others, with always and by\ndefault; the prediction is 0.3 % above that. What is left to the "
             "published figures is of then, PyTorch's release above all.\n")
    if verdicts:
        text += ("\nRows that say only that a batch ran, or that it ran out of memory, against the verdict on that "
                 "device:\n\n")
        text += tables.table(("row", "model", "parallelism", "what happened", "verdict", ""), verdicts)
    missing = sorted(((why, len(ids), ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else ""))
                      for why, ids in reasons.items()), key=lambda item: (-item[1], item[0]))
    text += f"\nNot expressed: {sum(item[1] for item in missing)} rows.\n\n"
    return text + tables.table(("why", ">rows", "such as"), missing)
