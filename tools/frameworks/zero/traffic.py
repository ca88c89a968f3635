"""Collectives of one rank, counted where DeepSpeed hands them to its backend: rows as in a prediction (payload is the
full logical buffer, wire what one rank sends in a ring)."""

import functools

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
RINGS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def of_first(args, kwargs):
    """The argument that is in both: the buffer, or what is gathered into it."""
    return args[0] if args else next(kwargs[name] for name in FIRST if name in kwargs)


def of_second(args, kwargs):
    return args[1] if len(args) > 1 else next(kwargs[name] for name in SECOND if name in kwargs)


FIRST = ("tensor", "tensors", "output_tensor", "output_tensors", "tensor_list")
SECOND = ("input_tensor", "input_list", "input", "inputBuf", "input_tensor_list")
# The backend's method, the prediction's name, and which argument is the full logical buffer.
COLLECTIVES = {
    "all_reduce": ("all_reduce", of_first), "all_reduce_coalesced": ("all_reduce", of_first),
    "inference_all_reduce": ("all_reduce", of_first), "broadcast": ("broadcast", of_first),
    "reduce": ("reduce", of_first), "all_gather_into_tensor": ("all_gather", of_first),
    "all_gather": ("all_gather", of_first), "all_gather_coalesced": ("all_gather", of_first),
    "reduce_scatter_tensor": ("reduce_scatter", of_second), "reduce_scatter": ("reduce_scatter", of_second),
    "all_to_all_single": ("all_to_all", of_second), "all_to_all": ("all_to_all", of_second),
}


class Traffic:
    """`stretch` is init, first_step or steady; `phase` is init, forward, backward or step. Both are set by the loop."""

    def __init__(self, backend, world_size):
        self.world_size = world_size
        self.stretch = self.phase = "init"
        self.calls = []
        self.depth = 0
        for method, (name, buffer_of) in COLLECTIVES.items():
            if hasattr(backend, method):
                setattr(backend, method, self.counted(getattr(backend, method), name, buffer_of))

    def counted(self, collective, name, buffer_of):
        @functools.wraps(collective)
        def call(*args, **kwargs):
            if self.depth == 0:
                self.note(name, buffer_of(args, kwargs), kwargs.get("group", self.group_among(args)))
            self.depth += 1
            try:
                return collective(*args, **kwargs)
            finally:
                self.depth -= 1
        return call

    @staticmethod
    def group_among(args):
        import torch.distributed
        groups = [value for value in args if isinstance(value, torch.distributed.ProcessGroup)]
        return groups[0] if groups else None

    def note(self, name, buffer, group):
        tensors = buffer if isinstance(buffer, (list, tuple)) else [buffer]
        ranks = group.size() if group is not None else self.world_size
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        elements = sum(tensor.numel() for tensor in tensors)
        # Flags and norms have one element, traces of modules are lists of int64. Parameters are broadcast as uint8.
        flag = elements == 1 or not (tensors[0].is_floating_point() or dtype == "uint8")
        self.calls.append((self.stretch, (name, "dp" if ranks == self.world_size else f"of_{ranks}", self.phase,
                                          DTYPES.get(dtype, dtype), "control" if flag else "data"),
                           ranks, sum(tensor.numel() * tensor.element_size() for tensor in tensors)))

    def rows(self):
        """Those of init, and of the second step. Groups of one rank have none."""
        found = {}
        for stretch, key, ranks, payload in self.calls:
            if ranks > 1 and stretch in ("init", "steady"):
                row = found.setdefault(key, [ranks, 0, 0])
                row[1] += 1
                row[2] += payload
        return [{**dict(zip(("collective", "group", "phase", "dtype", "kind"), key)), "calls": calls,
                 "payload_bytes": payload, "wire_bytes": wire(key[0], ranks, payload)}
                for key, (ranks, calls, payload) in found.items()]


def wire(name, ranks, payload):
    return RINGS[name] * (ranks - 1) * payload // ranks if name in RINGS else payload
