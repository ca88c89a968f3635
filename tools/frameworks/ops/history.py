"""The history that PyTorch's allocator keeps of one device, read as a log of allocations and frees.

An entry is a dict {"action", "addr", "size", "stream", ...}. Of `alloc`, `free_requested` and `free_completed` the size
is what was asked for, before rounding (c10/cuda/CUDACachingAllocator.cpp: alloc_found_block records orig_size, free and
free_block record block->requested_size); of segments it is what the driver gave. A free counts when it is requested:
the wait for other streams is not the operator's. Standard library only.
"""

SEGMENTS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")
SILENT = SEGMENTS + ("free_completed", "snapshot", "workspace_snapshot", "annotation")


class History:
    """`read` takes the next entries and gives ("+", serial, bytes, None) and ("-", serial); serials count from 1.
    `live` has the serial of each address in use; `faults` what the history says against itself."""

    def __init__(self):
        self.live, self.sizes, self.faults = {}, {}, []
        self.serial = 0

    def read(self, entries):
        log = []
        for entry in entries:
            action = entry.get("action")
            if action == "alloc":
                log.append(self.allocated(entry["addr"], entry["size"]))
            elif action == "free_requested":
                serial = self.live.pop(entry["addr"], None)
                if serial is not None:  # Else: from before the history began.
                    if self.sizes[serial] != entry["size"]:
                        self.faults.append(f"{self.sizes[serial]} bytes were allocated and {entry['size']} freed")
                    log.append(("-", serial))
            elif action == "oom":
                self.faults.append(f"out of memory: {entry['size']} bytes")
            elif action not in SILENT:
                self.faults.append(f"an entry of unknown kind: {action}")
        return log

    def allocated(self, address, size):
        if address in self.live:
            self.faults.append(f"address {address} was given out twice")
        self.serial += 1
        self.live[address] = self.serial
        self.sizes[self.serial] = size
        return ("+", self.serial, size, None)

    def live_sizes(self):
        return sorted(self.sizes[serial] for serial in self.live.values())

    def moves(self, log):
        """The log as bytes with a sign; frees of what an earlier log allocated are among them."""
        return [entry[2] if entry[0] == "+" else -self.sizes[entry[1]] for entry in log]
