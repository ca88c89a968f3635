"""What a run holds in host memory: tensors that are alive between steps, pinned and pageable. The allocator of pinned
memory is asked for the first; a census of live tensors on the CPU gives the second."""

import gc
import resource

import torch


class Host:
    def __init__(self, kind):
        self.kind = kind
        self.not_measured = []
        self.before = self.pageable() if kind == "cuda" else 0
        self.resident = resident_peak()

    def measured(self):
        """The `host` of a receipt."""
        if self.kind != "cuda":
            self.not_measured.append(("memory.host", "on the CPU device and host are one memory"))
            return None
        grown = resident_peak() - self.resident
        pinned, most = self.pinned()
        why = (f"the process's resident memory grew by {grown} bytes at most, libraries and contexts in it; its "
               f"allocator of pinned memory owned {most} bytes at most")
        self.not_measured += [("memory.host.peak", why), ("memory.host.per_node", "one process stands for one rank")]
        return {"pinned": pinned, "pageable": max(0, self.pageable() - self.before), "peak": None, "per_node": None}

    def pinned(self):
        """Alive now, and the most that was taken from the driver; in blocks of powers of two."""
        try:
            stats = torch.cuda.host_memory_stats()
            return int(stats.get("active_bytes.current", 0)), int(stats.get("allocated_bytes.peak", 0))
        except Exception as error:  # Not in every release.
            self.not_measured.append(("memory.host.pinned", f"{type(error).__name__}: {error}"))
            return None, None

    @staticmethod
    def pageable():
        """Storages that Python can reach."""
        found = {}
        for value in gc.get_objects():
            try:
                if issubclass(type(value), torch.Tensor) and value.device.type == "cpu" and not value.is_pinned():
                    storage = value.untyped_storage()
                    found[storage.data_ptr()] = storage.nbytes()
            except Exception:  # Objects that only look like tensors.
                continue
        return sum(found.values())


def resident_peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
