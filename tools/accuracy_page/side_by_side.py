"""The page's first table: each witness beside the others, by runtime."""

import glob
import json
import os
import re

from . import dry, published, reference, tables, witnesses

GROUPS = ("one GPU, all weights", "one GPU, adapters", "DDP", "ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP2 and HSDP",
          "FSDP1", "single operators")
FIGURES = {"peak_allocated": "allocated", "peak_reserved": "reserved"}

HEAD = """## Strata side by side

Each row is a runtime, each column a witness. **FakeTensor and the host**: requested bytes; all are equal, or the test
run fails. **Dry device**: rows (phases of jobs) equal to the byte, then the median and the worst error of all rows.
**Hardware**: a GPU. **Published**: rows that others measured on GPUs, with other code and older versions; median and
worst error, and whether a batch ran. No two columns are averaged.

"""


def on_the_host(root):
    """{runtime: what ran there}: FakeTensor's steps and operators, and frameworks' own code on the host."""
    plain = [witnesses.load(path) for path in sorted((root / "tests/witnesses/memory").glob("*.json"))]
    adapted = sum(bool(value["training"].get("lora")) for value in plain)
    operators = len(witnesses.load(root / "tests/witnesses/operators.json")["cases"])
    said = {"one GPU, all weights": f"{len(plain) - adapted:,} runs", "one GPU, adapters": f"{adapted:,} runs",
            "single operators": f"{operators:,} cases"}
    for group, name in (("FSDP2 and HSDP", "fsdp"), ("FSDP1", "fsdp1")):
        said[group] = f"{len(witnesses.load(root / f'tests/witnesses/{name}.json')['runs']):,} runs"
    for stage in range(4):
        found = glob.glob(str(root / f"tests/witnesses/deepspeed/z{stage}-*.json"))
        said[f"ZeRO-{stage}"] = f"{len(found):,} runs"
    return said


def on_the_dry_device(root):
    """{runtime: cells} of the table that tools/dry/compare --page wrote."""
    written = dry.written(root)
    found = {}
    for line in written.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in GROUPS and len(cells) == 9:
            rows = cells[2]
            found[cells[0]] = [f"{cells[at]} of {rows}; {cells[at + 1]}" for at in (3, 5, 7)]
    return found


def on_hardware(root):
    """{runtime: receipts measured on a GPU}."""
    found = {}
    for folder in ("tests/receipts", "tests/data/receipts"):
        for path in glob.glob(str(root / folder / "**/*.json"), recursive=True):
            with open(path, encoding="utf-8") as file:
                value = json.load(file)
            if isinstance(value, dict) and value.get("device") == "cuda":
                found.setdefault("all", []).append(os.path.basename(path))
    return found


def published_errors(root, dsplan):
    """{(runtime, figure): errors in percent}, of published figures and of peaks beside speeds."""
    found = {}
    for confidence in ("high", "medium"):
        for *_, quantity, measured, predicted, group in published.figures(root, dsplan, confidence)[0]:
            if quantity in FIGURES:
                found.setdefault((group, FIGURES[quantity]), []).append(published.error(measured, predicted))
    for row, _, figure, measured, predicted, group in reference.compared_rows(root, dsplan)[0]:
        if not re.match(r"LITGPT|TUNE|ISSUE|FSDPQLORA|PEFT", row["id"]):  # Which stand among published figures as well.
            found.setdefault((group, figure), []).append(published.error(measured, predicted))
    return found


def verdicts_of(root, dsplan):
    """{runtime: how published verdicts came out}."""
    found = {}
    for confidence in ("high", "medium"):
        for one in published.figures(root, dsplan, confidence)[1]:
            found.setdefault(one[6], []).append(one[5])
    return {group: ", ".join(f"{held.count(words)} {short}" for words, short in
                             (("agrees", "agree"), ("leaves it open", "open"), ("contradicts", "contradict")))
            for group, held in found.items()}


def said_of(errors):
    if not errors:
        return "none"
    if len(errors) < 10:
        return f"{len(errors)} {'row' if len(errors) == 1 else 'rows'}: insufficient evidence"
    return f"{len(errors)} rows; {tables.median(errors):+.2f} %, {max(errors, key=abs):+.2f} %"


def section(root, dsplan):
    host, dried, errors = on_the_host(root), on_the_dry_device(root), published_errors(root, dsplan)
    measured, verdicts = on_hardware(root), verdicts_of(root, dsplan)
    rows = []
    for group in GROUPS:
        requested, allocated, reserved = dried.get(group, ["none"] * 3)
        rows.append((group, host.get(group, "none"), requested, allocated, reserved,
                     "measured" if measured else "not yet measured", said_of(errors.get((group, "allocated"))),
                     said_of(errors.get((group, "reserved"))), verdicts.get(group, "none")))
    return HEAD + tables.table(
        ("runtime", "FakeTensor and the host: requested", "dry device: requested", "dry device: allocated",
         "dry device: reserved", "hardware", "published: allocated", "published: reserved", "published: verdicts"),
        rows)
