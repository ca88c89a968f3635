"""Runs every operator of the catalogue, and every optimizer step, alone on a GPU and writes what PyTorch's allocator
was asked for: `dsplan.operator_runs/1`, described in docs/receipts.md.

    python tools/frameworks/ops --out FOLDER [--device cuda|fake|simulated] [--seconds N] [--part I/N] [--optimizers]
                                [--only NAME...] [--tiny]

The cases are those of tools/oracles (operators_cases.py, optimizers.py). On cuda the allocator's own history is read,
so that what kernels allocate inside is seen and in its order; on fake the dispatcher is asked, as the oracle does;
simulated reads the fake dispatcher's log as if it were such a history (no GPU needed for either). The cases run in a
second process. What a case throws is recorded and the run goes on; if the process dies or hangs, another one takes up
behind the case that did it. FOLDER gets operators.json, with --part every N-th case of operators-IofN.json, with
--optimizers the steps alone in operators-optimizers.json. Stopped by `--seconds`, it writes what there is with
"complete": false; the same command again goes on where it stopped (the file's .part holds the lines so far). The last
line begins with "finding:". Exit codes: 0 all had its turn, 3 stopped before the end, 77 there is no torch, 1 nothing
was measured.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMEWORKS = os.path.dirname(HERE)
ORACLES = os.path.join(os.path.dirname(FRAMEWORKS), "oracles")
SCHEMA = "dsplan.operator_runs/1"
TIME_IS_OVER = 3
CANNOT_RUN = 77
MOST_DEATHS = 60


TINY = ["neg", "layer_norm"]


def arguments(words):
    parser = argparse.ArgumentParser(prog="tools/frameworks/ops", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, metavar="FOLDER")
    parser.add_argument("--device", choices=("cuda", "cpu", "fake", "simulated"), default="cuda",
                        help="cpu is fake: nothing is computed")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--patience", type=float, default=60, help="seconds after which a silent case is given up")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="I/N")
    parser.add_argument("--optimizers", action="store_true", help="the optimizer steps instead of the operators")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="operators")
    parser.add_argument("--tiny", action="store_true", help="a few operators, to try the tool out")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    said = parser.parse_args(words)
    said.device = "fake" if said.device == "cpu" else said.device
    said.only = said.only or (TINY if said.tiny else [])
    return said


def part(text):
    """"2/4": the second of four."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text} is not like 1/4")
    return int(index), int(count)


def file_of(said):
    if said.optimizers:
        return os.path.join(said.out, "operators-optimizers.json")
    name = "operators" if said.part[1] == 1 else f"operators-{said.part[0]}of{said.part[1]}"
    return os.path.join(said.out, name + ".json")


def lines_of(path):
    """What is in the part file; a line that was cut short by a death is left out."""
    lines = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    continue
    return lines


def keys_of(path):
    return {line["key"] for line in lines_of(path) if "key" in line}


def append(path, line):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def in_progress(path):
    try:
        with open(path + ".now", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def blame(part, why):
    """The case that was running when the process ended gets an error of its own, so that it is not tried again."""
    key = in_progress(part)
    if key and key not in keys_of(part):
        append(part, {"key": key, "error": why})
        print(f"{key}: {why}", file=sys.stderr)
        return True
    return False


def watch(process, part, deadline, patience):
    """The process's exit code, or None when it was stopped because nothing came for too long."""
    seen, since = None, time.monotonic()
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            pass
        now = in_progress(part)
        if now != seen:
            seen, since = now, time.monotonic()
        # Importing torch and the first kernels take their time.
        if time.monotonic() - since > (patience if seen else patience + 240) or time.monotonic() > deadline + patience:
            process.kill()
            process.wait()
            return None


def worker_command(said, seconds):
    command = [sys.executable, HERE, "--worker", "--out", said.out, "--device", said.device, "--seconds", str(seconds),
               "--part", f"{said.part[0]}/{said.part[1]}"]
    command += ["--optimizers"] * said.optimizers + ["--tiny"] * said.tiny
    return command + (["--only"] + said.only if said.only else [])


def supervise(said):
    part = file_of(said) + ".part"
    deadline = time.monotonic() + said.seconds
    for _ in range(MOST_DEATHS):
        if os.path.exists(part + ".now"):
            os.remove(part + ".now")
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        process = subprocess.Popen(worker_command(said, left))
        code = watch(process, part, deadline, said.patience)
        if code in (0, TIME_IS_OVER):
            return code == 0
        why = "gave no sign of life" if code is None else f"the process ended with {code}"
        if not blame(part, why) and in_progress(part) == "":
            print(f"before the first case: {why}", file=sys.stderr)
            return False
    return False


def assemble(said, complete):
    header, cases, optimizers, failed, seen = {}, [], [], [], set()
    out = file_of(said)
    for line in lines_of(out + ".part"):
        if "header" in line:
            header = line["header"]
        elif "error" in line:
            failed.append({"case": line["key"], "error": line["error"]})
        else:
            # Variants of an operator that look the same from outside need to stand there once.
            text = json.dumps(line["case"])
            if text not in seen:
                seen.add(text)
                (optimizers if line["key"].startswith("optimizers/") else cases).append(line["case"])
    with open(out + ".new", "w", encoding="utf-8") as file:
        head = {"schema": SCHEMA, "source": "tools/frameworks/ops", "device": said.device, "complete": complete,
                **header, "failed": failed}
        file.write(json.dumps(head)[:-1])
        for name, rows in (("cases", cases), ("optimizers", optimizers)):
            file.write(f',\n"{name}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]")
        file.write("}\n")
    os.replace(out + ".new", out)
    for row in failed[:20]:
        print(f"  {row['case']}: {row['error'][:200]}")
    measured = f"{len(optimizers)} optimizer steps" if said.optimizers else f"{len(cases)} operator cases"
    print(f"finding: {measured} measured, {len(failed)} failed{'' if complete else ', stopped before the end'}")
    if not complete:
        return TIME_IS_OVER
    return 0 if cases or optimizers else 1


def main(words=None):
    said = arguments(sys.argv[1:] if words is None else words)
    if importlib.util.find_spec("torch") is None:
        print("finding: torch is not installed")
        return CANNOT_RUN
    os.makedirs(said.out, exist_ok=True)
    if said.worker:
        from ops.worker import work
        return work(said)
    return assemble(said, supervise(said))
