"""What a training process does, as a log in program order: storages that DeepSpeed's own code makes and lets go,
gradients, collectives, and whatever deepspeed_hooks.py adds. Storages of the model's operators are not logged: those
are memory.py's business.
"""

import sys
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.complex64: "complex64",
         torch.int64: "int64", torch.int32: "int32", torch.uint8: "uint8", torch.bool: "bool", torch.int8: "int8"}
# Code that only passes a call on: whose allocation it is, the frame above says.
TRANSPARENT = ("utils/nvtx.py", "utils/timer.py", "runtime/compiler.py", "utils/torch.py")
FILES = {"runtime/zero/stage_1_and_2.py": "s12", "runtime/zero/stage3.py": "s3",
         "runtime/zero/partition_parameters.py": "pp", "runtime/zero/partitioned_param_coordinator.py": "coord",
         "runtime/zero/parameter_offload.py": "po", "runtime/engine.py": "eng", "runtime/utils.py": "ru",
         "runtime/comm/coalesced_collectives.py": "cc", "runtime/bf16_optimizer.py": "bf",
         "runtime/fp16/fused_optimizer.py": "fp16", "runtime/fp16/unfused_optimizer.py": "fp16u"}
COMPUTE = {"forward", "__call__", "_do_forward", "_forward_prologue"}  # Of engine.py: the model runs below.


def maker():
    """(is it DeepSpeed's, "file:function" of the innermost frame outside torch)."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        function = frame.f_code.co_name
        if "/torch/" in path:
            if function == "_engine_run_backward":
                return False, ""
        elif "/deepspeed/" in path:
            tail = path.split("/deepspeed/", 1)[1]
            if not tail.endswith(TRANSPARENT):
                if tail == "runtime/engine.py" and function in COMPUTE or tail == "runtime/zero/linear.py":
                    return False, ""
                return True, f"{FILES.get(tail, tail)}:{function}"
        elif "/contextlib.py" not in path and "/functools.py" not in path and "deepspeed_" not in path:
            return False, ""
        frame = frame.f_back
    return False, ""


class Meter(TorchDispatchMode):
    """A storage's Python object lives as long as the storage itself, so that a weak reference to it reports the true
    end, whoever held it."""

    def __init__(self):
        super().__init__()
        self.references = {}  # id of the storage's object -> weak reference
        self.numbers = {}     # the same -> number in the log, for those that are logged
        self.log = []
        self.count = 0
        self.pause = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if self.pause:
            return out
        fresh = [t for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and self.is_new(t)]
        if fresh:
            ours, where = maker()
            ours = ours and where != "ru:combine_grad_norm_groups"  # Which juggles one number.
            for tensor in fresh:
                self.watch(tensor, f"+{{}} {tensor.untyped_storage().nbytes()} {SHORT[tensor.dtype]} {where} "
                                   f"{func.name().removeprefix('aten::').split('.')[0]}" if ours else None)
        return out

    def is_new(self, tensor):
        """Scalars without a dimension are passed over."""
        if tensor.dim() == 0 or tensor.layout != torch.strided or tensor.untyped_storage().nbytes() == 0 or tensor.device.type == "meta":
            return False
        storage = tensor.untyped_storage()
        known = self.references.get(id(storage))
        return known is None or known() is not storage

    def watch(self, tensor, line):
        storage = tensor.untyped_storage()
        key = id(storage)

        def ended(_, key=key):
            del self.references[key]
            number = self.numbers.pop(key, None)
            if number is None:
                return
            if self.log and self.log[-1][0] == "-":
                self.log[-1] = "-" + ",".join(map(str, sorted([*map(int, self.log[-1][1:].split(",")), number])))
            else:
                self.log.append(f"-{number}")

        self.references[key] = weakref.ref(storage, ended)
        if line is not None:
            self.number(key, line)

    def number(self, key, line):
        self.count += 1
        self.numbers[key] = self.count
        self.log.append(line.format(self.count))

    def name(self, tensor, kind, name):
        """`kind`: p a parameter of the model, b a buffer of it, g a gradient that autograd made. From here on the
        log follows this storage."""
        if self.is_new(tensor):
            self.watch(tensor, None)
        key = id(tensor.untyped_storage())
        if key not in self.numbers and tensor.untyped_storage().nbytes():
            self.number(key, f"{kind}{{}} {tensor.untyped_storage().nbytes()} {SHORT[tensor.dtype]} {name}")

    def number_of(self, tensor):
        """In the log; 0 for what it does not follow."""
        return self.numbers.get(id(tensor.untyped_storage()), 0) if tensor is not None else 0

    def write(self, line):
        self.log.append(line)
