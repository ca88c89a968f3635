"""Records snapshots with their whole history of real runs on a GPU, and drives dsplan's allocator traces through the
real allocator.

    python tools/frameworks/snapshots --out FOLDER [--kind plain|streams|expandable|retries|allocator] [--part I/N]
                                      [--only NAME...] [--seconds N] [--dsplan PROGRAM] [--jobs N] [--tiny]

Every run is a process of its own, since the allocator reads its settings once. FOLDER gets NAME.snapshot.pickle.xz
(torch.cuda.memory._snapshot(), recorded from the first allocation on, without stacks; unpack it for `dsplan replay`),
of a trace NAME.trace as it was driven and NAME.measured.csv, which `dsplan replay NAME.trace` must print, and
index.json, with --kind and --part index-KIND-IofN.json: `dsplan.snapshots/1`, described in docs/receipts.md. With
--dsplan both are replayed at once and the index has the outcome. What fails is recorded; what is there already is not
run again; `--seconds` stops before the next run. The last line begins with "finding:". Exit codes: 0 all had its turn,
4 something differs (a replay, or a trace's counters), 3 stopped before the end, 77 packages are missing, 1 nothing was
measured.
"""
import argparse
import glob
import importlib.util
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
CANNOT_RUN = 77
MOST_SECONDS = 300  # Of one run: a hung one must not take all the time.


KINDS = ("plain", "streams", "expandable", "retries", "allocator")


def arguments(words):
    parser = argparse.ArgumentParser(prog="tools/frameworks/snapshots", description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, metavar="FOLDER", dest="folder")
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda",
                        help="cpu, of which fake is another name: to try the tool out")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--dsplan", metavar="PROGRAM")
    parser.add_argument("--jobs", type=int, default=3, help="processes at a time")
    parser.add_argument("--tiny", action="store_true", help="one run, to try the tool out")
    parser.add_argument("--worker", metavar="NAME", help=argparse.SUPPRESS)
    said = parser.parse_args(words)
    said.device = "cpu" if said.device == "fake" else said.device
    index, _, count = said.part.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        parser.error(f"--part {said.part} is not like 1/4")
    said.index, said.count = int(index), int(count)
    return said


def index_of(said):
    words = ["index"] + ([said.kind] if said.kind else []) + ([f"{said.index}of{said.count}"] if said.count > 1 else [])
    return os.path.join(said.folder, "-".join(words) + ".json")


def kind_of(name):
    if name.startswith("trace-"):
        return "allocator"
    from snapshots.table import run_named
    run = run_named(name)
    if run.limit or run.fails:
        return "retries"
    if run.drive == "prefetch" or run.words.get("streams"):
        return "streams"
    return "expandable" if "expandable" in run.conf else "plain"


def names(said):
    from snapshots.table import RUNS
    traces = sorted(os.path.basename(path)[:-len(".trace")] for path in glob.glob(os.path.join(TRACES, "*.trace")))
    # What fills the device comes last and alone.
    runs = [run.name for run in RUNS if not run.alone] + ["trace-" + name for name in traces] + \
        [run.name for run in RUNS if run.alone]
    unknown = set(said.only) - set(runs)
    if unknown:
        raise SystemExit(f"no run is called {', '.join(sorted(unknown))}; there are {', '.join(runs)}")
    wanted = [name for name in runs if not said.only or name in said.only]
    wanted = [name for name in wanted if said.kind is None or kind_of(name) == said.kind]
    wanted = [name for at, name in enumerate(wanted) if at % said.count == said.index - 1]
    return wanted[:1] if said.tiny else wanted


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
    command = [sys.executable, HERE, "--out", said.folder, "--worker", name, "--device", said.device]
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
    with open(index_of(said), "w", encoding="utf-8") as file:
        json.dump(index, file, indent=1)
        file.write("\n")
    ran = [row for row in rows if row["outcome"] == "ran"]
    unlike = [row["name"] for row in ran if row.get("comparable") and row.get("difference")]
    differ = [row["name"] for row in ran if row.get("replay", {}).get("outcome") in ("differs", "refused")]
    if unlike or differ:
        print(f"unlike the expected counters: {', '.join(unlike) or 'none'}")
        print(f"not explained: {', '.join(differ) or 'none'}")
    equal = sum(row.get("replay", {}).get("outcome") == "agrees" for row in ran)
    different = sorted(set(unlike + differ))
    words = [f"{len(ran)} of {len(todo)} ran"] + [f"{equal} replayed equal"] * bool(said.dsplan)
    words += [f"differs: {', '.join(different)}"] * bool(different) + ["stopped before the end"] * (not complete)
    print("finding: " + ", ".join(words))
    if different:
        return 4
    return TIME_IS_OVER if not complete else 0 if ran else 1


def main(words=None):
    said = arguments(sys.argv[1:] if words is None else words)
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"finding: {' and '.join(missing)} not installed")
        return CANNOT_RUN
    os.makedirs(said.folder, exist_ok=True)
    if said.worker:
        from snapshots.worker import work
        return work(said)
    todo = names(said)
    return assemble(said, todo, supervise(said, todo))
