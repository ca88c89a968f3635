"""The `environment` of a receipt: versions of what was measured and the device under it. Never fails: what cannot be
asked is null."""

import importlib.metadata
import os
import platform
import re
import sys

from .receipt import now


def version(package):
    """The installed version without its build tag, or None. Does not import the package."""
    try:
        return importlib.metadata.version(package).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def allocator_conf():
    """What PyTorch's allocator reads, by the name that wins."""
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def driver():
    """The driver's version, without starting CUDA."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", file.readline())
            return found[1] if found else None
    except OSError:
        return None


def environment(device=None, limit_bytes=None):
    """`device`: one of device.py, asked for the GPU and its capacity; None before it is touched."""
    about = device.about() if device is not None else {}
    torch = sys.modules.get("torch")
    return {
        "gpu": about.get("gpu"), "capacity_bytes": about.get("capacity_bytes"),
        "driver": (about.get("driver") or driver()) if about.get("gpu") else None,
        "cuda": getattr(getattr(torch, "version", None), "cuda", None),
        "python": platform.python_version(), "torch": version("torch"), "transformers": version("transformers"),
        "deepspeed": version("deepspeed"), "peft": version("peft"), "allocator_conf": allocator_conf(),
        "limit_bytes": limit_bytes, "recorded": now(),
    }
