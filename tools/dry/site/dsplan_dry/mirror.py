"""One rank of W alone: torch.distributed with peers that hold what this rank holds."""
import os

from . import device, imports


def mirrored():
    return device.setting("PEERS") == "mirror"


def make_store(dist):
    class Store(dist.Store):
        """Every key that another rank should have written is there."""

        def __init__(self):
            super().__init__()
            self.kept = {}

        def set(self, key, value):
            self.kept[key] = value if isinstance(value, bytes) else value.encode()

        def get(self, key):
            return self.kept.get(key, b"\x01" * 128)

        def add(self, key, amount):
            value = int(self.kept.get(key, b"0")) + amount
            self.kept[key] = str(value).encode()
            return value

        def check(self, keys):
            return False

        def wait(self, keys, timeout=None):
            pass

        def delete_key(self, key):
            return self.kept.pop(key, None) is not None

        def num_keys(self):
            return len(self.kept)

        def set_timeout(self, timeout):
            pass

        def clone(self):
            return self

    return Store()


KEPT = []  # torch keeps only the C++ half of a store.


def silent_backend(c10d):
    """A backend of the host whose collectives return at once; torch's own "fake" one is handed NCCL's options."""
    from torch._C._distributed_c10d import FakeProcessGroup as group

    name = "dsplan_silent"
    if not hasattr(c10d.Backend, name.upper()):
        made = getattr(group, "_create_internal", group)  # Before PyTorch 2.10 its constructor.
        c10d.Backend.register_backend(name, lambda store, rank, size, timeout: made(rank, size), devices=["cpu"])
    return name


def install_in(c10d):
    real = c10d.init_process_group

    def init_process_group(backend=None, *args, **kwargs):
        for key in ("init_method", "device_id", "timeout"):
            kwargs.pop(key, None)
        if not KEPT:
            KEPT.append(make_store(__import__("torch").distributed))
        kwargs.update(store=KEPT[0], rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        if backend == "cuda:nccl,cpu:gloo":  # accelerate and torchtitan, for shards on the host: no peer would answer.
            backend = "cuda:nccl,cpu:" + silent_backend(c10d)
        return real("nccl" if backend in (None, "cpu:gloo,cuda:nccl") else backend, **kwargs)

    c10d.init_process_group = init_process_group  # torch.distributed takes its names from here.


def install():
    if mirrored():
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        imports.after("torch.distributed.distributed_c10d", install_in)
