#!/usr/bin/env python3
"""The matrix of configurations: matrix_*.json beside this file, measured one after the other.

    matrix.py --out DIR --device cuda|fake|cpu [--rows FILE...] [--only REGEX] [--budget-s 540] [--timeout-s 120]
    matrix.py --check --dsplan BINARY [--most-bytes N]      every row as dsplan predicts it; nothing is measured

A second call with the same DIR goes on where the first one stopped: rows whose receipt says how they ended are passed
over, unless --again. Exit code 0 if no row ended in an error, 3 if time was over before all had their turn.
"""

import argparse
import glob
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from common import configuration, runner
from common.predict import Refused, binary, predict

TIME_IS_OVER = 3
MOST = 120 * 10 ** 9  # Below what an H200 has, with room for wrong predictions.


def row_files():
    return sorted(glob.glob(os.path.join(HERE, "matrix_*.json")))


def chosen(arguments):
    rows = configuration.rows(arguments.rows or row_files())
    return {name: row for name, row in rows.items() if re.search(arguments.only, name)}


def check(rows, dsplan, most):
    """A table of predictions; the number of rows that dsplan refuses or that need too much."""
    bad = 0
    for name, row in rows.items():
        try:
            prediction = predict(dsplan, row, ["--hardware", "h200-sxm"])
        except Refused as refusal:
            print(f"{name}: {refusal}")
            bad += 1
            continue
        peak = prediction["memory"]["peak"]
        if peak is None:
            print(f"{name}: no peak: {[entry for entry in prediction['not_modelled'] if 'peak' in entry['what']]}")
            bad += row.runtime != "deepspeed"  # There are rows of DeepSpeed whose states alone are predicted.
            continue
        fits = peak["reserved"] <= most
        bad += not fits
        print(f"{name:44} {prediction['parameters']['total'] / 1e9:6.2f} B {peak['requested'] / 1e9:8.2f} GB "
              f"{peak['reserved'] / 1e9:8.2f} GB {prediction['verdict']}{'' if fits else '  too much'}")
    print(f"{len(rows)} rows, {bad} bad")
    return bad


def measure(rows, arguments):
    tasks = [runner.Task(row.value, arguments.out, arguments.device, more(arguments)) for row in rows.values()]
    again = [task for task in tasks if arguments.again or not task.done_before()]

    def report(task):
        message = (task.result.get("message") or "").partition("\n")[0][:100]
        print(f"{task.name:44} {task.result['outcome']:14} {task.seconds:6.1f} s  {message}", flush=True)

    done, left = runner.run(again, arguments.timeout_s, arguments.budget_s, report=report)
    errors = sum(task.result["outcome"] == "error" for task in done)
    print(f"finding: {len(tasks)} rows: {len(tasks) - len(again)} measured before, {len(done)} now, {errors} in error, "
          f"{len(left)} left")
    return 1 if errors else TIME_IS_OVER if left else 0


def more(arguments):
    words = ["--extra-steps", str(arguments.extra_steps)]
    if arguments.dsplan:
        words += ["--dsplan", arguments.dsplan]
    return words + (["--snapshot"] if arguments.snapshot else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="receipts")
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda")
    parser.add_argument("--rows", nargs="*", help="matrix files instead of those beside this program")
    parser.add_argument("--only", default="", help="names that match this expression")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--snapshot", action="store_true", help="of every row")
    parser.add_argument("--extra-steps", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=540)
    parser.add_argument("--timeout-s", type=float, default=120)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--dsplan")
    parser.add_argument("--most-bytes", type=int, default=MOST)
    arguments = parser.parse_args()
    rows = chosen(arguments)
    if not rows:
        print(f'no row matches "{arguments.only}"', file=sys.stderr)
        return 2
    if not arguments.check:
        return measure(rows, arguments)
    dsplan = binary(arguments.dsplan)
    if not dsplan:
        print("--check needs --dsplan BINARY", file=sys.stderr)
        return 2
    return 1 if check(rows, dsplan, arguments.most_bytes) else 0


if __name__ == "__main__":
    sys.exit(main())
