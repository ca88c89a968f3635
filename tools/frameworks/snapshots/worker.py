"""One run in a process of its own: the snapshot or the trace's counters, and the row of the index."""
import importlib.util
import os
import sys
import traceback

from common.device import device_of, prepare, write_snapshot
from common.environment import environment

from .run import ROOT, TRACES, write_row


def counters(device):
    now, peaks = device.counters(), device.peaks()
    return {"end": {key: value for key, value in now.items() if key != "process"}, "peak": peaks,
            "retries": device.retries()}


def recorded(said, run):
    import torch
    from . import drives
    device = device_of(said.device)
    world = drives.World(device)
    if device.counters()["reserved"] not in (0, None):
        raise RuntimeError("the allocator was in use before the history began")
    row = {"name": run.name, "outcome": "ran", "about": run.about, "conf": run.conf, "limit_bytes": None,
           "torch": torch.__version__, "environment": environment(device)}
    if run.limit and world.cuda:
        row["limit_bytes"] = device.limit(run.limit)
    device.start_snapshot()
    words = dict(run.words)
    if "dtype" in words:
        words["dtype"] = {"bf16": torch.bfloat16}[words["dtype"]]
    torch.manual_seed(0)
    try:
        with device.running():
            getattr(drives, run.drive)(world, **words)
        if run.fails and world.cuda and world.failures == 0:
            raise RuntimeError("memory did not run out")
        device.synchronize()
    except Exception as error:  # Half a run is a history too.
        traceback.print_exc()
        row.update(outcome="error", message=text_of(error))
    row.update(counters(device), failures=world.failures)
    row.update(dump(said, run.name, device))
    return row


def text_of(error):
    return f"{type(error).__name__}: {error}".split("\n")[0][:400]


def made_up_snapshot():
    """The one of tools/oracles/snapshots.py, which has the name of this package."""
    path = os.path.join(ROOT, "tools", "oracles", "snapshots.py")
    spec = importlib.util.spec_from_file_location("made_up_snapshots", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.snapshot()


def dump(said, name, device):
    """Writes the snapshot; on the CPU one that was made up, so that all after it can be tried out."""
    if device.name == "cuda":
        import torch
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
    else:
        snapshot = made_up_snapshot()
    file = write_snapshot(snapshot, said.folder, name)
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    return {"file": file, "entries": len(entries), "bytes": os.path.getsize(os.path.join(said.folder, file)),
            "ooms": sum(entry["action"] == "oom" for entry in entries)}


def driven(said, name):
    import torch
    from . import traces
    path = os.path.join(TRACES, name[len("trace-"):])
    with open(path + ".trace", encoding="utf-8") as file:
        text = file.read()
    with open(path + ".expected.csv", encoding="utf-8") as file:
        expected = file.read()
    if said.device != "cuda":
        raise RuntimeError("traces are driven on a GPU")
    device = device_of("cuda")
    about = {"name": name, "outcome": "ran", "torch": torch.__version__, "environment": environment(device)}
    patient = "DSPLAN_GATE_SECONDS" in os.environ
    allocator = traces.CudaAllocator(float(os.environ.get("DSPLAN_GATE_SECONDS", 0.25)))
    try:
        row, as_driven, measured = traces.drive(text, expected, allocator)
    except traces.Late:
        if patient:
            raise
        # Counters cannot be set back: only a fresh process can try again.
        os.environ["DSPLAN_GATE_SECONDS"] = "3"
        os.execv(sys.executable, [sys.executable] + sys.argv)
    with open(os.path.join(said.folder, name + ".trace"), "w", encoding="utf-8") as file:
        file.write(as_driven)
    with open(os.path.join(said.folder, name + ".measured.csv"), "w", encoding="utf-8") as file:
        file.write(measured)
    return {**about, **row, "file": name + ".trace", "measured": name + ".measured.csv"}


def work(said):
    name = said.worker
    row = {"name": name}
    try:
        prepare(said.device)
        if name.startswith("trace-"):
            row = driven(said, name)
        else:
            from .table import run_named
            row = recorded(said, run_named(name))
    except Exception as error:
        traceback.print_exc()
        row = {"name": name, "outcome": "error", "message": text_of(error)}
    write_row(said, name, row)
    return 0
