"""Receipts, predicted anew and compared; tested verdicts."""

import json
import subprocess

from . import tables

PARTS = {"causes": "Three quarters: used to find causes", "final": "One quarter, held out: the final table"}


class Failed(RuntimeError):
    """dsplan did not answer."""


def folders(root):
    """One per GPU, because constants are those of one device; and the receipts that were made up for tests."""
    devices = sorted(folder for folder in (root / "tests/receipts").glob("*") if folder.is_dir())
    return [folder for folder in (*devices, root / "tests/data/receipts") if folder.is_dir()]


def files_of(folder):
    """Every JSON file below `folder` as (path, value)."""
    for path in sorted(folder.rglob("*.json")):
        with open(path, encoding="utf-8") as file:
            yield path, json.load(file)


def is_receipt(value):
    return isinstance(value, dict) and value.get("schema") == "dsplan.receipt/1"


def compare(dsplan, folder, part):
    """What `dsplan compare` says of the receipts in `folder`; nothing where this part has none."""
    command = [str(dsplan), "compare", "--re-predict", str(folder), "--part", part, "--format", "json"]
    for option, name in (("--explained", "explained.json"), ("--calibration", "calibration/memory.json")):
        if (folder / name).is_file():
            command += [option, str(folder / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 2 and "there is no receipt to compare" in done.stderr:
        return None
    if not done.stdout:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def strata_table(answers):
    rows = []
    for answer in answers:
        for row in answer["strata"]:
            verdict = row["row"] == "verdict"
            median, worst = ("" if verdict else tables.evidence(row["cases"], row[key] or 0)
                             for key in ("median_percent", "worst_percent"))
            rows.append((row["stratum"], row["device"], row["row"], row["cases"], row["equal"], row["unexplained"],
                         median, worst if row["cases"] >= 10 else ""))
    return tables.table(("stratum", "device", "row", ">n", ">equal", ">unexplained", ">median error", ">worst error"),
                        rows)


def apart(answers):
    """Receipts that differ or that nothing could be compared with."""
    rows = []
    for answer in answers:
        for one in answer["receipts"]:
            if one["refused"]:
                rows.append((one["receipt"], one["device"], "not compared", one["refused"]))
            elif one["differs"]:
                count = sum(rank["counts"]["differs"] for rank in one["ranks"])
                first = next(row for rank in one["ranks"] for row in rank["rows"] if row["state"] == "differs")
                rows.append((one["receipt"], one["device"], f"{count} rows differ",
                             f"{first['row']}: {first['unexplained']}"))
    return rows


def tables_of(part, answers):
    receipts = sum(len(answer["receipts"]) for answer in answers)
    text = f"### {PARTS[part]} ({receipts} receipts)\n\n"
    if not receipts:
        return text + "None.\n"
    counted = {}
    for answer in answers:
        for one in answer["receipts"]:
            for rank in one["ranks"]:
                for state, count in rank["counts"].items():
                    counted[one["device"], state] = counted.get((one["device"], state), 0) + count
    devices = sorted({device for device, _ in counted})
    states = ("equal", "within", "differs", "not_measured", "not_predicted")
    rows = [(device, *(f"{counted.get((device, state), 0):,}" for state in states)) for device in devices]
    text += tables.table(("device", *(">rows " + state.replace("_", " ") for state in states)), rows)
    text += "\n" + strata_table(answers)
    differing = apart(answers)
    if differing:
        text += "\n" + tables.table(("receipt", "device", "", "first"), differing)
    return text


def tables_for(dsplan, found, part):
    answers = [answer for folder in found if (answer := compare(dsplan, folder, part))]
    return tables_of(part, answers)


def tables_text(dsplan, found, parts):
    return "\n".join(tables_for(dsplan, found, part) for part in parts)


def verdicts(dsplan, found):
    """The confusion matrix over all files of tested verdicts."""
    matrix = {}
    cases = right = 0
    wrong = []
    for folder in found:
        for path, value in files_of(folder):
            if not (isinstance(value, dict) and value.get("schema") == "dsplan.verdicts/1"):
                continue
            command = [str(dsplan), "compare", str(path), "--format", "json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode not in (0, 4):
                raise Failed(f"{path}: {done.stderr.strip()}")
            said = json.loads(done.stdout)
            cases += said["cases"]
            right += said["right"]
            wrong += said["wrong"]
            for row in said["matrix"]:
                old = matrix.get(row["predicted"], (0, 0))
                matrix[row["predicted"]] = (old[0] + row["ran"], old[1] + row["out_of_memory"])
    if not cases:
        return "### Verdicts\n\nNone has been put to the test yet.\n"
    rows = [(name, *counts) for name, counts in matrix.items()]
    text = f"### Verdicts ({right} of {cases} right)\n\n" + tables.table(("predicted", ">ran", ">out of memory"), rows)
    if wrong:
        text += "\n" + tables.table(("wrong", ">limit, permille of the need"),
                                    [(row["name"], row["factor_permille"]) for row in wrong])
    return text


def section(root, dsplan):
    found = folders(root)
    there = [value for folder in found for _, value in files_of(folder) if is_receipt(value)]
    devices = {value["device"] for value in there}
    text = "## Receipts\n\n"
    if not there:
        return text + "There is none yet: no whole run has been measured, and nothing is claimed of any.\n"
    if "cuda" not in devices:
        text += "**No GPU has been measured yet.** "
    text += ("On `cuda` the frameworks ran and the device was\nmeasured. `cpu` and `fake` show only what operators "
             "return, in requested bytes: sizes and lifetimes, not what\nkernels take, nor the allocator.\n\n")
    return text + tables_text(dsplan, found, ("causes", "final")) + "\n" + verdicts(dsplan, found)
