"""DeepSpeed's operators, compiled before the first job that needs one: a job has seconds, a compiler may take minutes.

torch holds a folder by a file "lock" in it, and whoever finds one waits for ever. A compiler that was killed leaves its
lock there; one in whose folder no process works any more is taken away."""

import os
import pathlib
import subprocess
import sys
import time

BUILDERS = {"fused_adam": "FusedAdamBuilder", "cpu_adam": "CPUAdamBuilder", "quantizer": "QuantizerBuilder"}
# Machine code of the oldest, and text that a driver compiles for later ones: jobs ask for devices in any order, and a
# build for one of them has nothing for the next.
EVERY_DEVICE = "8.0+PTX"
YOUNG = 60  # Seconds in which a lock is believed: its holder writes the build's file first, and loads the result last.


def needed(jobs):
    found = set()
    for job in jobs:
        if "deepspeed" not in job:
            continue
        zero = job["deepspeed"].get("zero_optimization", {})
        adam = job["deepspeed"].get("optimizer", {})
        on_host = zero.get("offload_optimizer", {}).get("device", "none") != "none"
        if "Adam" in adam.get("type", "") and not adam.get("params", {}).get("torch_adam"):
            found.add("cpu_adam" if on_host else "fused_adam")
            if zero.get("offload_optimizer", {}).get("ratio", 1) < 1:
                found.add("fused_adam")
        if zero.get("zero_quantized_weights") or zero.get("zero_quantized_gradients"):
            found.add("quantizer")
    return sorted(found)


def folders():
    """Where torch builds: one folder for each Python and CUDA, and in it one for each operator."""
    root = pathlib.Path(os.environ.get("TORCH_EXTENSIONS_DIR") or pathlib.Path.home() / ".cache" / "torch_extensions")
    return [path for name in BUILDERS for path in (*root.glob(f"*/{name}"), *root.glob(name))]


def at_work(folder):
    """Whether a process stands in the folder, as ninja and its compilers do."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if pathlib.Path(os.readlink(f"/proc/{entry}/cwd")) == folder.resolve():
                    return True
            except OSError:
                pass
    return False


def forget_stale_locks():
    for folder in folders():
        lock = folder / "lock"
        if lock.exists() and time.time() - lock.stat().st_mtime > YOUNG and not at_work(folder):
            print(f"{lock}: left by a compiler that was killed; it goes", file=sys.stderr)
            lock.unlink(missing_ok=True)


def build(jobs):
    """Each in a process of its own, since loading one uses the device."""
    os.environ["TORCH_CUDA_ARCH_LIST"] = EVERY_DEVICE
    wanted = needed(jobs)
    if wanted:
        forget_stale_locks()
    for name in wanted:
        code = f"from deepspeed.ops.op_builder import {BUILDERS[name]} as b; b().load(verbose=False)"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if told.returncode != 0:
            print(f"{name} is not built; what needs it will fail: {told.stderr[-300:]}", file=sys.stderr)
