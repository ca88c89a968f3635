#!/usr/bin/env python3
"""Is dsplan's verdict right at the edge? Every matrix row with "verdict": true runs twice under PyTorch's memory limit:
with 1 % more than the reserved bytes that dsplan predicts, and with 1 % less.

    verdicts.py --plan PLAN.json --dsplan BINARY                what dsplan says; needs no GPU
    verdicts.py --plan PLAN.json --out DIR [--budget-s 540]     the runs; a second call goes on

DIR/verdicts.json is dsplan.verdicts/1 (docs/receipts.md), DIR/NAME-1010.json and NAME-990.json are the runs' receipts.
The last lines on stdout are the confusion matrix. Exit code 0 if every verdict was right and no run ended in an error,
4 if a verdict was wrong, 3 if time was over before all had their turn.
"""

import argparse
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from common import configuration, runner
from common.environment import environment
from common.predict import Refused, binary, predict
from common.receipt import now, write_json
from matrix import TIME_IS_OVER, row_files

WRONG = 4
FACTORS = (1010, 990)
PREDICTED = ("fits", "fits_with_retries", "does_not_fit")
MEASURED = ("ran", "ran with retries", "out_of_memory")


def limit_of(predicted, factor):
    return predicted * factor // 1000


def sharp(prediction):
    """The verdict of the bytes alone. Where `tight` leaves open what nobody measured, a run under a limit decides."""
    if prediction["verdict"] != "tight":
        return prediction["verdict"]
    return "fits_with_retries" if prediction["retries"] else "fits"


def planned(row, dsplan, hardware):
    """The two lines of one row: the limits, and dsplan's verdict under each."""
    free = predict(dsplan, row, ["--hardware", hardware])
    if free["memory"]["peak"] is None:
        raise Refused("its peak is not predicted")
    beside = free["context_bytes"] + free["communicators_bytes"] + free["reserve_bytes"]
    predicted = free["memory"]["peak"]["reserved"]
    for factor in FACTORS:
        limit = limit_of(predicted, factor)
        # The allocator may have what the capacity leaves beside context and communicators: here exactly the limit.
        under = predict(dsplan, row, ["--hardware", hardware, "--capacity", f"{limit + beside}B"])
        yield {"name": row.name, "predicted_bytes": predicted, "limit_bytes": limit, "factor_permille": factor,
               "predicted": sharp(under)}


def make_plan(arguments, dsplan):
    lines, bad = [], 0
    rows = configuration.rows(arguments.rows or row_files())
    for row in rows.values():
        if not row.verdict or not re.search(arguments.only, row.name):
            continue
        try:
            lines += planned(row, dsplan, arguments.hardware)
        except Refused as refusal:
            print(f"{row.name}: {refusal}", file=sys.stderr)
            bad += 1
    write_json(arguments.plan, {"dsplan": 1, "kind": "verdict_plan", "source": "tools/frameworks/verdicts.py",
                                "made": now(), "lines": lines})
    for line in lines:
        print(f"{line['name']:44} {line['factor_permille']:5} {line['limit_bytes']:14} {line['predicted']}")
    return bad


def key(line):
    return line["name"], line["factor_permille"]


def tasks_of(lines, arguments):
    rows = configuration.rows(arguments.rows or row_files())
    for line in lines:
        value = dict(rows[line["name"]].value, name=f"{line['name']}-{line['factor_permille']}", snapshot=False,
                     limit_bytes=line["limit_bytes"])
        task = runner.Task(value, arguments.out, arguments.device)
        task.line = line
        yield task


class Verdicts:
    """DIR/verdicts.json, rewritten after each run."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "verdicts.json")
        self.rows = []
        self.environment = environment()
        try:
            with open(self.path, encoding="utf-8") as file:
                before = json.load(file)
            self.rows, self.environment = before["rows"], before["environment"]
        except (OSError, ValueError, KeyError):
            pass

    def has(self, line):
        return any(key(row) == key(line) and row["limit_bytes"] == line["limit_bytes"] for row in self.rows)

    def add(self, task):
        outcome = task.result["outcome"]
        print(f"{task.name:44} {task.line['predicted']:18} {outcome:14} retries {task.result.get('retries')} "
              f"{task.seconds:6.1f} s", flush=True)
        if outcome not in ("ran", "out_of_memory"):
            return
        self.rows = [row for row in self.rows if key(row) != key(task.line)]
        self.rows.append({**task.line, "measured": outcome, "retries": task.result.get("retries")})
        self.take_environment(task.path())
        write_json(self.path, {"schema": "dsplan.verdicts/1", "source": "tools/frameworks/verdicts.py",
                               "environment": self.environment, "rows": self.rows})

    def take_environment(self, path):
        """The device's, as the run saw it; the limit stands in each row."""
        try:
            with open(path, encoding="utf-8") as file:
                self.environment = {**json.load(file)["environment"], "limit_bytes": None}
        except (OSError, ValueError, KeyError):
            pass


def measured_of(row):
    if row["measured"] != "ran":
        return "out_of_memory"
    return "ran with retries" if row["retries"] else "ran"


def confusion(rows):
    """counts[predicted][measured]."""
    counts = {predicted: {measured: 0 for measured in MEASURED} for predicted in PREDICTED}
    for row in rows:
        counts[row["predicted"]][measured_of(row)] += 1
    return counts


def show(rows):
    counts = confusion(rows)
    print(f"{'predicted':20}" + "".join(f"{measured:>18}" for measured in MEASURED))
    for predicted in PREDICTED:
        print(f"{predicted:20}" + "".join(f"{counts[predicted][measured]:18}" for measured in MEASURED))
    wrong = sum(counts[predicted][measured] for i, predicted in enumerate(PREDICTED)
                for j, measured in enumerate(MEASURED) if i != j)
    print(f"{len(rows)} runs, {wrong} against their verdict")
    return wrong


def measure(arguments):
    with open(arguments.plan, encoding="utf-8") as file:
        lines = json.load(file)["lines"]
    lines = [line for line in lines if re.search(arguments.only, line["name"])]
    os.makedirs(arguments.out, exist_ok=True)
    verdicts = Verdicts(arguments.out)
    open_lines = [line for line in lines if arguments.again or not verdicts.has(line)]
    done, left = runner.run(list(tasks_of(open_lines, arguments)), arguments.timeout_s, arguments.budget_s,
                            report=verdicts.add)
    errors = sum(task.result["outcome"] == "error" for task in done)
    wrong = show(verdicts.rows)
    print(f"finding: {len(lines)} planned, {len(done)} run now, {wrong} against their verdict, {errors} in error, "
          f"{len(left)} left")
    return WRONG if wrong else 1 if errors else TIME_IS_OVER if left else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--plan", required=True)
    parser.add_argument("--dsplan")
    parser.add_argument("--hardware", default="h200-sxm")
    parser.add_argument("--out")
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda")
    parser.add_argument("--rows", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--budget-s", type=float, default=540)
    parser.add_argument("--timeout-s", type=float, default=120)
    arguments = parser.parse_args()
    dsplan = binary(arguments.dsplan)
    if arguments.out is None and dsplan is None:
        print("--dsplan BINARY makes a plan, --out DIR runs one", file=sys.stderr)
        return 2
    if arguments.out is None or not os.path.exists(arguments.plan):
        if dsplan is None:
            print(f"{arguments.plan} is not there, and no dsplan to make it", file=sys.stderr)
            return 2
        bad = make_plan(arguments, dsplan)
        if arguments.out is None:
            return 1 if bad else 0
    return measure(arguments)


if __name__ == "__main__":
    sys.exit(main())
