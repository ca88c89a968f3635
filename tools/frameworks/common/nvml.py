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
        """None where NVML lists no processes, or those of another namespace: in most containers."""
        try:
            listed = self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except Exception:
            return None
        return next((int(process.usedGpuMemory) for process in listed
                     if process.pid == os.getpid() and process.usedGpuMemory is not None), None)

    def read(self, taken=None):
        """`taken`: capacity less free as CUDA says it, which stands in where NVML says nothing."""
        if self.handle is not None:
            try:
                own = self.of_this_process()
                if own is not None:
                    self.how = "NVML's figure for this process"
                    return own
                self.how = "capacity less free, less the same before this process: NVML lists no process"
                return max(0, self.used() - self.baseline)
            except Exception as error:
                self.handle = None
                self.how = f"NVML: {type(error).__name__}: {error}"
        if taken is not None and "capacity less free" not in self.how:
            self.how = f"capacity less free, of whatever process ({self.how})"
        return taken

    def driver(self):
        """The driver's version, or None."""
        try:
            version = self.nvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else version
        except Exception:  # As above, and where NVML is not there at all.
            return None
