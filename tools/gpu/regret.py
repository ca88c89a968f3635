#!/usr/bin/env python3
"""Carries out plans of one search, and says how far its order is theirs: is the plan that dsplan chose the fastest?

  tools/gpu/regret.py --dsplan build/release/dsplan --backend host --calibrate
  tools/gpu/regret.py --dsplan build/release/dsplan --backend cuda --calibrate --out regret.json -- gpt2 --seq 1024

One `dsplan plan` over a space (what stands behind "--", else a tiny model's); then every plan of that space that fits,
by its estimate. The five fastest and five random others are carried out by `dsplan run`. Reported:

  regret       how much longer a token takes with the chosen plan than with the fastest of those that were run
  correlation  of the ranks by estimate and by measurement (Spearman)
  error        the estimates' own, median

Wall times are reported and never judged. Exit code: 0 all ran as predicted in bytes, 4 one did not, 5 too few plans fit,
6 no such device, 124 out of time, else what dsplan said. Standard library only.
"""
import argparse
import itertools
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SPACE = ("models/tiny-llama.json --dtype fp32 --seq 128 --gpus 2 --global-batch 16 --vary zero_stage=0,1,2,3 "
         "--vary micro_batch=1,2,4,8 --vary checkpoint=none,full,every:2 --vary tp=1,2 --vary offload=none "
         "--vary reduce_bucket_size=500000000,50000")


class Said(Exception):
    """dsplan ended with another code than was hoped for."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def ask(given, words, good=(0,)):
    """(exit code, standard output) of dsplan."""
    left = given.end - time.monotonic()
    try:
        done = subprocess.run([given.dsplan, *words], capture_output=True, text=True, timeout=max(1, left), check=False,
                              cwd=ROOT)
    except subprocess.TimeoutExpired:
        raise Said(124, "out of time") from None
    if done.returncode not in good:
        raise Said(done.returncode, (done.stderr + done.stdout).strip() or f"exit code {done.returncode}")
    return done.returncode, done.stdout


def points(search):
    """Every combination of the search's space, as (axis, value) pairs; without what was given as one value."""
    axes = []
    for axis, said in search["space"].items():
        if not isinstance(said, dict) or not said.get("values"):
            continue  # The global batch, and what else is no axis.
        if said["origin"] != "given" or said["reason"] == "--vary":
            axes.append([(axis, str(value)) for value in said["values"]])
    return [tuple(point) for point in itertools.product(*axes)]


def without_vary(words):
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == "--vary":
            skip = True
        elif not word.startswith("--vary="):
            kept.append(word)
    return kept


def plan_of(given, words, point, path):
    """Writes the plan of one point, and says its estimate: seconds for each token. None: it does not fit."""
    vary = [word for axis, value in point for word in ("--vary", f"{axis}={value}")]
    code, _ = ask(given, ["plan", *words, *vary, "--emit", "plan", "--out", str(path)], good=(0, 2, 5))
    if code != 0:
        return None
    plan = json.loads(path.read_text(encoding="utf-8"))
    return plan["time"]["total"] if plan.get("time") else None


def tokens_of(search):
    settings = search["chosen"]["settings"]
    return settings["micro_batch"] * settings["grad_accum"] * settings["seq"] * search["chosen"]["dp"]


def measured(given, path):
    """Seconds of a step in steady state: the slowest rank's, the median over several runs."""
    receipt = path.with_suffix(".receipt.json")
    worst, steps = 0, []
    for _ in range(given.repeats):
        code, text = ask(given, ["run", str(path), "--backend", given.backend, "--out", str(receipt)], good=(0, 4))
        worst = max(worst, code)
        samples = json.loads(receipt.read_text(encoding="utf-8"))["samples"]
        of_ranks = [sample["step_ns"] for sample in samples if sample["phase"] == "steady"]
        if not of_ranks:
            raise Said(1, f"{path}: no step was timed\n{text}")
        steps.append(max(of_ranks))
    return worst, statistics.median(steps) / 1e9


def ranks(values):
    """From 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in range(at, end + 1):
            result[order[place]] = (at + end) / 2 + 1
        at = end + 1
    return result


def spearman(a, b):
    """Pearson's correlation of the ranks; None where one side has no order."""
    x, y = ranks(a), ranks(b)
    mean = (len(x) + 1) / 2
    spread = lambda values: sum((value - mean) ** 2 for value in values)  # noqa: E731
    if spread(x) == 0 or spread(y) == 0:
        return None
    return sum((i - mean) * (j - mean) for i, j in zip(x, y)) / (spread(x) * spread(y)) ** 0.5


def judge(rows):
    """What the rows say together; the first is the plan that was chosen."""
    best = min(row["measured_s"] for row in rows)
    return {"plans": len(rows), "regret": rows[0]["measured_s"] / best - 1,
            "rank_correlation": spearman([row["estimated_s"] for row in rows], [row["measured_s"] for row in rows]),
            "median_error": statistics.median(abs(row["estimated_s"] / row["measured_s"] - 1) for row in rows)}


def calibrated(given, folder):
    path = pathlib.Path(folder) / "calibrated.json"
    ask(given, ["calibrate", "--backend", given.backend, "--out", str(path), *(["--quick"] if given.quick else [])])
    return path


def investigate(given, folder):
    words = given.words
    hardware = given.hardware or (calibrated(given, folder) if given.calibrate else None)
    if hardware:
        words = [*words, "--hardware", str(hardware)]
    search = json.loads(ask(given, ["plan", *words, "--format", "json"])[1])
    if not search.get("chosen"):
        raise Said(5, "no plan of the space fits")
    if not search["space"].get("global_batch"):
        raise Said(2, "a space without --global-batch has steps of different sizes")
    fixed = without_vary(words)
    chance = random.Random(given.seed)
    all_points = points(search)
    if len(all_points) > given.most:
        all_points = chance.sample(all_points, given.most)
    chosen = search["chosen"]["settings"]
    mine = tuple((axis, str(chosen[axis])) for axis, _ in (all_points[0] if all_points else ()))
    found = {}
    for point in [mine, *(point for point in all_points if point != mine)]:
        path = pathlib.Path(folder) / f"plan-{len(found)}.json"
        seconds = plan_of(given, fixed, point, path)
        if seconds is not None:
            found[point] = (seconds, path)
    if len(found) < 3 or mine not in found:
        raise Said(5, f"{len(found)} plans fit; that is too few to order")
    by_estimate = sorted((point for point in found if point != mine), key=lambda point: found[point][0])
    others = by_estimate[given.top - 1:]
    picked = [mine, *by_estimate[:given.top - 1], *chance.sample(others, min(given.random, len(others)))]
    tokens = tokens_of(search)
    rows, wrong = [], 0
    for point in picked:
        code, seconds = measured(given, found[point][1])
        wrong += code != 0
        name = " ".join(f"{axis}={value}" for axis, value in point)
        rows.append({"plan": name, "estimated_s": found[point][0], "measured_s": seconds,
                     "tokens_per_second": tokens / seconds, "as_predicted": code == 0})
        print(f"{found[point][0] * 1e3:10.2f} ms estimated {seconds * 1e3:10.2f} ms measured  {name}", flush=True)
    first = found[mine][0] <= min(seconds for seconds, _ in found.values()) * (1 + 1e-9)
    return {"backend": given.backend, "fit": len(found), "chosen_has_the_least_estimate": first, "rows": rows,
            **judge(rows)}, wrong


def finding(result, wrong):
    correlation = result["rank_correlation"]
    text = "no order" if correlation is None else f"{correlation:.2f}"
    return (f"finding: {result['plans']} of {result['fit']} plans on {result['backend']}: regret "
            f"{result['regret'] * 100:.1f} %, rank correlation {text}, median error of an estimate "
            f"{result['median_error'] * 100:.0f} %" + (f"; {wrong} differ in bytes" if wrong else "")
            + ("" if result["chosen_has_the_least_estimate"] else "; the chosen one has not the least estimate"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsplan", required=True)
    parser.add_argument("--backend", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--hardware", help="a device of configs/hardware, or a file of `dsplan calibrate`")
    parser.add_argument("--calibrate", action="store_true", help="measure the machine first")
    parser.add_argument("--quick", action="store_true", help="... in a few seconds")
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each plan")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--random", type=int, default=5)
    parser.add_argument("--most", type=int, default=300, help="points of the space that are looked at")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("words", nargs="*", help="of `dsplan plan`: a model and a space")
    given = parser.parse_args()
    given.dsplan = str(pathlib.Path(given.dsplan).absolute())
    given.words = given.words or SPACE.split()
    given.end = time.monotonic() + given.seconds
    try:
        with tempfile.TemporaryDirectory() as folder:
            result, wrong = investigate(given, folder)
    except Said as said:
        print(f"finding: {str(said).splitlines()[-1]}")
        return said.code
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(finding(result, wrong))
    return 4 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
