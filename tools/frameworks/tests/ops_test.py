"""The logic of tools/frameworks/ops without a GPU: the reader of histories on written ones, the recorder on a history
made up from fake tensors, values that kernels may read, and the supervisor. Exit 77 where torch cannot be imported."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMEWORKS = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(FRAMEWORKS))
SKIPPED = 77
sys.path[:0] = [FRAMEWORKS, os.path.join(ROOT, "tools", "oracles")]

from ops.history import History  # noqa: E402


def entry(action, address, size):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 0, "frames": []}


class OfHistory(unittest.TestCase):
    def test_order_reuse_segments(self):
        history = History()
        log = history.read([entry("segment_alloc", 4096, 2097152), entry("alloc", 4096, 100), entry("alloc", 4608, 60),
                            entry("free_requested", 4096, 100), entry("free_completed", 4096, 100),
                            entry("alloc", 4096, 7), entry("snapshot", 0, 67)])
        self.assertEqual(log, [("+", 1, 100, None), ("+", 2, 60, None), ("-", 1), ("+", 3, 7, None)])
        self.assertEqual(history.live, {4096: 3, 4608: 2})
        self.assertEqual(history.moves(log), [100, 60, -100, 7])
        self.assertEqual(history.live_sizes(), [7, 60])
        # The next entries go on from there; a free of what was there before the history began is nobody's.
        log = history.read([entry("free_requested", 4608, 60), entry("free_requested", 512, 9)])
        self.assertEqual((log, history.moves(log), history.faults), ([("-", 2)], [-60], []))

    def test_a_free_waits_for_another_stream(self):
        history = History()
        log = history.read([entry("alloc", 512, 8), entry("free_requested", 512, 8), entry("alloc", 1024, 8),
                            entry("free_completed", 512, 8), entry("alloc", 512, 8)])
        self.assertEqual([e[0] for e in log], ["+", "-", "+", "+"])
        self.assertEqual(history.faults, [])

    def test_faults(self):
        for entries, what in (([entry("alloc", 512, 8), entry("alloc", 512, 8)], "twice"),
                              ([entry("alloc", 512, 8), entry("free_requested", 512, 9)], "9 freed"),
                              ([{"action": "oom", "size": 5, "device_free": 1}], "out of memory: 5 bytes"),
                              ([entry("teleport", 512, 8)], "unknown kind: teleport")):
            history = History()
            history.read(entries)
            self.assertTrue(any(what in fault for fault in history.faults), (what, history.faults))


def as_allocations(words):
    """Groups that the dispatcher cannot tell apart: each word a sorted list."""
    return [sorted(word.split(",")) for word in words.split()]


class OfRecorders(unittest.TestCase):
    def same(self, ours, theirs):
        """Allocation by allocation, but for the order within one call."""
        left = ours.split()
        for group in as_allocations(theirs):
            taken, left = sorted(left[:len(group)]), left[len(group):]
            self.assertEqual(taken, group)
        self.assertEqual(left, [])

    def test_a_history_says_what_the_dispatcher_says(self):
        import operators as oracle
        from ops.simulated import SimulatedRecorder
        names = {"maximum", "layer_norm", "masked_fill_", "clamp", "kl_div", "unbind"}
        seen = 0
        for case in oracle.CASES:
            if case["op"] not in names:
                continue
            for which in oracle.runs_of(case):
                if which[0] != "bf16":
                    continue
                theirs = oracle.run(case, *which, oracle.FakeRecorder())
                recorder = SimulatedRecorder()
                ours = oracle.run(case, *which, recorder)
                self.assertEqual(recorder.history.faults, [])
                for part in ("forward", "backward"):
                    self.same(ours.pop(part, ""), theirs.pop(part, ""))
                self.assertEqual(ours, theirs)
                seen += 1
        self.assertGreater(seen, 60)

    def test_workspaces_stand_apart(self):
        import torch
        from ops.recorders import CudaRecorder
        entries = []

        class Memory:
            def _record_memory_history(self, *_, **__):
                pass

            def _snapshot(self):
                return {"device_traces": [list(entries)]}

        class Recorder(CudaRecorder):
            def synchronize(self):
                pass

        self.assertEqual(CudaRecorder.device, torch.device("cuda:0"))
        entries.append(entry("alloc", 512, 1))  # From before: not of this case.
        with Recorder(workspaces=[1 << 25, 512], memory=Memory()) as recorder:
            entries += [entry("alloc", 4096, 60), entry("alloc", 8192, 1 << 25), entry("alloc", 1024, 512),
                        entry("free_requested", 8192, 1 << 25)]
            log = recorder.take()
            # 512 bytes are no workspace, whatever the warm-up left.
            self.assertEqual(recorder.history.moves(log), [60, 512])
            self.assertEqual(recorder.own, [1 << 25])
            entries += [entry("free_requested", 4096, 60)]
            self.assertEqual(recorder.history.moves(recorder.take()), [-60])

    def test_kernels_may_read_the_values(self):
        """On the CPU: an index out of range or a wrong number of groups would throw."""
        import operators as oracle
        import torch
        from ops.recorders import CudaRecorder

        class Recorder(CudaRecorder):
            device = torch.device("cpu")

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def take(self):
                return []

            def serial_of(self, tensor):
                return None

        names = {"embedding", "index", "index_select", "gather", "scatter", "scatter_add", "nll_loss", "grouped_mm",
                 "binary_cross_entropy", "batch_norm", "where", "log", "cumprod"}
        for case in oracle.CASES:
            if case["op"] not in names:
                continue
            for shape in range(len(case["shapes"])):
                dtype = "bf16" if case["op"] == "grouped_mm" else "fp32"
                oracle.run(case, dtype, shape, case["grad"], case["call"] is None, Recorder())


class OfOptimizers(unittest.TestCase):
    def test_a_step_on_a_gpu_is_held_against_fake_tensors(self):
        from ops import optimizer_check
        step = {"optimizer": "adam", "implementation": "fused", "parameters": [], "constructed": []}
        fake = {**step, "first": {"log": ["fp32 8", "-8", "-4", "bf16 2"]}, "second": {"log": []}}
        real = {**step, "first": {"log": ["+8", "-4", "-8", "+2"]}, "second": {"log": []}, "workspaces": [1 << 25]}
        self.assertEqual(optimizer_check.compare({"optimizers": [real]}, {"cases": [fake]}), (1, [], []))
        real["second"] = {"log": ["+16", "-16"]}
        equal, different, unknown = optimizer_check.compare({"optimizers": [real, {**real, "optimizer": "lion"}]},
                                                            {"cases": [fake]})
        self.assertEqual((equal, [row[1:] for row in different], len(unknown)), (0, [("second", [], [16, -16])], 1))

    def test_steps_are_read_from_a_history(self):
        """Adam's states on the device, in the words of the witness."""
        import operators as oracle
        from ops import optimizer_check, optimizer_runs
        from ops.simulated import SimulatedRecorder
        self.assertIsNotNone(oracle)
        for key, step in optimizer_runs.steps_of("simulated", SimulatedRecorder):
            if "adam-foreach-mixed" not in key:
                continue
            with open(os.path.join(ROOT, "tests", "witnesses", "optimizers.json"), encoding="utf-8") as file:
                equal, different, unknown = optimizer_check.compare({"optimizers": [step()]}, json.load(file))
            self.assertEqual((equal, different, unknown), (1, [], []))
            return
        self.fail("no such step")


class OfSupervisor(unittest.TestCase):
    """A worker that dies, hangs or runs out of time."""

    def run_ops(self, *words):
        """Exit codes, last line and file of a run that has no time, and of the same command again."""
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(FRAMEWORKS, "ops")
            command = [sys.executable, program, "--out", folder, "--device", "simulated", *words]
            found = []
            for seconds in ("0", "300"):
                done = subprocess.run(command + ["--seconds", seconds], capture_output=True, text=True)
                with open(os.path.join(folder, "operators-2of3.json"), encoding="utf-8") as file:
                    found.append((done.returncode, done.stdout.splitlines()[-1], json.load(file)))
            return found

    def test_time_is_over_and_it_goes_on(self):
        import operators as oracle
        index = next(i for i, case in enumerate(oracle.CASES) if case["op"] == "neg")
        self.assertEqual(index % 3, 1, "neg is no longer in the second part of three: name another one here")
        (code, words, first), (last_code, last_words, last) = self.run_ops("--only", "neg", "add", "--part", "2/3")
        self.assertEqual((code, words), (3, "finding: 0 operator cases measured, 0 failed, stopped before the end"))
        self.assertEqual((first["complete"], first["cases"]), (False, []))
        self.assertEqual(last_code, 0)
        self.assertRegex(last_words, r"^finding: \d+ operator cases measured, 0 failed$")
        self.assertTrue(last["complete"])
        self.assertEqual((last["schema"], last["level"], last["failed"]), ("dsplan.operator_runs/1", "kernel", []))
        row = next(case for case in last["cases"] if case["op"] == "neg")
        self.assertEqual((row["op"], row["in"], row["forward"], row["backward"], row["moves"]),
                         ("neg", ["fp32[6,10]*"], "+out0:240", "+in0:240", {"forward": [240], "backward": [240]}))

    def test_whoever_ends_the_process_is_named(self):
        from ops import run
        with tempfile.TemporaryDirectory() as folder:
            part = os.path.join(folder, "x.part")
            self.assertFalse(run.blame(part, "nothing ran"))
            with open(part + ".now", "w", encoding="utf-8") as file:
                file.write("add/1/fp32")
            self.assertTrue(run.blame(part, "the process ended with -6"))
            self.assertEqual(run.lines_of(part), [{"key": "add/1/fp32", "error": "the process ended with -6"}])
            self.assertFalse(run.blame(part, "twice"))
            with open(part, "a", encoding="utf-8") as file:
                file.write('{"key":"cut sh')
            self.assertEqual(run.keys_of(part), {"add/1/fp32"})
            process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            self.assertIsNone(run.watch(process, part, deadline=0, patience=0.1))


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("skipped: torch is not installed")
        sys.exit(SKIPPED)
    from common.device import prepare
    prepare("fake")
    unittest.main()
