"""Published runs of code that is not transformers', run again by that code on the dry device (tests/receipts/others)."""

import csv
import json

from . import published, tables

FOLDER = "tests/receipts/others"


def stratum_of(row):
    """litgpt's tables by the time of which they are, and whether bitsandbytes packed the weights."""
    when = "config_hub of 2024, an A10G" if "A10G" in row["other"] else "table of 2023, an A100"
    return f"its {when}" + (", weights in 4 bits" if "bnb" in row["lora/quant"] else "")


def receipts(root):
    for path in sorted((root / FOLDER).glob("*.jsonl")):
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def predictions(root, dsplan):
    """{row: bytes} of the published rows that are predicted."""
    return {one[0]: one[5] for confidence in ("high", "medium") for one in published.figures(root, dsplan, confidence)[0]}


def section(root, dsplan):
    found = [one for one in receipts(root) if "failed" not in one]
    failed = [one for one in receipts(root) if "failed" in one]
    if not found:
        return ""
    with open(root / published.FILE, encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    ours = predictions(root, dsplan)
    strata, predicted, table = {}, [], []
    for one in sorted(found, key=lambda one: one["row"]):
        row, measured = rows[one["row"]], one["allocated"]
        apart = published.error(one["published"], measured)
        strata.setdefault(stratum_of(row), []).append(apart)
        here = ours.get(one["row"])
        if here is not None:
            predicted.append(published.error(measured, here))
        table.append((one["row"], row["model"].split("/")[-1].split(" ")[0], row["lora/quant"], row["batch_per_gpu"],
                      row["seq_len"], f"{one['published'] / 2**30:.2f}", f"{measured / 2**30:.2f}", f"{apart:+.2f} %",
                      "" if here is None else f"{published.error(measured, here):+.1f} %"))
    versions = ", ".join(f"{name} {version.split('+')[0]}" for name, version in found[0]["versions"].items())
    summary = [(f"litgpt on the dry device against {name}", *published.judged(errors))
               for name, errors in sorted(strata.items())]
    summary.append(("dsplan, of transformers' model, against litgpt on the dry device", *published.judged(predicted)))
    text = ("## Code that is not transformers\n\nlitgpt itself on the dry device, by tools/dry/litgpt_jobs.py\n"
            f"({versions}), in the jobs of published rows:\n"
            "peaks of allocated bytes. What is left to the published figures was not traced: litgpt, PyTorch and "
            "bitsandbytes have\nchanged since. What dsplan says of these rows is of transformers' model.\n\n")
    text += tables.table(("of", *published.JUDGED), summary) + "\n"
    text += tables.table(("row", "model", "trained", ">rows", ">seq", ">published GiB", ">dry device GiB", ">apart",
                          ">predicted, to the dry device"), table)
    if failed:
        names = ", ".join(f"{one['row']} ({one['failed'].split(':')[0]})" for one in failed)
        text += f"\nNot measured: {names}.\n"
    return text
