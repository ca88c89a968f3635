"""A GPU's allocator made up from what the dispatcher sees of fake tensors: its history has addresses that are used
again, segments and the other entries that a real one has. With it CudaRecorder can be tried where there is no GPU."""
import operators as oracle

from .recorders import CudaRecorder

STEP, BASE = 512, 0x7F0000000000


class SimulatedMemory:
    """Looks like torch.cuda.memory to a recorder. The lowest address that is free is given out next."""

    def __init__(self, meter):
        self.meter, self.entries = meter, []
        self.used, self.address, self.size = set(), {}, {}

    def _record_memory_history(self, enabled, **_):
        if enabled is None:
            self.entries.clear()

    def _snapshot(self):
        for entry in self.meter.take():
            if entry[0] == "+":
                self.allocate(entry[1], entry[2])
            else:
                self.free(entry[1])
        self.add("snapshot", 0, 0)
        return {"segments": [], "device_traces": [list(self.entries)]}

    def add(self, action, address, size):
        self.entries.append({"action": action, "addr": address, "size": size, "stream": 0})

    def allocate(self, serial, size):
        pages = -(-size // STEP)
        first = 0
        while any(first + page in self.used for page in range(pages)):
            first += 1
        self.used.update(range(first, first + pages))
        self.address[serial], self.size[serial] = BASE + first * STEP, size
        if not self.entries:
            self.add("segment_alloc", BASE, 1 << 21)
        self.add("alloc", self.address[serial], size)

    def free(self, serial):
        if serial not in self.address:
            return
        first = (self.address[serial] - BASE) // STEP
        self.used.difference_update(range(first, first - (-self.size[serial] // STEP)))
        self.add("free_requested", self.address[serial], self.size[serial])
        self.add("free_completed", self.address.pop(serial), self.size[serial])


class SimulatedRecorder(CudaRecorder):
    device = oracle.DEVICE

    def __enter__(self):
        self.fake = oracle.FakeRecorder()
        self.fake.__enter__()
        self.memory = SimulatedMemory(self.fake)
        return super().__enter__()

    def __exit__(self, *details):
        super().__exit__()
        return self.fake.__exit__(*details)

    def synchronize(self):
        pass

    def address_of(self, tensor):
        self.memory._snapshot()
        return self.memory.address.get(self.fake.serial_of(tensor))

    def tensor(self, *which):
        return self.fake.tensor(*which)

    def like(self, tensor):
        return self.fake.like(tensor)
