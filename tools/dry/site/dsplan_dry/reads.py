"""Where a script reads values of the device: they are there where a small copy put them, and nowhere else. Each place is
named with how often it reads, so that whoever doubts a receipt knows where to look."""
import functools
import os
import sys

from . import imports

READS = {}
METHODS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select")


def place():
    """The innermost line that is not PyTorch's own: the script's, or a library's."""
    frame = sys._getframe(3)
    while frame and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "torch"
    parts = frame.f_code.co_filename.split(os.sep + "site-packages" + os.sep)
    return f"{parts[-1]}:{frame.f_lineno}"


def note(what):
    key = (what, place())
    READS[key] = READS.get(key, 0) + 1


def watch(owner, name, on_device):
    real = getattr(owner, name, None)
    if real is None:
        return

    from torch.compiler import is_compiling

    @functools.wraps(real)
    def call(*args, **kwargs):
        if not is_compiling() and on_device(args):
            note(name.strip("_"))
        return real(*args, **kwargs)

    setattr(owner, name, call)


def install_in(torch):
    def first(args):
        return bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_cuda

    for name in METHODS:
        watch(torch.Tensor, name, first)
    from torch.jit import _builtins

    watch(torch, "nonzero", first)
    watch(torch, "masked_select", first)
    watch(torch, "where", lambda args: len(args) == 1 and first(args))  # Of a condition alone: its nonzero elements.
    for name in ("nonzero", "masked_select", "where"):  # TorchScript knows its operators by their functions.
        _builtins._register_builtin(getattr(torch, name), f"aten::{name}")


def rows():
    return [{"what": what, "where": where, "count": count} for (what, where), count in sorted(READS.items())]


def install():
    imports.after("torch", install_in)
