"""tools/gpu/regret.py: what it makes of numbers, what it looks at of a search, and all of it once on the host where
dsplan is at hand ($DSPLAN_BINARY). Standard library only."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
TOOL = ROOT / "tools/gpu/regret.py"
sys.path.insert(0, str(ROOT / "tools/gpu"))

import regret  # noqa: E402

# Stands for dsplan: a search of six plans, of which one does not fit; estimates say 1, 2, 3, ..., the machine otherwise.
STUB = """#!{python}
import json, sys
words = sys.argv[1:]
said = dict(word.split("=") for at, word in enumerate(words) if at and words[at - 1] == "--vary")
out = words[words.index("--out") + 1] if "--out" in words else None
took = {took}
if words[0] == "plan" and out is None:
    space = {{"gpus": {{"values": [2], "origin": "given", "reason": "--gpus"}}, "micro_batch": {{"values": [1, 2, 3, 4, 5, 6],
              "origin": "given", "reason": "--vary"}}, "global_batch": {{"value": 60}}}}
    print(json.dumps({{"space": space, "chosen": {{"dp": 2, "settings": {{"gpus": 2, "micro_batch": 1, "grad_accum": 1,
                                                                     "seq": 10}}}}}}))
elif words[0] == "plan":
    size = int(said["micro_batch"])
    if size == 6:
        sys.exit(5)
    open(out, "w").write(json.dumps({{"time": {{"total": size / 1000}}, "size": size}}))
else:
    size = json.load(open(words[1]))["size"]
    samples = [{{"phase": phase, "rank": rank, "step_ns": int(took[size - 1] * (1e9 if phase == "first_step" else 1e6))
                + rank}} for phase in ("first_step", "middle_steps", "steady") for rank in (0, 1)]
    open(out, "w").write(json.dumps({{"samples": samples}}))
    sys.exit({code})
"""


class Regret(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def stub(self, took, code=0):
        path = self.folder / "dsplan"
        path.write_text(STUB.format(python=sys.executable, took=took, code=code), encoding="utf-8")
        path.chmod(0o700)
        return str(path)

    def run_tool(self, *words):
        out = self.folder / "regret.json"
        done = subprocess.run([sys.executable, str(TOOL), "--out", str(out), *words], capture_output=True, text=True,
                              check=False)
        return done, json.loads(out.read_text(encoding="utf-8")) if out.exists() else None

    def test_ranks_share_what_is_equal(self):
        self.assertEqual(regret.ranks([30, 10, 20]), [3, 1, 2])
        self.assertEqual(regret.ranks([5, 1, 5, 5]), [3, 1, 3, 3])

    def test_correlation_is_of_the_order_alone(self):
        self.assertAlmostEqual(regret.spearman([1, 2, 3, 4], [10, 20, 300, 4000]), 1)
        self.assertAlmostEqual(regret.spearman([1, 2, 3, 4], [4, 3, 2, 1]), -1)
        # By hand: d = 0, 1, -1, 1, -1, so 1 - 6 * 4 / (5 * 24).
        self.assertAlmostEqual(regret.spearman([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]), 0.8)
        self.assertIsNone(regret.spearman([1, 1, 1], [1, 2, 3]))

    def test_regret_is_against_the_fastest_that_was_run(self):
        rows = [{"estimated_s": 1.0, "measured_s": 3.0}, {"estimated_s": 2.0, "measured_s": 2.0},
                {"estimated_s": 3.0, "measured_s": 6.0}]
        judged = regret.judge(rows)
        self.assertAlmostEqual(judged["regret"], 0.5)
        self.assertAlmostEqual(judged["rank_correlation"], 0.5)
        self.assertAlmostEqual(judged["median_error"], 0.5)

    def test_an_order_that_holds(self):
        done, result = self.run_tool("--dsplan", self.stub([1, 2, 3, 4, 5]), "--top", "2", "--random", "9", "--", "m")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(result["fit"], 5)  # The sixth does not.
        self.assertEqual(result["plans"], 5)
        self.assertEqual(result["regret"], 0)
        self.assertAlmostEqual(result["rank_correlation"], 1)
        self.assertTrue(result["chosen_has_the_least_estimate"])
        self.assertIn("finding: 5 of 5 plans on cuda: regret 0.0 %, rank correlation 1.00", done.stdout)

    def test_an_order_that_does_not(self):
        done, result = self.run_tool("--dsplan", self.stub([5, 4, 3, 2, 1]), "--", "m")
        self.assertEqual(done.returncode, 0)  # Reported, not judged.
        self.assertAlmostEqual(result["regret"], 4, places=4)
        self.assertAlmostEqual(result["rank_correlation"], -1)

    def test_bytes_that_differ_are_red(self):
        done, _ = self.run_tool("--dsplan", self.stub([1, 2, 3, 4, 5], code=4), "--", "m")
        self.assertEqual(done.returncode, 4)
        self.assertIn("differ in bytes", done.stdout)

    def test_no_device(self):
        done, result = self.run_tool("--dsplan", self.stub([1, 2, 3, 4, 5], code=6), "--", "m")
        self.assertEqual(done.returncode, 6)
        self.assertIsNone(result)
        self.assertTrue(done.stdout.startswith("finding: "))

    @unittest.skipUnless(os.environ.get("DSPLAN_BINARY"), "dsplan is not at hand")
    def test_on_the_host(self):
        done, result = self.run_tool("--dsplan", os.environ["DSPLAN_BINARY"], "--backend", "host", "--calibrate", "--quick",
                                     "--top", "2", "--random", "1", "--repeats", "1", "--", "models/tiny-llama.json", "--dtype",
                                     "fp32", "--seq", "16", "--gpus", "2", "--global-batch", "4", "--vary",
                                     "zero_stage=0,3", "--vary", "micro_batch=1,2", "--vary", "checkpoint=none", "--vary",
                                     "tp=1", "--vary", "offload=none", "--vary", "reduce_bucket_size=50000")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(result["fit"], 4)
        self.assertEqual(result["plans"], 3)
        self.assertTrue(result["chosen_has_the_least_estimate"])
        self.assertTrue(all(row["as_predicted"] and row["measured_s"] > 0 for row in result["rows"]))


if __name__ == "__main__":
    unittest.main()
