"""Bytes of live storages of one device, seen by the dispatcher."""

import weakref

from torch import Tensor, strided
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageMeter(TorchDispatchMode):
    """Counts a storage from the operator that returns it to its finaliser. Operators run as they are."""

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.known = {}
        self.live = 0
        self.peak = 0
        self.requested_total = 0
        self.allocations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.device.type == self.device.type and tensor.layout == strided:
                self.count(tensor)
        return out

    def count(self, tensor):
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        known = self.known.get(key)
        if size == 0 or (known is not None and known() is storage):
            return

        def ended(_, key=key, size=size):
            self.known.pop(key, None)
            self.live -= size

        self.known[key] = weakref.ref(storage, ended)
        self.live += size
        self.requested_total += size
        self.allocations += 1
        self.peak = max(self.peak, self.live)
