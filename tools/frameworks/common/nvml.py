"""Bytes that this process takes on the GPU, from NVML. Does not touch CUDA, so that a baseline can be taken first."""

import os


class ProcessBytes:
    """`read()` gives integers or None; `how` says from where, or why not. Make it before CUDA starts."""

    def __init__(self):
        self.handle = None
        self.baseline = None
        self.how = ""
        try:
            import pynvml
            self.nvml = pynvml
            pynvml.nvmlInit()
            self.handle = self.visible_device()
            self.baseline = self.used()
        except Exception as error:  # Without NVML there is no figure, and the run goes on.
            self.handle = None
            self.how = f"NVML: {type(error).__name__}: {error}"

    def visible_device(self):
        """The handle of what PyTorch calls cuda:0."""
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if first.startswith(("GPU-", "MIG-")):
            return self.nvml.nvmlDeviceGetHandleByUUID(first)
        return self.nvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)

    def used(self):
        info = self.nvml.nvmlDeviceGetMemoryInfo(self.handle)
        return int(info.total) - int(info.free)

    def of_this_process(self):
        for process in self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                return int(process.usedGpuMemory)
        return None

    def read(self):
        if self.handle is None:
            return None
        try:
            own = self.of_this_process()
            if own is not None:
                self.how = "NVML's figure for this process"
                return own
            self.how = "capacity less free, less the same before this process touched the device: NVML lists no process"
            return max(0, self.used() - self.baseline)
        except Exception as error:  # As above.
            self.how = f"NVML: {type(error).__name__}: {error}"
            return None

    def capacity(self):
        """NVML's total, which is more than cudaMemGetInfo's."""
        try:
            return int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).total) if self.handle else None
        except Exception:  # As above.
            return None
