"""The logic of tools/frameworks/snapshots without a GPU: traces driven through an allocator that answers what is
expected, every drive on the CPU, the supervisor, and `dsplan replay` on what comes out where DSPLAN_BINARY names it.
Exit 77 where torch cannot be imported."""
import importlib.util
import json
import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMEWORKS = os.path.dirname(HERE)
ROOT = os.path.dirname(os.path.dirname(FRAMEWORKS))
SKIPPED = 77
sys.path[:0] = [FRAMEWORKS]

from snapshots import run, traces  # noqa: E402
from snapshots.table import RUNS  # noqa: E402

DSPLAN = os.environ.get("DSPLAN_BINARY")


class Expected:
    """An allocator whose counters are those of the .expected.csv; it checks what it is asked."""

    def __init__(self, rows):
        self.left, self.total, self.fraction, self.open, self.calls = list(rows), 1 << 37, None, True, []
        self.late = False

    def set_fraction(self, fraction):
        self.fraction = fraction

    def allocate(self, size, stream):
        self.calls.append(("alloc", size, stream))
        return object()

    def record_stream(self, tensor, stream):
        self.calls.append(("record", stream))

    def empty_cache(self):
        self.calls.append("empty")

    def synchronize(self):
        pass

    def close_gate(self):
        self.open = False

    def open_gate(self):
        self.open = True

    def gate_is_open(self):
        return self.late

    def row(self):
        return self.left.pop(0)


def files_of(name):
    path = os.path.join(run.TRACES, name)
    with open(path + ".trace", encoding="utf-8") as trace, open(path + ".expected.csv", encoding="utf-8") as expected:
        return trace.read(), expected.read()


def rows_of(csv):
    return [[int(value) for value in line.split(",")] for line in csv.splitlines()[1:]]


class OfTraces(unittest.TestCase):
    def test_every_trace_gives_a_row_for_each_call(self):
        names = [name for name in os.listdir(run.TRACES) if name.endswith(".trace")]
        self.assertGreaterEqual(len(names), 36)
        for name in names:
            trace, expected = files_of(name[:-len(".trace")])
            allocator = Expected(rows_of(expected))
            row, driven, measured = traces.drive(trace, expected, allocator)
            self.assertEqual((row["difference"], allocator.left), (None, []), name)
            self.assertEqual(measured, expected)
            self.assertTrue(allocator.open)
            # What was driven differs from the trace in the device alone.
            left = [line for line in driven.splitlines() if line.split()[0] not in ("capacity", "fraction")]
            self.assertEqual(left, [" ".join(line.split()) for line in trace.splitlines()
                                    if line.strip() and line.split()[0] not in ("capacity", "fraction")])

    def test_the_limit_is_met_to_the_byte(self):
        # A quotient that is a little too small loses a byte: 150109880320 and 1073741823 are such a pair.
        for total in (150754820096, 150109880320, 85899345920):
            for limit in (104857600, 419430400, 1073741823, total // 2, total - 1, total):
                self.assertEqual(int(traces.fraction_of(limit, total) * total), limit)
        trace = traces.Trace("capacity 1000\nfraction 0.5\nalloc 1 10 0\n")
        self.assertEqual((trace.limit(5000), trace.conf, trace.calls), (500, "", [["alloc", "1", "10", "0"]]))
        self.assertEqual(trace.as_driven(5000, 0.1), "capacity 5000\nfraction 0.1\nalloc 1 10 0\n")
        self.assertIsNone(traces.Trace("alloc 1 10 0\n").limit(5000))

    def test_what_is_comparable(self):
        calm, short = "header\n0,0,0,0,0,0,0,0\n", "header\n0,0,0,0,0,0,1,0\n"
        for text, expected, is_so in (("capacity 9\n", short, True),
                                      ("conf garbage_collection_threshold:0.5\n", calm, True),
                                      ("capacity 9\nconf garbage_collection_threshold:0.5\n", calm, False),
                                      ("capacity 9\nfraction 1\nconf garbage_collection_threshold:0.5\n", calm, True),
                                      ("capacity 9\nconf expandable_segments:True\n", calm, True),
                                      ("capacity 9\nconf expandable_segments:True\n", short, False)):
            self.assertEqual(traces.Trace(text).counts_as_expected(expected), is_so, text)

    def test_a_difference_is_found_and_a_late_gate(self):
        trace, expected = files_of("g07-record-stream")
        rows = rows_of(expected)
        rows[3][2] += 512
        self.assertIn("row 4: measured", traces.drive(trace, expected, Expected(rows))[0]["difference"])
        text = "alloc 1 10 0\nevents_ready 0\nfree 1\nalloc 1 10 0\n"
        allocator = Expected([[0] * 8] * 3)
        allocator.late = True
        with self.assertRaises(traces.Late):
            traces.drive(text, expected, allocator)

    def test_when_the_gate_is_closed(self):
        """Events are asked for at allocations only: a free before `events_ready 0` waits as well."""
        calls = [line.split() for line in ("alloc 1 10 0", "record_stream 1 9", "free 1", "events_ready 0",
                                           "alloc 2 10 0", "events_ready 1", "free 2", "events_ready 0", "alloc 3 10 0",
                                           "empty_cache", "events_ready 1", "alloc 4 10 0", "free 4")]
        self.assertEqual(traces.readiness(calls),
                         [True] + [False] * 8 + [True] * 4)
        seen = []

        class Watched(Expected):
            def row(self):
                seen.append(self.open)
                return super().row()

        driver = traces.Driver(Watched([[0] * 8] * 10))
        driver.run(calls)
        self.assertEqual(seen, [True, False, False, False, False, False, True, True, True])
        # What gives everything back opens the gate; it is closed again for the next allocation.
        flushed = [[0] * 6 + [0, 0], [0] * 6 + [1, 0], [0] * 6 + [1, 0]]
        closed = []

        class Counted(Expected):
            def close_gate(self):
                closed.append(len(self.left))
                super().close_gate()

        traces.Driver(Counted(flushed)).run([["events_ready", "0"], ["alloc", "1", "1", "0"], ["alloc", "2", "1", "0"],
                                             ["alloc", "3", "1", "0"]])
        self.assertEqual(closed, [3, 1])


class OfRuns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.folder)

    def index(self):
        with open(os.path.join(self.folder, "index.json"), encoding="utf-8") as file:
            return json.load(file)

    def start(self, *words):
        program = os.path.join(FRAMEWORKS, "snapshots")
        command = [sys.executable, program, "--out", self.folder, "--device", "cpu", *words]
        return subprocess.run(command, capture_output=True, text=True)

    def test_every_drive_runs(self):
        """In this process: importing torch takes longer than they do."""
        from common.device import Cpu
        from snapshots import drives
        import torch
        tried = set()
        for one in RUNS:
            words = dict(one.words)
            key = (one.drive, str(sorted(words.items())))
            if key in tried:
                continue
            tried.add(key)
            if "dtype" in words:
                words["dtype"] = torch.bfloat16
                words["fused"] = False
            if "count" not in words and one.drive == "fragment":
                words["count"] = 60
            getattr(drives, one.drive)(drives.World(Cpu()), **words)
        self.assertEqual({name for name, _ in tried},
                         {"train", "fragment", "prefetch", "until_out_of_memory", "device_is_full"})

    def test_memory_that_runs_out_is_survived(self):
        from common.device import Cpu
        from snapshots import drives

        class Short(Cpu):
            def is_out_of_memory(self, error):
                return isinstance(error, MemoryError)

        class Small(drives.World):
            def bytes(self, count):
                self.asked = getattr(self, "asked", 0) + 1
                if self.asked % 7 == 0:
                    raise MemoryError()
                return super().bytes(count)

        for drive, words in ((drives.fragment, {"count": 50}), (drives.device_is_full, {})):
            world = Small(Short())
            drive(world, **words)
            self.assertGreater(world.failures, 1)

    def test_a_run_leaves_a_snapshot_and_is_not_run_again(self):
        words = ["--only", "prefetch-expandable", "trace-g01-small-large"] + (["--dsplan", DSPLAN] if DSPLAN else [])
        done = self.start(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        index = self.index()
        self.assertEqual((index["schema"], index["complete"]), ("dsplan.snapshots/1", True))
        row, trace = index["rows"]
        self.assertEqual((row["outcome"], row["conf"], row["ooms"]), ("ran", "expandable_segments:True", 1), row)
        # A trace needs a GPU, and says so.
        self.assertEqual((trace["outcome"], trace["message"]), ("error", "RuntimeError: traces are driven on a GPU"))
        with lzma.open(os.path.join(self.folder, row["file"])) as packed:
            self.assertEqual(len(pickle.load(packed)["device_traces"][0]), row["entries"])
        if DSPLAN:
            self.assertEqual(row["replay"], {"outcome": "agrees", "text": ""})
        before = os.path.getmtime(os.path.join(self.folder, row["file"]))
        self.assertEqual(self.start(*words).returncode, 0)
        self.assertEqual(os.path.getmtime(os.path.join(self.folder, row["file"])), before)

    def test_time_is_over(self):
        done = self.start("--seconds", "0")
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]),
                         (run.TIME_IS_OVER, f"finding: 0 of {len(RUNS) + 36} ran, stopped before the end"))
        self.assertEqual((self.index()["complete"], self.index()["rows"]), (False, []))

    def test_kinds_and_parts_share_the_runs_out(self):
        said = run.arguments(["--out", self.folder])
        everything = run.names(said)
        shared = [name for kind in run.KINDS for index in (1, 2)
                  for name in run.names(run.arguments(["--out", "x", "--kind", kind, "--part", f"{index}/2"]))]
        self.assertEqual(sorted(shared), sorted(everything))
        self.assertEqual(len(run.names(run.arguments(["--out", "x", "--kind", "streams", "--tiny"]))), 1)
        self.assertTrue(run.index_of(run.arguments(["--out", "x", "--kind", "plain", "--part", "2/3"]))
                        .endswith("index-plain-2of3.json"))

    def test_what_differs_decides_the_exit_code(self):
        said = run.arguments(["--out", self.folder])
        for row, code in (({"outcome": "ran"}, 0), ({"outcome": "error", "message": "no"}, 1),
                          ({"outcome": "ran", "comparable": True, "difference": "row 1"}, 4),
                          ({"outcome": "ran", "comparable": False, "difference": "row 1"}, 0),
                          ({"outcome": "ran", "replay": {"outcome": "differs", "text": ""}}, 4)):
            run.write_row(said, "gpt2", {"name": "gpt2", **row})
            self.assertEqual(run.assemble(said, ["gpt2"], True), code, row)

    def test_replay_finds_what_differs(self):
        if not DSPLAN:
            self.skipTest("DSPLAN_BINARY is not set")
        said = run.arguments(["--out", self.folder, "--dsplan", DSPLAN])
        trace, expected = files_of("g06-oom-retry")
        for name, csv in (("good", expected), ("bad", expected.replace("94371840", "94371841"))):
            with open(os.path.join(self.folder, name + ".trace"), "w", encoding="utf-8") as file:
                file.write(trace)
            with open(os.path.join(self.folder, name + ".csv"), "w", encoding="utf-8") as file:
                file.write(csv)
        outcomes = [run.replay(said, {"file": name + ".trace", "measured": name + ".csv"}) for name in ("good", "bad")]
        self.assertEqual([outcome["outcome"] for outcome in outcomes], ["agrees", "differs"])
        moved = os.path.join(ROOT, "tests", "data", "snapshots", "run-moved.pickle")
        with open(moved, "rb") as plain, lzma.open(os.path.join(self.folder, "moved.pickle.xz"), "wb") as packed:
            packed.write(plain.read())
        outcome = run.replay(said, {"file": "moved.pickle.xz"})
        self.assertEqual(outcome["outcome"], "differs")
        self.assertIn("placed at", outcome["text"])
        self.assertFalse(os.path.exists(os.path.join(self.folder, "moved.pickle")))


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        print("skipped: torch and transformers are not installed")
        sys.exit(SKIPPED)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    unittest.main()
