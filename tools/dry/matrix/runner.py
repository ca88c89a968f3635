"""Runs jobs, each forked after the imports, and appends one line of JSON per job; what has a line is not run again."""

import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time

from . import model_config, operators, store, worker


def versions():
    import importlib.metadata as metadata
    import torch

    found = {"torch": torch.__version__}
    for name in ("transformers", "peft", "deepspeed", "bitsandbytes"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found


def device_text(job):
    """The device as the dry device's libraries read it, from configs/hardware."""
    told = model_config.hardware(job["device"])
    capability = told["architecture"].removeprefix("sm_")
    extra = told.get("device", {})
    found = {
        "name": extra.get("name", told["name"].upper()),
        "major": capability[:-1],
        "minor": capability[-1],
        "multiprocessors": told["multiprocessors"],
        "context": model_config.CONTEXT,
        "count": 1,
        "memory": job.get("capacity", model_config.ROOMY),
    }
    for key in ("l2_bytes", "bus_bits", "clock_khz", "memory_clock_khz"):
        if key in extra:
            found[key] = extra[key]
    return ";".join(f"{key}={value}" for key, value in found.items())


def environment(job):
    """Read when CUDA is first used, which is after the fork."""
    os.environ.update(
        DSPLAN_DRY_DEVICE=device_text(job),
        DSPLAN_DRY_EVENTS=job.get("events", "done"),
        RANK=str(job.get("rank", 0)),
        WORLD_SIZE=str(job.get("world", 1)),
        LOCAL_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )


def imports(jobs):
    operators.build(jobs)
    os.environ.update(
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        DS_ACCELERATOR="cuda",
        HF_HUB_OFFLINE="1",
        DSPLAN_DRY_PEERS="mirror",
        TORCH_NCCL_ENABLE_MONITORING="0",
        RANK="0",
        WORLD_SIZE="1",
    )
    import torch

    # With bitsandbytes beside it peft asks for the device at its import: then each fork imports it for itself.
    if any("lora" in job["training"] for job in jobs) and importlib.util.find_spec("bitsandbytes") is None:
        import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    from transformers.models.auto.configuration_auto import model_type_to_module_name

    # From when one that sees pictures is imported whole numbers are followed: each fork imports its own.
    seeing = getattr(sys.modules.get("dsplan_dry.values"), "SEEING", ())
    for named in {job["config"]["model_type"] for job in jobs}:
        family = model_type_to_module_name(named)
        own = named.replace("-", "_") if named.startswith("data2vec") else family  # Of several in one folder.
        if family not in seeing:
            __import__(f"transformers.models.{family}.modeling_{own}")
    torch.cuda._is_in_bad_fork = lambda: False
    if "dsplan_dry.record" in sys.modules:  # The matrix has a meter of its own.
        sys.modules["dsplan_dry.record"].FOUND["receipt"] = False
    if any("deepspeed" in job for job in jobs):
        import deepspeed
    if any(job["training"].get("loss") == "trl" for job in jobs):
        import trl.trainer.utils
    if torch.cuda.is_initialized():
        raise SystemExit("an import used the device: every job would be measured on the one that it saw, whatever it asks for")


def measure(job, limit, events=None):
    """The job in a fork, for at most so many seconds."""
    path = os.path.join(tempfile.gettempdir(), f"dry-matrix.{os.getpid()}.json")
    for old in (path, path + ".log"):
        if os.path.exists(old):
            os.unlink(old)
    child = os.fork()
    if child == 0:
        os.setsid()  # What it starts ends with it.
        log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        environment(job)
        worker.run(job, path, events)
    end = time.time() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.time() > end:
            end_session(child)
            return {"failed": f"no answer within {limit:g} s"}
        time.sleep(0.02)
    if not os.path.exists(path):
        return {"failed": "died: " + open(path + ".log", errors="replace").read()[-300:]}
    answer = json.load(open(path))
    os.unlink(path)
    return answer


def end_session(leader):
    """A compiler that a job started would go on, and wait for nobody."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(leader, signal.SIGKILL)  # It had not come to its setsid.
    os.waitpid(leader, 0)


def run(jobs, folder, limit, again=None):
    """Results lie in folder/STRATUM.jsonl. `again`: jobs that are run although they have a result, by name."""
    os.makedirs(folder, exist_ok=True)
    strata = {}
    for job in jobs:
        strata.setdefault(job["stratum"], []).append(job)
    imported = False
    for stratum, its in strata.items():
        path = os.path.join(folder, stratum + ".jsonl")
        known = store.read(path)
        for job in its:
            stated = {k: v for k, v in job.items() if k not in ("config", "checkpointing")}
            have = known.get(job["name"], {})
            wanted = again is not None and re.search(again, job["name"])
            if have.get("job") == stated and "failed" not in have and not wanted:
                continue
            if not imported:
                imports(jobs)
                imported = True
            answer = measure(job, limit)
            known[job["name"]] = {"job": stated, "versions": versions(), **answer}
            store.write(path, known.values())
            brief = (
                answer.get("failed") or answer.get("oom") or f"{max(r['peak'][2] for r in answer['rows']):,} reserved"
            )
            print(f"{time.strftime('%H:%M:%S')} {job['name']}: {brief}", file=sys.stderr, flush=True)
