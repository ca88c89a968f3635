"""Records snapshots with their whole history of real runs on a GPU, and drives dsplan's allocator traces through the real
allocator.

    python tools/frameworks/snapshots FOLDER [--seconds N] [--only NAME...] [--dsplan PROGRAM] [--jobs N]

Every run is a process of its own, since the allocator reads its settings once. FOLDER gets NAME.snapshot.pickle.xz
(torch.cuda.memory._snapshot(), recorded from the first allocation on, without stacks; unpack it for `dsplan replay`), of
a trace NAME.trace as it was driven and NAME.measured.csv, which `dsplan replay NAME.trace` must print, and index.json:
`dsplan.snapshots/1`, described in docs/receipts.md. With --dsplan both are replayed at once and the index has the
outcome. What fails is recorded; what is there already is not run again; `--seconds` stops before the next run.
"""
import argparse
import glob
import json
import lzma
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
TRACES = os.path.join(ROOT, "tests", "data", "allocator")
SCHEMA = "dsplan.snapshots/1"
TIME_IS_OVER = 3
MOST_SECONDS = 150  # Of one run.


def arguments(words):
    parser = argparse.ArgumentParser(prog="tools/frameworks/snapshots", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the tool out")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--dsplan", metavar="PROGRAM")
    parser.add_argument("--jobs", type=int, default=3, help="processes at a time")
    parser.add_argument("--worker", metavar="NAME", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def names(said):
    from snapshots.table import RUNS
    traces = sorted(os.path.basename(path)[:-len(".trace")] for path in glob.glob(os.path.join(TRACES, "*.trace")))
    # What fills the device comes last and alone.
    runs = [run.name for run in RUNS if not run.alone] + ["trace-" + name for name in traces] + \
        [run.name for run in RUNS if run.alone]
    unknown = set(said.only) - set(runs)
    if unknown:
        raise SystemExit(f"no run is called {', '.join(sorted(unknown))}; there are {', '.join(runs)}")
    return [name for name in runs if not said.only or name in said.only]


def conf_of(name):
    if name.startswith("trace-"):
        from snapshots.traces import Trace
        with open(os.path.join(TRACES, name[len("trace-"):] + ".trace"), encoding="utf-8") as file:
            return Trace(file.read()).conf
    from snapshots.table import run_named
    return run_named(name).conf


def is_alone(name):
    from snapshots.table import RUNS
    return any(run.name == name and run.alone for run in RUNS)


def row_path(said, name):
    return os.path.join(said.folder, name + ".row.json")


def write_row(said, name, row):
    with open(row_path(said, name) + ".new", "w", encoding="utf-8") as file:
        json.dump(row, file, indent=1)
    os.replace(row_path(said, name) + ".new", row_path(said, name))


def start(said, name):
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=conf_of(name))
    environment.pop("PYTORCH_ALLOC_CONF", None)
    if not environment["PYTORCH_CUDA_ALLOC_CONF"]:
        del environment["PYTORCH_CUDA_ALLOC_CONF"]
    log = open(os.path.join(said.folder, name + ".log"), "w", encoding="utf-8")
    command = [sys.executable, HERE, said.folder, "--worker", name, "--device", said.device]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def last_words(said, name):
    try:
        with open(os.path.join(said.folder, name + ".log"), encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
            return lines[-1][:300] if lines else "it said nothing"
    except OSError:
        return "it said nothing"


def finish(said, name, why):
    """Once the process is gone: a row there must be, and its log goes if all is well."""
    if not os.path.exists(row_path(said, name)):
        write_row(said, name, {"name": name, "outcome": "error", "message": f"{why}: {last_words(said, name)}"})
    with open(row_path(said, name), encoding="utf-8") as file:
        row = json.load(file)
    if said.dsplan and "replay" not in row and row["outcome"] == "ran":
        row["replay"] = replay(said, row)
        write_row(said, name, row)
    if row["outcome"] == "ran":
        os.remove(os.path.join(said.folder, name + ".log"))
    message = row.get("message") or row.get("difference") or ""
    print(f"{name}: {row['outcome']} {message} {row.get('replay', {}).get('outcome', '')}".rstrip(), flush=True)


def run_dsplan(said, path):
    return subprocess.run([said.dsplan, "replay", path], capture_output=True, text=True, timeout=300)


def replay(said, row):
    """What `dsplan replay` says of the files of a row."""
    if "file" not in row:
        return {"outcome": "nothing", "text": ""}
    path = os.path.join(said.folder, row["file"])
    unpacked = None
    try:
        if path.endswith(".xz"):
            unpacked = path[:-len(".xz")]
            with lzma.open(path) as packed, open(unpacked, "wb") as plain:
                plain.write(packed.read())
        done = run_dsplan(said, unpacked or path)
        text = done.stdout if done.returncode in (0, 4) else done.stderr
        outcome = {0: "agrees", 4: "differs"}.get(done.returncode, "refused")
        if outcome == "agrees" and "measured" in row:
            from snapshots.traces import first_difference
            with open(os.path.join(said.folder, row["measured"]), encoding="utf-8") as file:
                text = first_difference(file.read(), done.stdout)
            outcome = "differs" if text else "agrees"
        return {"outcome": outcome, "text": "" if outcome == "agrees" else (text or "")[:2000]}
    except (OSError, subprocess.SubprocessError) as error:
        return {"outcome": "error", "text": str(error)[:300]}
    finally:
        if unpacked and os.path.exists(unpacked):
            os.remove(unpacked)


def supervise(said, todo):
    """Whether everything had its turn."""
    ends = time.monotonic() + said.seconds
    todo = [name for name in todo if not os.path.exists(row_path(said, name))]
    running = {}
    while todo or running:
        while todo and len(running) < said.jobs and time.monotonic() < ends:
            if running and (is_alone(todo[0]) or any(is_alone(name) for name in running)):
                break
            name = todo.pop(0)
            running[name] = (start(said, name), time.monotonic())
        if not running:
            return False
        time.sleep(0.1)
        for name, (process, began) in list(running.items()):
            late = time.monotonic() - began > MOST_SECONDS
            if late:
                process.kill()
                process.wait()
            if process.poll() is not None:
                del running[name]
                finish(said, name, "took too long" if late else f"the process ended with {process.returncode}")
    return True


def assemble(said, todo, complete):
    rows, about = [], None
    for name in todo:
        if os.path.exists(row_path(said, name)):
            with open(row_path(said, name), encoding="utf-8") as file:
                row = json.load(file)
            about = row.pop("environment", None) or about
            rows.append(row)
    index = {"schema": SCHEMA, "source": "tools/frameworks/snapshots", "device": said.device, "complete": complete,
             "environment": about, "rows": rows}
    with open(os.path.join(said.folder, "index.json"), "w", encoding="utf-8") as file:
        json.dump(index, file, indent=1)
        file.write("\n")
    ran = [row for row in rows if row["outcome"] == "ran"]
    differ = [row["name"] for row in ran if row.get("comparable") and row.get("difference")]
    print(f"{said.folder}: {len(ran)} of {len(todo)} ran; traces unlike expected: {', '.join(differ) or 'none'}")


def main(words=None):
    said = arguments(sys.argv[1:] if words is None else words)
    os.makedirs(said.folder, exist_ok=True)
    if said.worker:
        from snapshots.worker import work
        return work(said)
    todo = names(said)
    complete = supervise(said, todo)
    assemble(said, todo, complete)
    return 0 if complete else TIME_IS_OVER
