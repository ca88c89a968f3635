"""The CUDA device's own logic with a torch and an NVML made up for it. Standard library only."""

import lzma
import os
import pickle
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common.device import Cuda
from common.environment import environment
from common.nvml import ProcessBytes

TOTAL = 150_754_820_096  # Of an H200.


def made_up_torch(stats):
    calls = []
    memory = types.SimpleNamespace(
        _record_memory_history=lambda *words, **more: calls.append(("history", words, more)),
        _snapshot=lambda: {"segments": [], "device_traces": [[{"action": "alloc", "size": 512}]]})
    cuda = types.SimpleNamespace(
        memory=memory, init=lambda: None, set_device=lambda device: None, memory_stats=lambda device: stats,
        mem_get_info=lambda device: (TOTAL - 700, TOTAL), get_device_name=lambda device: "NVIDIA H200",
        reset_peak_memory_stats=lambda device: calls.append("reset"), synchronize=lambda device: None,
        empty_cache=lambda: None, set_per_process_memory_fraction=lambda fraction, device: calls.append(fraction))
    torch = types.ModuleType("torch")
    torch.cuda, torch.version = cuda, types.SimpleNamespace(cuda="13.0")
    torch.device = lambda kind, index: (kind, index)
    torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
    return torch, calls


def made_up_nvml(processes, free):
    """`free`: what is free at each question, the baseline's first."""
    left = list(free)
    nvml = types.ModuleType("pynvml")
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=1000, free=left.pop(0))
    nvml.nvmlSystemGetDriverVersion = lambda: "580.159"

    def listed(handle):
        if isinstance(processes, Exception):
            raise processes
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]

    nvml.nvmlDeviceGetComputeRunningProcesses = listed
    return nvml


class Process(unittest.TestCase):
    def read(self, processes, free, taken=None):
        with mock.patch.dict(sys.modules, {"pynvml": made_up_nvml(processes, free)}):
            process = ProcessBytes()
            return process.read(taken), process.how

    def test_what_nvml_says_of_this_process_wins(self):
        self.assertEqual(self.read([(1, 5), (os.getpid(), 77)], [900])[0], 77)

    def test_else_what_is_gone_since_the_baseline(self):
        for processes in ([], [(1, 5)], [(os.getpid(), None)], RuntimeError("not supported")):
            value, how = self.read(processes, [900, 640])
            self.assertEqual(value, 260)
            self.assertIn("less the same before", how)

    def test_without_nvml_what_cuda_says(self):
        with mock.patch.dict(sys.modules, {"pynvml": None}):
            process = ProcessBytes()
            self.assertIsNone(process.read())
            self.assertEqual(process.read(700), 700)
            self.assertIn("of whatever process", process.how)
            self.assertIsNone(process.driver())


class Device(unittest.TestCase):
    def setUp(self):
        stats = {f"{row}_bytes.all.{kind}": at + 10 * (kind == "peak") for at, row in
                 enumerate(("requested", "allocated", "active", "reserved")) for kind in ("current", "peak")}
        torch, self.calls = made_up_torch({**stats, "num_alloc_retries": 3})
        modules = mock.patch.dict(sys.modules, {"torch": torch, "pynvml": made_up_nvml([(os.getpid(), 99)], [900])})
        modules.start()
        self.addCleanup(modules.stop)
        self.device = Cuda()

    def test_counters_and_peaks(self):
        self.assertEqual(self.device.counters(),
                         {"requested": 0, "allocated": 1, "active": 2, "reserved": 3, "process": 99})
        self.assertEqual(self.device.peaks(), {"requested": 10, "allocated": 11, "active": 12, "reserved": 13})
        self.assertEqual(self.device.retries(), 3)
        self.assertEqual(self.device.not_measured(),
                         [{"what": "memory.process", "why": "NVML's figure for this process"}])

    def test_the_environment_names_the_device(self):
        value = environment(self.device, 5)
        self.assertEqual((value["gpu"], value["capacity_bytes"], value["driver"], value["cuda"], value["limit_bytes"]),
                         ("NVIDIA H200", TOTAL, "580.159", "13.0", 5))

    def test_a_limit_becomes_a_fraction_that_is_no_byte_less(self):
        for limit in (1, 7_860_419_297, 18_008_789_483, 33_353_839_411, 120_000_000_001, TOTAL - 1, TOTAL, TOTAL + 1):
            self.device.limit(limit)
            fraction = self.calls[-1]
            self.assertLessEqual(fraction, 1.0)
            self.assertEqual(int(fraction * TOTAL), min(limit, TOTAL))

    def test_a_snapshot_is_written_once_and_stops_the_recording(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIsNone(self.device.dump_snapshot(folder, "none"))
            self.device.start_snapshot()
            name = self.device.dump_snapshot(folder, "tiny")
            self.assertEqual(os.listdir(folder), [name])
            with lzma.open(os.path.join(folder, name)) as file:
                self.assertEqual(pickle.load(file)["device_traces"][0][0]["size"], 512)
        self.assertEqual([call[1] for call in self.calls], [("all",), (None,)])

    def test_what_counts_as_out_of_memory(self):
        torch = sys.modules["torch"]
        for error, expected in ((torch.OutOfMemoryError("x"), True), (RuntimeError("CUDA error: out of memory"), True),
                                (RuntimeError("no kernel"), False)):
            self.assertEqual(self.device.is_out_of_memory(error), expected)


if __name__ == "__main__":
    unittest.main()
