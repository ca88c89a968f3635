"""The matrix and the verdicts as far as they need no torch: order, budget, crashes, timeouts, going on, the confusion
matrix; and that dsplan predicts every row. Standard library, and DSPLAN_BINARY for the last."""

import contextlib
import glob
import io
import json
import os
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, HERE)

import matrix
import verdicts
from common import configuration, runner
from common.receipt import validate

runner.STEP = os.path.join(HERE, "tests", "stub_step.py")


def row(name, **more):
    return {"name": name, "model": "tiny-gpt2", "training": {"seq": 8}, **more}


def called(main, *words):
    """(exit code, stdout) of a program's main."""
    said = io.StringIO()
    with mock.patch.object(sys, "argv", ["program", *words]), contextlib.redirect_stdout(said):
        return main(), said.getvalue()


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def receipt(self, name):
        with open(self.path(name + ".json"), encoding="utf-8") as file:
            return json.load(file)

    def matrix_of(self, *rows):
        with open(self.path("rows"), "w", encoding="utf-8") as file:
            json.dump({"dsplan": 1, "kind": "matrix", "source": "test", "rows": list(rows)}, file)
        return self.path("rows")

    def test_all_run_and_a_second_call_has_nothing_to_do(self):
        rows = self.matrix_of(row("a"), row("b"), row("c"))
        words = ("--rows", rows, "--out", self.path("out"), "--device", "cpu")
        code, said = called(matrix.main, *words)
        self.assertEqual(code, 0)
        self.assertIn("3 rows: 0 measured before, 3 now, 0 in error, 0 left", said)
        code, said = called(matrix.main, *words)
        self.assertIn("3 rows: 3 measured before, 0 now, 0 in error, 0 left", said)

    def test_a_crash_and_a_hang_are_recorded_and_the_run_goes_on(self):
        rows = self.matrix_of(row("dies", note="crash"), row("hangs", note="hang"), row("mute", note="no receipt"),
                              row("good"))
        code, said = called(matrix.main, "--rows", rows, "--out", self.folder, "--device", "cpu", "--timeout-s", "5")
        self.assertEqual(code, 1)
        self.assertIn("4 now, 3 in error", said)
        self.assertEqual([self.receipt(name)["outcome"] for name in ("dies", "hangs", "mute", "good")],
                         ["error", "error", "error", "ran"])
        self.assertIn("exit code -6", self.receipt("dies")["message"])
        self.assertIn("ended after 5 s", self.receipt("hangs")["message"])
        for name in ("dies", "hangs", "mute"):
            self.assertEqual(validate(self.receipt(name)), [])

    def test_what_the_budget_leaves_is_not_begun(self):
        rows = self.matrix_of(row("slow", note="hang"), row("never"), row("nor this"))
        started = time.monotonic()
        code, said = called(matrix.main, "--rows", rows, "--out", self.folder, "--device", "cpu", "--budget-s", "12",
                            "--timeout-s", "4", "--only", "slow|never|nor")
        self.assertLess(time.monotonic() - started, 60)
        self.assertIn("in error", said)
        self.assertEqual(code, 1)
        self.assertEqual(len(glob.glob(self.path("*.part"))), 0)

    def test_a_name_twice_and_an_unknown_key_are_refused(self):
        for rows in ((row("a"), row("a")), (row("a", seq=3),)):
            with self.assertRaises(configuration.Bad):
                configuration.rows([self.matrix_of(*rows)])

    def test_verdicts_are_held_against_runs(self):
        """The stub runs out of memory below the number in its note."""
        rows = self.matrix_of(row("right", note="1000"), row("too bold", note="2000"))
        lines = [{"name": name, "predicted_bytes": 1000, "limit_bytes": verdicts.limit_of(1000, factor),
                  "factor_permille": factor, "predicted": said}
                 for name in ("right", "too bold") for factor, said in ((1010, "fits"), (990, "does_not_fit"))]
        with open(self.path("plan"), "w", encoding="utf-8") as file:
            json.dump({"lines": lines}, file)
        words = ("--rows", rows, "--plan", self.path("plan"), "--out", self.folder, "--device", "cpu")
        code, said = called(verdicts.main, *words)
        self.assertEqual(code, 4)
        self.assertIn("4 runs, 1 against their verdict", said)
        result = self.receipt("verdicts")
        self.assertEqual(sorted(result), ["environment", "rows", "schema", "source"])
        self.assertEqual([(line["name"], line["limit_bytes"], line["measured"]) for line in result["rows"]],
                         [("right", 1010, "ran"), ("right", 990, "out_of_memory"),
                          ("too bold", 1010, "out_of_memory"), ("too bold", 990, "out_of_memory")])
        code, said = called(verdicts.main, *words)
        self.assertIn("4 planned, 0 run now", said)


@unittest.skipUnless(os.environ.get("DSPLAN_BINARY"), "needs DSPLAN_BINARY")
class Predicting(unittest.TestCase):
    def test_dsplan_predicts_every_row_below_the_bound(self):
        code, said = called(matrix.main, "--check", "--rows", os.path.join(HERE, "matrix_pytorch.json"), "--dsplan",
                            os.environ["DSPLAN_BINARY"])
        self.assertEqual(code, 0, said)
        self.assertGreaterEqual(len(said.splitlines()), 31)

    def test_tight_is_what_the_bytes_say(self):
        said = [verdicts.sharp({"verdict": verdict, "retries": retries}) for verdict, retries in
                (("tight", 0), ("tight", 2), ("fits", 0), ("does_not_fit", 1))]
        self.assertEqual(said, ["fits", "fits_with_retries", "fits", "does_not_fit"])

    def test_a_plan_of_verdicts(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            code, said = called(verdicts.main, "--plan", path, "--dsplan", os.environ["DSPLAN_BINARY"], "--rows",
                                os.path.join(HERE, "matrix_pytorch.json"))
            self.assertEqual(code, 0, said)
            with open(path, encoding="utf-8") as file:
                lines = json.load(file)["lines"]
        self.assertGreaterEqual(len(lines), 16)
        for line in lines:
            self.assertIn(line["predicted"], verdicts.PREDICTED)
            if line["factor_permille"] == 1010:
                self.assertEqual(line["predicted"], "fits", line["name"])
            else:
                self.assertNotEqual(line["predicted"], "fits", line["name"])


if __name__ == "__main__":
    unittest.main()
