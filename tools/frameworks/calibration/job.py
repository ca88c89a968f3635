"""One group's process: what it was told, and the lines that it hands back."""
import contextlib
import ctypes
import json
import statistics
import time

MEBI = 2**20
UNITS = ("bytes", "ns", "bytes_per_s", "flop_per_s")


class Job:
    """Rows go to a file line by line, so that what was measured before an end at the limit is kept."""

    def __init__(self, path, kind, seconds, tiny, argument=None):
        self.path = path
        self.kind = kind  # cuda | cpu
        self.tiny = tiny
        self.argument = argument
        self.end = time.monotonic() + seconds

    @property
    def on_gpu(self):
        return self.kind == "cuda"

    def left(self):
        return self.end - time.monotonic()

    def write(self, line):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def add(self, name, samples, unit, how):
        """A row: its value is the median of the samples, which are integers in the row's unit."""
        if unit not in UNITS:
            raise ValueError(f"a row has no unit {unit}")
        samples = [int(sample) for sample in (samples if isinstance(samples, (list, tuple)) else [samples])]
        self.write({"row": {"name": name, "value": int(statistics.median(samples)), "unit": unit, "how": how,
                            "samples": samples}})

    def answer(self, question, answer, finding, data=None):
        """answer: yes, no, or unknown; finding: a sentence; data: figures."""
        self.write({"answer": {"question": question, "answer": answer, "finding": finding, "data": data or {}}})

    def failed(self, name, message):
        self.write({"failed": {"name": name, "message": " ".join(str(message).split())[:500]}})

    @contextlib.contextmanager
    def row(self, name, least_seconds=None):
        """Around the measuring of one row, so that a fault ends only this row. Where least_seconds is given it yields
        whether that much time is left, and says so in the results if not."""
        if least_seconds is not None and self.left() < least_seconds:
            self.failed(name, "not measured: no time was left")
            yield False
            return
        try:
            yield True
        except Exception as fault:  # noqa: BLE001: a row that fails is data
            self.failed(name, f"{type(fault).__name__}: {fault}")
            self.recover()

    def recover(self):
        """After a fault, so that the next row starts with memory again."""
        if self.on_gpu:
            import torch
            with contextlib.suppress(Exception):
                torch.cuda.synchronize()
                torch.cuda.empty_cache()

    def synchronize(self):
        if self.on_gpu:
            import torch
            torch.cuda.synchronize()


class Space:
    """Bytes that this process takes beyond PyTorch's allocator: on the GPU, or, for trying it out, in memory.

    Make it before the device is touched.
    """

    def __init__(self, job):
        self.on_gpu = job.on_gpu
        if self.on_gpu:
            from common.nvml import ProcessBytes
            self.process = ProcessBytes()

    def how(self):
        if not self.on_gpu:
            return "resident memory of the process"
        return f"{self.process.how}; less what PyTorch's allocator holds"

    def read(self):
        """Bytes now. Raises where nothing can be said."""
        if not self.on_gpu:
            return resident()
        import torch
        held = 0
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            held = torch.cuda.memory_reserved()
        taken = self.process.read()
        if taken is None:
            raise RuntimeError(self.process.how or "NVML says nothing of this process")
        return taken - held

    def of_device(self):
        """Bytes of the whole device that were free before this process and are not now, less the allocator's."""
        import torch
        return self.process.used() - self.process.baseline - torch.cuda.memory_reserved()


def resident():
    with open("/proc/self/status", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def library(stem):
    """The library of that name that importing torch brought along, else the one that the loader finds."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            path = line.split(maxsplit=5)[-1].strip()
            if path.rsplit("/", 1)[-1].startswith(stem + ".so"):
                return ctypes.CDLL(path)
    return ctypes.CDLL(stem + ".so")


def times_ns(job, function, repeat, inner=1, warm_up=2):
    """Nanoseconds of one call, `repeat` times; by CUDA events on a GPU, by the clock elsewhere."""
    for _ in range(warm_up):
        function()
    job.synchronize()
    samples = []
    for _ in range(repeat):
        if job.on_gpu:
            import torch
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(inner):
                function()
            end.record()
            end.synchronize()
            samples.append(begin.elapsed_time(end) * 1e6 / inner)
        else:
            began = time.perf_counter_ns()
            for _ in range(inner):
                function()
            samples.append((time.perf_counter_ns() - began) / inner)
    return [max(1.0, sample) for sample in samples]
