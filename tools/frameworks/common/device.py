"""One interface over what is measured: `cuda` (PyTorch's caching allocator and NVML), `cpu` (real tensors, sizes seen
by the dispatcher) and `fake` (FakeTensors of a CUDA device, the meter of tools/oracles/memory.py; nothing is computed).

    prepare("fake", limit)  # Before torch is imported: environment variables, and for fake a restart behind a library.
    device = device_of("cuda")
    with device.running():  # Where a mode is needed, tensors made outside are not seen.
        ...

Counters are integers or None; `not_measured()` has a reason for each that is None.
"""

import contextlib
import gc
import lzma
import math
import os
import pickle
import sys

from .nvml import ProcessBytes
from .receipt import COUNTERS, PEAKS

ORACLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "oracles")
NONE = {counter: None for counter in COUNTERS}


def prepare(kind, allocator_conf=None):
    """What must stand in the environment before torch is imported. A fake device restarts the program once, where there
    is no driver: see no_accelerator.c of the oracles."""
    if allocator_conf:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = allocator_conf
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["DS_ACCELERATOR"] = "cpu" if kind == "cpu" else "cuda"  # DeepSpeed asks at its import.
    if kind == "fake":
        sys.path.append(ORACLES)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        from preload import preload
        preload()


def device_of(kind):
    return {"cuda": Cuda, "cpu": Cpu, "fake": Fake}[kind]()


class Cuda:
    """The first visible GPU."""
    name = "cuda"
    has_time = True

    def __init__(self):
        self.process = ProcessBytes()  # Before anything touches the device.
        import torch
        self.torch = torch
        self.torch_device = torch.device("cuda", 0)
        self.recording = False
        torch.cuda.set_device(self.torch_device)
        torch.cuda.init()

    def running(self):
        return contextlib.nullcontext()

    def about(self):
        return {"gpu": self.torch.cuda.get_device_name(0), "capacity_bytes": self.torch.cuda.mem_get_info(0)[1],
                "driver": self.process.driver()}

    def process_bytes(self):
        free, total = self.torch.cuda.mem_get_info(0)
        return self.process.read(total - free)

    def counters(self):
        stats = self.torch.cuda.memory_stats(0)
        return {**{counter: stats.get(f"{self.row(counter)}.all.current", 0) for counter in PEAKS},
                "process": self.process_bytes()}

    def peaks(self):
        stats = self.torch.cuda.memory_stats(0)
        return {counter: stats.get(f"{self.row(counter)}.all.peak", 0) for counter in PEAKS}

    def totals(self):
        """Since the start, whatever was freed meanwhile: every single size is in the sum."""
        stats = self.torch.cuda.memory_stats(0)
        return {"requested_total": stats.get("requested_bytes.all.allocated", 0),
                "allocations": stats.get("allocation.all.allocated", 0)}

    @staticmethod
    def row(counter):
        return {"requested": "requested_bytes", "allocated": "allocated_bytes", "active": "active_bytes",
                "reserved": "reserved_bytes"}[counter]

    def retries(self):
        """How often the allocator gave its cache back to fit."""
        return int(self.torch.cuda.memory_stats(0).get("num_alloc_retries", 0))

    def reset_peaks(self):
        self.torch.cuda.reset_peak_memory_stats(0)

    def empty_cache(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def synchronize(self):
        self.torch.cuda.synchronize(0)

    def limit(self, limit_bytes):
        """At most so many bytes reserved: as the fraction that PyTorch multiplies with the capacity and rounds down."""
        total = self.about()["capacity_bytes"]
        fraction = min(1.0, limit_bytes / total)
        while fraction < 1 and int(fraction * total) < limit_bytes:
            fraction = min(1.0, math.nextafter(fraction, 2))
        self.torch.cuda.set_per_process_memory_fraction(fraction, 0)
        return int(fraction * total)

    def start_snapshot(self, entries=2_000_000):
        """Every allocation and free from here on; without stacks, which take longer than the run."""
        self.torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=entries)
        self.recording = True

    def dump_snapshot(self, folder, name):
        """Writes NAME.snapshot.pickle.xz and stops recording; the file's name, or None without a recording."""
        if not self.recording:
            return None
        snapshot = self.torch.cuda.memory._snapshot()
        self.torch.cuda.memory._record_memory_history(None)
        self.recording = False
        return write_snapshot(snapshot, folder, name)

    def is_out_of_memory(self, error):
        return isinstance(error, self.torch.OutOfMemoryError) or "out of memory" in str(error).lower()

    def not_measured(self):
        self.process_bytes()
        return [{"what": "memory.process", "why": self.process.how}]


def write_snapshot(snapshot, folder, name):
    file_name = name + ".snapshot.pickle.xz"
    beside = os.path.join(folder, f"{file_name}.{os.getpid()}.part")
    with lzma.open(beside, "wb", preset=1) as file:
        pickle.dump(snapshot, file, protocol=4)
    os.replace(beside, os.path.join(folder, file_name))
    return file_name


class Metered:
    """What cpu and fake have in common: `requested` from a meter on the dispatcher, nothing else."""
    has_time = False
    why = ""

    def counters(self):
        return {**NONE, "requested": self.meter.live}

    def peaks(self):
        return {**NONE, "requested": max(self.meter.peak, self.meter.live)}

    def totals(self):
        return {"requested_total": self.meter.requested_total, "allocations": self.meter.allocations}

    def reset_peaks(self):
        self.meter.peak = self.meter.live

    def retries(self):
        return 0

    def empty_cache(self):
        gc.collect()

    def synchronize(self):
        pass

    def limit(self, limit_bytes):
        raise ValueError(f"the device {self.name} knows no limit of memory")

    def start_snapshot(self, entries=0):
        pass

    def dump_snapshot(self, folder, name):
        return None

    def is_out_of_memory(self, error):
        return False

    def about(self):
        return {"gpu": None, "capacity_bytes": None}

    def not_measured(self):
        entries = [{"what": "memory." + counter, "why": self.why} for counter in COUNTERS if counter != "requested"]
        return entries + [{"what": "snapshot", "why": self.why}]


class Cpu(Metered):
    """Real tensors on the CPU, for trying the tools out: its kernels are not those of a GPU."""
    name = "cpu"
    why = "on the CPU only what operators return is counted, by the dispatcher"

    def __init__(self):
        import torch
        from .meter import StorageMeter
        self.torch_device = torch.device("cpu")
        self.meter = StorageMeter(self.torch_device)

    def running(self):
        return self.meter


class Fake(Metered):
    """Sizes without data on a CUDA device that need not exist."""
    name = "fake"
    why = "FakeTensors have sizes only; what operators return is counted, by the dispatcher"

    def __init__(self):
        if ORACLES not in sys.path:
            sys.path.append(ORACLES)
        import memory as oracle
        oracle.patch()
        self.oracle = oracle
        self.torch_device = oracle.DEVICE
        self.meter = oracle.Meter()

    @contextlib.contextmanager
    def running(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode(allow_non_fake_inputs=True), self.meter:
            yield
