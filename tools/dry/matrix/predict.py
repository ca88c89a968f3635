"""The same job as a command line of dsplan."""

import json
import os
import subprocess

from . import model_config


def command(job, dsplan, folder, verb="simulate"):
    """Writes the files that the command names into `folder`."""

    def written(name, value):
        path = os.path.join(folder, name)
        with open(path, "w") as out:
            json.dump(value, out)
        return path

    hardware = {**model_config.hardware(job["device"]), "context_bytes": model_config.CONTEXT}
    loop = "script" if job.get("holds_outputs") else "minimal"  # Its variable holds the logits until the next forward.
    training = {"dsplan": 1, "kind": "training", "source": "tools/dry/matrix", "loop": loop, **job["training"]}
    if "ddp" in job:
        training["ddp"] = job["ddp"]
    words = [
        dsplan,
        verb,
        written("config.json", model_config.config(job)),
        "--hardware",
        written("hardware.json", hardware),
    ]
    if "deepspeed" in job:
        words += ["--deepspeed", written("deepspeed.json", job["deepspeed"])]
    if job.get("world", 1) > 1 or "deepspeed" in job:
        words += ["--gpus", str(job.get("world", 1)), "--rank", str(job.get("rank", 0))]
    words += ["--capacity", f"{job.get('capacity', model_config.ROOMY)}B", "--reserve", "0B", "--host-memory", "64TiB"]
    return words + ["--training", written("training.json", training)]


def predicted(job, dsplan, folder, frees, versions):
    """The prediction, or the reason why there is none. `frees`: at-sync or immediate; `versions`: what was measured."""
    words = command(job, dsplan, folder) + ["--stream-frees", frees, "--format", "json"]
    for name in ("torch", "transformers") + (("deepspeed",) if "deepspeed" in job else ()):
        words += [f"--{name}-version", versions[name].partition("+")[0]]
    told = subprocess.run(words, capture_output=True, text=True)
    if told.returncode not in (0, 3):
        return None, told.stderr.strip().split("error: ")[-1].splitlines()[0]
    prediction = json.loads(told.stdout)
    if not prediction["memory"].get("phases"):
        reasons = [n if isinstance(n, str) else n.get("reason", str(n)) for n in prediction["not_modelled"]]
        return None, "; ".join(reasons)[:200]
    return prediction, ""
