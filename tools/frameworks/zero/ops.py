"""DeepSpeed's compiled operators: built once where there is a compiler, within a time limit, and remembered either way.
A process that is killed while torch builds leaves a lock behind that others wait for without end; hence our own lock.

    ops.py      builds all of them side by side, for the GPU; always exit code 0
"""

import concurrent.futures
import fcntl
import os
import subprocess
import sys
import tempfile

BUILD = """import torch
from deepspeed.accelerator import get_accelerator
if get_accelerator().device_name() == "cuda" and not torch.cuda.is_available():
    raise SystemExit("there is no GPU to compile for")
get_accelerator().create_op_builder({builder!r}).load()"""


def limit_s():
    """How long a build may take. On the CPU nothing is compiled unless that is asked for."""
    default = "0" if os.environ.get("DS_ACCELERATOR") == "cpu" else "240"
    return int(os.environ.get("DSPLAN_BUILD_SECONDS", default))


def folder():
    """Where torch keeps what it builds: below TORCH_EXTENSIONS_DIR, apart for each kind of device, since an operator
    has one name for all of them."""
    base = os.environ.setdefault("DSPLAN_EXTENSIONS", os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.join(
        tempfile.gettempdir(), "dsplan-extensions"))
    path = os.environ["TORCH_EXTENSIONS_DIR"] = os.path.join(base, os.environ.get("DS_ACCELERATOR", "cuda"))
    os.makedirs(path, exist_ok=True)
    bin_folder = os.path.dirname(sys.executable)  # Where ninja is when it came with pip.
    if bin_folder not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = bin_folder + os.pathsep + os.environ.get("PATH", "")
    return path


def why_not(builder):
    """None if `builder` (FusedAdamBuilder) can be loaded here, else the reason. The first to ask builds it."""
    name = OPERATORS[builder]
    remembered = os.path.join(folder(), name + ".txt")
    with open(remembered + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Ends with the process.
        if os.path.exists(remembered):
            with open(remembered, encoding="utf-8") as file:
                return file.read().strip() or None
        if not limit_s():
            return f"{builder}: nothing is compiled without DSPLAN_BUILD_SECONDS"
        stale = os.path.join(folder(), name, "lock")
        if os.path.exists(stale):
            os.remove(stale)
        reason = built(builder)
        with open(remembered, "w", encoding="utf-8") as file:
            file.write(reason or "")
        return reason


def built(builder):
    child = subprocess.Popen([sys.executable, "-c", BUILD.format(builder=builder)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    try:
        _, errors = child.communicate(timeout=limit_s())
    except subprocess.TimeoutExpired:
        child.kill()  # Compilers that it started come to their own end.
        child.stderr.close()
        child.wait()
        return f"{builder} was not built within {limit_s()} s"
    if child.returncode == 0:
        return None
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    return f"{builder}: " + (lines[-1] if lines else f"exit code {child.returncode}")[:600]


def ahead():
    """Builds all of them side by side, before anything is measured."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda")  # Which DeepSpeed would not choose where it sees no GPU.
    with concurrent.futures.ThreadPoolExecutor(len(OPERATORS)) as pool:
        reasons = dict(zip(OPERATORS, pool.map(why_not, OPERATORS)))
    for builder, reason in reasons.items():
        print(reason or f"{builder} is ready", flush=True)
    print(f"finding: {sum(not reason for reason in reasons.values())} of {len(reasons)} operators compiled")


OPERATORS = {"FusedAdamBuilder": "fused_adam", "CPUAdamBuilder": "cpu_adam", "AsyncIOBuilder": "async_io"}

if __name__ == "__main__":
    ahead()
