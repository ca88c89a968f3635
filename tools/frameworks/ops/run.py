"""Runs every operator of the catalogue, and every optimizer step, alone on a GPU and writes what PyTorch's allocator was
asked for: `dsplan.operator_runs/1`, described in docs/receipts.md.

    python tools/frameworks/ops OUT [--device cuda|fake|simulated] [--seconds N] [--only NAME...]

The cases are those of tools/oracles (operators_cases.py, optimizers.py). On cuda the allocator's own history is read, so
that what kernels allocate inside is seen and in its order; on fake the dispatcher is asked, as the oracle does; simulated
reads the fake dispatcher's log as if it were such a history (no GPU needed for either). The cases run in a second
process. What a case throws is recorded and the run goes on; if the process dies or hangs, another one takes up behind the
case that did it. Stopped by `--seconds`, it writes what there is with "complete": false; the same command again goes on
where it stopped (OUT.part holds the lines so far).
"""
import argparse
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
MOST_DEATHS = 60


def arguments(words):
    parser = argparse.ArgumentParser(prog="tools/frameworks/ops", description=__doc__.split("\n\n")[0])
    parser.add_argument("out")
    parser.add_argument("--device", choices=("cuda", "fake", "simulated"), default="cuda")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--patience", type=float, default=60, help="seconds after which a silent case is given up")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="operators; \"optimizers\" for the steps")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


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


def supervise(said):
    part = said.out + ".part"
    deadline = time.monotonic() + said.seconds
    for _ in range(MOST_DEATHS):
        if os.path.exists(part + ".now"):
            os.remove(part + ".now")
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        command = [sys.executable, HERE, said.out, "--worker", "--device", said.device, "--seconds", str(left)]
        process = subprocess.Popen(command + (["--only"] + said.only if said.only else []))
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
    for line in lines_of(said.out + ".part"):
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
    with open(said.out + ".new", "w", encoding="utf-8") as file:
        head = {"schema": SCHEMA, "source": "tools/frameworks/ops", "device": said.device, "complete": complete, **header,
                "failed": failed}
        file.write(json.dumps(head)[:-1])
        for name, rows in (("cases", cases), ("optimizers", optimizers)):
            file.write(f',\n"{name}": [\n' + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]")
        file.write("}\n")
    os.replace(said.out + ".new", said.out)
    print(f"{said.out}: {len(cases)} cases, {len(optimizers)} optimizer steps, {len(failed)} failed"
          f"{'' if complete else ', not complete'}")
    for row in failed[:20]:
        print(f"  {row['case']}: {row['error'][:200]}")


def main(words=None):
    said = arguments(sys.argv[1:] if words is None else words)
    os.makedirs(os.path.dirname(os.path.abspath(said.out)), exist_ok=True)
    if said.worker:
        from ops.worker import work
        return work(said)
    complete = supervise(said)
    assemble(said, complete)
    return 0 if complete else TIME_IS_OVER
