"""Real PyTorch on the dry device. Says 77 where there is no CUDA build of it, no transformers, or no libraries."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def run(*arguments, script, given=(), launcher=(sys.executable,)):
    line = [sys.executable, str(ROOT / "tools" / "dry" / "run"), *arguments, "--", *launcher, str(HERE / script), *given]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=900)
    return ended


def receipt(path):
    value = json.loads(path.read_text())
    return value["ranks"][0]


class Torch(unittest.TestCase):
    def rows(self, *arguments, script, given=()):
        with tempfile.TemporaryDirectory() as folder:
            ended = run("--receipt", folder + "/r.json", *arguments, script=script, given=given)
        self.assertTrue(ended.stdout.startswith("["), ended.stderr)
        return json.loads(ended.stdout)

    def test_facts(self):
        for device in ("h100-sxm", "a100-sxm-80"):
            for events in ("done", "pending"):
                rows = self.rows("--device", device, "--events", events, script="facts.py", given=(events,))
                for row in rows:
                    with self.subTest(device=device, events=events, what=row["what"]):
                        self.assertEqual(row["got"], row["want"])

    def test_published_peaks(self):
        for row in self.rows("--device", "a100-sxm-80", script="measured.py"):
            with self.subTest(case=row["case"]):
                self.assertEqual(row["here"], row["a100"])

    def test_out_of_memory_before_the_first_step(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = run("--receipt", folder + "/r.json", "--capacity", "100m", script="train.py", given=("plain",))
        self.assertEqual(ended.returncode, 3)
        self.assertIn("out of memory before the first forward: CUDA out of memory.", ended.stderr)

    def test_a_receipt_of_a_script_that_knows_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.json")
            ended = run("--receipt", str(path), script="train.py", given=("plain",))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            rank = receipt(path)
            self.assertEqual([phase["name"] for phase in rank["memory"]["phases"]], ["init", "first_step", "steady"])
            dry = json.loads(pathlib.Path(folder, "r.dry.json").read_text())
            self.assertEqual({row["step"] for row in dry["steps"]}, {1, 2, 3})
            self.assertEqual(dry["libraries"]["stubs"], [])
            if binary := os.environ.get("DSPLAN_BINARY"):
                told = subprocess.run([binary, "compare", "--re-predict", str(path)], capture_output=True, text=True)
                self.assertIn(f"{rank['memory']['peak']['reserved']:,}               0", told.stdout, told.stderr)

    def test_a_compiled_model_is_measured_and_not_compared_with_an_eager_one(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.json")
            ended = run("--receipt", str(path), script="train.py", given=("compiled",))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            rank = receipt(path)
            self.assertEqual([phase["name"] for phase in rank["memory"]["phases"]], ["init", "first_step", "steady"])
            self.assertIn("inputs.compile", [row["what"] for row in rank["not_measured"]])
            if binary := os.environ.get("DSPLAN_BINARY"):
                told = subprocess.run([binary, "compare", "--re-predict", str(path)], capture_output=True, text=True)
                self.assertEqual(told.returncode, 2)
                self.assertIn("torch.compile runs the model", told.stderr)

    def test_checkpoints_that_a_script_makes_itself_are_predicted(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.json")
            ended = run("--receipt", str(path), script="train.py", given=("checkpointed",))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertEqual(json.loads(path.read_text())["inputs"]["training"]["checkpoint"], "full")
            if binary := os.environ.get("DSPLAN_BINARY"):
                told = subprocess.run([binary, "compare", "--re-predict", str(path)], capture_output=True, text=True)
                self.assertIn(f"{receipt(path)['memory']['peak']['reserved']:,}               0", told.stdout, told.stderr)

    def test_processes_that_train_as_the_same_rank_each_have_a_receipt(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = run("--world", "4", "--receipt", folder + "/r.json", script="train.py", given=("forked",))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("the others' receipts are r.process2.json", ended.stderr)
            self.assertIn("--world 4 without effect", ended.stderr)
            found = [receipt(pathlib.Path(folder, name)) for name in ("r.json", "r.process2.json")]
            self.assertEqual(found[0]["memory"], found[1]["memory"])

    def test_experts_in_a_loop_are_routed(self):
        phases = {}
        for rule in ("balanced", "worst"):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, "r.json")
                ended = run("--routing", rule, "--receipt", str(path), script="train.py", given=("experts",))
                self.assertEqual(ended.returncode, 0, ended.stderr)
                value = json.loads(path.read_text())
                at = value["inputs"]["options"].index("--routing")
                self.assertEqual(value["inputs"]["options"][at + 1], rule)
                self.assertEqual(value["inputs"]["training"]["experts"], "eager")
                phases[rule] = value["ranks"][0]["memory"]["phases"]
                peak = value["ranks"][0]["memory"]["peak"]["requested"]
                if binary := os.environ.get("DSPLAN_BINARY"):
                    told = subprocess.run([binary, "compare", "--re-predict", str(path)], capture_output=True, text=True)
                    self.assertIn(f"{peak:,}               0", told.stdout, told.stderr)
        self.assertNotEqual(phases["balanced"], phases["worst"])

    def test_out_of_memory_is_pytorchs_own(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.json")
            ended = run("--receipt", str(path), "--capacity", "650m", script="train.py", given=("plain",))
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("OutOfMemoryError", ended.stderr)
            self.assertEqual(json.loads(path.read_text())["outcome"], "out_of_memory")

    def test_processes_and_mirrored_ranks_agree(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.json")
            ended = run("--receipt", str(path), script="train.py", given=("ddp",),
                        launcher=(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            for rank in (0, 1):
                alone = pathlib.Path(folder, "alone.json")
                ended = run("--receipt", str(alone), "--world", "2", "--rank", str(rank), script="train.py", given=("ddp",))
                self.assertEqual(ended.returncode, 0, ended.stderr)
                one = receipt(pathlib.Path(folder, "alone.rank1.json") if rank else alone)
                many = receipt(pathlib.Path(folder, "r.rank1.json") if rank else path)
                self.assertEqual(one["memory"]["peak"], many["memory"]["peak"])
                self.assertEqual(one["communication"], many["communication"])


    def test_what_fully_shard_was_given_is_read_off_the_modules(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "r.json")
            ended = run("--receipt", str(path), script="train.py", given=("fsdp",),
                        launcher=(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"))
            self.assertEqual(ended.returncode, 0, ended.stderr)
            training = json.loads(path.read_text())["inputs"]["training"]
            self.assertEqual(training["runtime"], "fsdp2")
            self.assertEqual(training["model_init"], "meta")
            self.assertEqual(training["fsdp"], {"wrap": "layers", "reshard_after_forward": "false", "shard": "2",
                                                "replicate": "1", "reduce_dtype": "fp32", "forward_prefetch": "1"})
            marks = [mark["name"] for mark in receipt(path)["memory"]["phases"][1]["marks"]]
            self.assertEqual(marks.count("before forward"), 1)
            if binary := os.environ.get("DSPLAN_BINARY"):
                told = subprocess.run([binary, "compare", "--re-predict", str(path)], capture_output=True, text=True)
                self.assertIn(f"{receipt(path)['memory']['peak']['reserved']:,}               0", told.stdout, told.stderr)


def cuda_build():
    spec = importlib.util.find_spec("torch")
    folder = pathlib.Path(spec.origin).parent if spec and spec.origin else None
    return folder is not None and (folder / "lib" / "libtorch_cuda.so").exists() and importlib.util.find_spec("transformers")


if __name__ == "__main__":
    built = list(ROOT.glob("build/*/dry/libdsplan_dry.so")) or os.environ.get("DSPLAN_DRY_LIBRARIES")
    sys.exit(77) if not (built and cuda_build()) else unittest.main()
