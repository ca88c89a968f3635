"""tools/frameworks/constants: groups that crash, hang or write half a line; and, where there is torch, what a CPU can do
of every group."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import tempfile
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

from calibration import groups, questions  # noqa: E402
from calibration.job import Job  # noqa: E402
from common.environment import environment  # noqa: E402


def load_tool():
    """The script as a module, although its name has no ending."""
    loader = importlib.machinery.SourceFileLoader("constants_tool", str(HERE / "constants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("constants_tool", loader))
    loader.exec_module(module)
    return module


WORKER = """
import json, sys, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name, rows = arguments["--worker"], open(arguments["--rows"], "a")
def write(line):
    rows.write(json.dumps(line) + "\\n"); rows.flush()
if name == "environment":
    write({"environment": {"gpu": "a GPU"}})
elif name == "crashes":
    write({"row": {"name": "before", "value": 1, "unit": "bytes", "how": "", "samples": [1]}})
    rows.write('{"row": {"na'); rows.flush()
    print("the reason"); sys.exit(9)
elif name == "hangs":
    time.sleep(600)
else:
    write({"row": {"name": "copy_d2d:4096", "value": 2, "unit": "bytes_per_s", "how": "", "samples": [2]}})
    write({"failed": {"name": "a row", "message": "why"}})
"""


class Driver(unittest.TestCase):
    """The part that starts groups and writes files."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tool = load_tool()
        (self.folder / "worker.py").write_text(WORKER, encoding="utf-8")
        self.tool.TOOL = self.folder / "worker.py"

    def measure(self, *chosen, device="cuda", seconds=60):
        import time
        given = types.SimpleNamespace(device=device, tiny=False, out=self.folder, name=None)
        chosen = [groups.Group("memory", name, None, limit, gpu_only=gpu_only) for name, limit, gpu_only in chosen]
        result = self.tool.measure(given, "memory", chosen, time.monotonic() + seconds)
        written = json.loads((self.folder / "memory.json").read_text(encoding="utf-8"))
        self.assertEqual(written, result)
        return result, {entry["name"]: entry["message"] for entry in result["failed"]}

    def test_a_group_that_fails_leaves_the_others_running(self):
        result, failed = self.measure(("crashes", 20, False), ("hangs", 1, False), ("good", 20, False))
        self.assertEqual([row["name"] for row in result["rows"]], ["before", "copy_d2d:4096"])
        self.assertEqual(result["environment"], {"gpu": "a GPU"})
        self.assertTrue(result["complete"])
        self.assertEqual(failed, {"crashes": "exit code 9: the reason", "hangs": "ended after 1 s: ", "a row": "why"})
        self.assertIn("2 measured, 3 not", self.tool.summary(result))

    def test_what_cannot_be_measured_here_or_now_is_named(self):
        failed = self.measure(("good", 20, True), device="cpu")[1]
        self.assertEqual(failed, {"good": "is measured on a GPU only"})
        failed = self.measure(("good", 20, False), seconds=8)[1]
        self.assertEqual(failed, {"good": "not measured: no time was left"})

    def test_every_group_has_a_function_and_fits_into_a_stage(self):
        for part in ("memory", "rates", "questions"):
            self.assertLess(sum(group.limit for group in groups.GROUPS if group.part == part), 900, part)
        self.assertEqual(len({group.name for group in groups.GROUPS}), len(groups.GROUPS))


class Groups(unittest.TestCase):
    """What a CPU can do of the groups, in this process."""
    kind_of_job = Job

    @classmethod
    def setUpClass(cls):
        try:
            import torch  # noqa: F401
        except ImportError:
            raise unittest.SkipTest("no torch here") from None

    def run_group(self, name, seconds=120):
        """(rows, answers, failed) of one group."""
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/rows.jsonl"
            group = next(group for group in groups.GROUPS if group.name == name)
            group.function(self.kind_of_job(path, "cpu", seconds, True, group.argument))
            lines = [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
        rows = {line["row"]["name"]: line["row"] for line in lines if "row" in line}
        answers = {line["answer"]["question"]: line["answer"] for line in lines if "answer" in line}
        failed = [line["failed"] for line in lines if "failed" in line]
        for row in rows.values():
            self.assertEqual(set(row), {"name", "value", "unit", "how", "samples"})
            self.assertTrue(all(isinstance(sample, int) for sample in [row["value"], *row["samples"]]), row)
        return rows, answers, failed

    def test_memory_rows(self):
        wanted = {"context": {"context", "context:after_step"}, "workspaces": {
            "cublas_workspace", "cublas_workspace:again", "cublaslt_workspace", "cublas_workspace:backward_thread",
            "cublaslt_workspace:backward_thread"}, "communicator_1": {"communicator_1", "communicator_1:first_all_reduce"}}
        for group, names in wanted.items():
            rows, _, failed = self.run_group(group)
            self.assertEqual((set(rows), failed), (names, []))
        # A CPU's products keep nothing: what is counted is what stays, not what was made on the way.
        self.assertEqual({row["value"] for name, row in self.run_group("workspaces")[0].items()}, {0})
        self.assertEqual(len(self.run_group("pinned")[0]), 6)
        rows, _, failed = self.run_group("first_uses")
        self.assertEqual((len(rows), failed), (11, []))

    def test_rates(self):
        rows, _, failed = self.run_group("copies")
        self.assertEqual({name.split(":")[0] for name in rows}, {"copy_d2d", "copy_h2d_pinned", "copy_d2h_pinned",
                                                                 "copy_h2d_pageable", "copy_d2h_pageable"})
        self.assertEqual(failed, [])
        rows, _, failed = self.run_group("gemms")
        self.assertEqual(set(rows), {f"gemm:{dtype}:{shape}" for dtype in ("bf16", "fp32")
                                     for shape in ("128x128x128", "64x256x128")})
        self.assertEqual(len(rows["gemm:bf16:128x128x128"]["samples"]), 7)
        rows, _, failed = self.run_group("gemms", seconds=0.1)
        self.assertEqual((len(rows), len(failed)), (0, 4))

    def test_questions_without_a_gpu(self):
        for group, question in (("nvml_process", "nvml_process"), ("gemm_bit_equality", "gemm_repeats_bit_equal"),
                                ("nccl_library", "nccl_headers"), ("profiler", "profiler_sees_kernels")):
            _, answers, failed = self.run_group(group)
            self.assertEqual(failed, [])
            self.assertIn(answers[question]["answer"], ("yes", "no"))
            self.assertTrue(answers[question]["finding"])
        self.assertEqual(self.run_group("gemm_bit_equality")[1]["gemm_repeats_bit_equal"]["answer"], "yes")

    def test_two_ranks_in_processes_of_their_own(self):
        _, answers, failed = self.run_group("nccl_hostid")
        self.assertEqual(failed, [])
        self.assertEqual(answers["nccl_hostid"]["answer"], "yes", answers)
        self.assertEqual(sorted(rank["rank"] for rank in answers["nccl_hostid"]["data"]["ranks"]), [0, 1])

    def test_two_ranks_that_hang_are_ended(self):
        before, questions.RANK_SECONDS = questions.RANK_SECONDS, 0.5
        self.addCleanup(setattr, questions, "RANK_SECONDS", before)
        answer = self.run_group("nccl_hostid")[1]["nccl_hostid"]
        self.assertEqual((answer["answer"], answer["data"]["ended"]), ("no", ["hung", "hung"]))

    def test_a_fault_ends_its_row_only(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(f"{folder}/rows", "cpu", 60, True)
            with job.row("one"):
                raise ValueError("broken")
            with job.row("two"):
                job.add("two", [3, 1, 2], "ns", "")
            lines = [json.loads(line) for line in pathlib.Path(f"{folder}/rows").read_text(encoding="utf-8").splitlines()]
        self.assertEqual(lines[0], {"failed": {"name": "one", "message": "ValueError: broken"}})
        self.assertEqual(lines[1]["row"]["value"], 2)

    def test_the_environment_is_a_receipt_s(self):
        self.assertEqual(set(environment()), set(load_tool().environment(Job("", "cpu", 1, True))))


class PretendedEvent:
    def __init__(self, enable_timing):
        self.at = 0.0

    def record(self):
        import time
        self.at = time.perf_counter() * 1e3

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.at - self.at


class PretendedProcess:
    """NVML's figure grows by a MiB at each reading; before the device is touched it is zero."""

    def __init__(self):
        self.readings, self.baseline, self.how = 0, 5, "pretended"

    def read(self):
        self.readings += 1
        return self.readings * 2**20

    of_this_process = read

    def used(self):
        return 5 + self.readings

    def capacity(self):
        return 2**30


class PretendedJob(Job):
    """Takes the ways of a GPU, on the CPU."""
    on_gpu = True


class OnAPretendedGpu(Groups):
    """The ways that only a GPU takes, with what PyTorch says of it replaced: that they hang together, not figures."""

    def setUp(self):
        import contextlib
        import torch
        from unittest import mock
        stats = {"requested_bytes.all.current": 4, "allocated_bytes.current": 8}
        for name, stand_in in (("synchronize", lambda: None), ("memory_reserved", lambda: 0), ("Event", PretendedEvent),
                               ("is_initialized", lambda: True), ("memory_stats", lambda: stats),
                               ("host_memory_stats", lambda: stats), ("mem_get_info", lambda: (1, 2)),
                               ("Stream", mock.MagicMock), ("current_stream", mock.MagicMock),
                               ("stream", lambda stream: contextlib.nullcontext()), ("empty_cache", lambda: None)):
            self.replace(torch.cuda, name, stand_in)
        self.replace(torch._C, "_host_emptyCache", lambda: None)
        self.replace(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
        import common.nvml
        self.replace(common.nvml, "ProcessBytes", PretendedProcess)
        plain = torch.empty, torch.ones
        self.replace(torch, "empty", lambda *sizes, pin_memory=False, **others: plain[0](*sizes, **others))
        self.replace(torch, "ones", lambda *sizes, pin_memory=False, **others: plain[1](*sizes, **others))
        from calibration import memory, questions, rates
        self.replace(rates, "wake", lambda job: None)
        library = mock.MagicMock()
        for function in ("cudaFree", "cublasCreate_v2", "cudnnCreate", "cuMemGetAllocationGranularity",
                         "cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityFlushAll"):
            getattr(library, function).return_value = 0
        self.replace(memory, "library", lambda stem: library)
        self.replace(questions, "library", lambda stem: library)
        self.replace(questions.ctypes, "CDLL", lambda stem: library)

    def replace(self, owner, name, stand_in):
        from unittest import mock
        patch = mock.patch.object(owner, name, stand_in)
        patch.start()
        self.addCleanup(patch.stop)

    kind_of_job = PretendedJob

    def test_memory_rows(self):
        for group, count in (("context", 6), ("context_eager_modules", 4), ("workspaces", 6), ("first_uses", 11), ("pinned", 6), ("cudnn_handle", 1)):
            rows, _, failed = self.run_group(group)
            self.assertEqual((group, len(rows), failed), (group, count, []))
        self.assertEqual(self.run_group("cudnn_handle")[0]["cudnn_handle"]["value"], 2**20)

    def test_rates(self):
        self.assertEqual(len(self.run_group("copies")[0]), 10)
        rows, _, failed = self.run_group("gemms")
        self.assertEqual((len(rows), failed), (8, []))

    def test_questions_without_a_gpu(self):
        for group in ("nvml_process", "gemm_bit_equality", "cupti_memory", "mapping_granularity", "nccl_library"):
            _, answers, failed = self.run_group(group)
            self.assertEqual((group, failed), (group, []))
            self.assertTrue(answers)

    # These start processes of their own, which know nothing of what was replaced.
    test_two_ranks_in_processes_of_their_own = None
    test_two_ranks_that_hang_are_ended = None


if __name__ == "__main__":
    unittest.main()
