"""The Python package against the program: the same figures, its messages, its refusals. Needs DSPLAN_BINARY, no torch."""
import dataclasses
import html.parser
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
PROGRAM = os.environ.get("DSPLAN_BINARY")
if sys.version_info < (3, 8) or not PROGRAM:
    print("skipped: needs Python 3.8 and DSPLAN_BINARY")
    sys.exit(77)

import dsplan

ZERO3 = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1}
GPT2 = {"gpus": 2, "hardware": "h100-sxm", "zero_stage": 2}


def printed(*words, code=0):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    if done.returncode != code:
        raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def plain(value):
    """A result as JSON has it: without what was not there."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
                if not (field.default is None and getattr(value, field.name) is None)}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple) else value


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.faults, self.frames = [], 0, [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.rows += tag == "tr"
        self.frames += [value for name, value in attributes if name == "srcdoc"]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


class Simulating(unittest.TestCase):
    def test_has_every_figure_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "ds.json")
            path.write_text(json.dumps(ZERO3))
            said = json.loads(printed("simulate", "llama-3-8b", "--deepspeed", str(path), "--gpus", "8", "--hardware", "h100-sxm",
                                      "--format", "json"))
            by_path = dsplan.simulate("llama-3-8b", deepspeed=path, gpus=8, hardware="h100-sxm")
        by_dict = dsplan.simulate("llama-3-8b", deepspeed=ZERO3, gpus=8, hardware="h100-sxm")
        self.assertEqual(plain(by_path), said)
        self.assertEqual(by_dict, by_path)
        self.assertIs(by_path.fits, True)
        self.assertEqual(by_path.memory.peak.by_role.optimizer, said["memory"]["peak"]["by_role"]["optimizer"])
        self.assertGreater(by_path.memory.peak.process, 2**30)

    def test_keys_that_only_some_answers_have(self):
        said = printed("simulate", "gpt2", "--gpus", "2", "--hardware", "h100-sxm", "--zero-stage", "2", "--placement", "planned",
                       "--format", "json")
        made = dsplan.simulate("gpt2", placement="planned", **GPT2)
        self.assertEqual(plain(made), json.loads(said))
        self.assertGreater(made.memory.planned.height, 0)
        self.assertIsNone(dsplan.simulate("gpt2", **GPT2).memory.planned)

    def test_a_job_that_does_not_fit_is_an_answer(self):
        made = dsplan.simulate("gpt2", capacity="1GiB", **GPT2)
        self.assertIs(made.fits, False)
        self.assertEqual(made.verdict, "does_not_fit")

    def test_ranks(self):
        ranks = dsplan.simulate_ranks("gpt2", **GPT2)
        self.assertEqual([one.rank for one in ranks], [0, 1])
        self.assertEqual(ranks[1], dsplan.simulate("gpt2", rank=1, **GPT2))
        with self.assertRaisesRegex(TypeError, "simulate_ranks"):
            dsplan.simulate("gpt2", rank="all", **GPT2)

    def test_a_model_from_memory(self):
        config = json.loads((ROOT / "models" / "gpt2.json").read_text())

        class Config:
            def to_json_string(self, use_diff=True):
                assert not use_diff  # Else what equals the class's defaults is left out.
                return json.dumps({**config, "_name_or_path": "org/mine"})

        model = types.SimpleNamespace(config=Config())
        named = dsplan.simulate("gpt2", **GPT2)
        for given in (config, Config(), model):
            made = dsplan.simulate(given, **GPT2)
            self.assertEqual(made.memory, named.memory)
        self.assertEqual(dsplan.simulate(model, **GPT2).model, "mine")

    def test_training_arguments_as_an_object(self):
        class Arguments:
            def to_dict(self):
                return {"output_dir": "out", "per_device_train_batch_size": 4, "bf16": True, "optim": "adamw_torch_fused"}

        made = dsplan.simulate("gpt2", training=Arguments(), gpus=1, hardware="h100-sxm", seq=512)
        said = dsplan.simulate("gpt2", training=Arguments().to_dict(), gpus=1, hardware="h100-sxm", seq=512)
        less = dsplan.simulate("gpt2", training={**Arguments().to_dict(), "per_device_train_batch_size": 1}, gpus=1,
                               hardware="h100-sxm", seq=512)
        self.assertEqual(made, said)
        self.assertGreater(made.memory.peak.requested, less.memory.peak.requested)
        with self.assertRaisesRegex(TypeError, "training.json"):
            dsplan.simulate("gpt2", training=3)

    def test_options(self):
        made = dsplan.simulate("gpt2", micro_batch=2, checkpoint="full", freeze=["transformer.wte.*", "transformer.wpe.*"], strict=False, launch=["torchrun",
                               "--nproc-per-node", "2", "train.py"], hardware="h100-sxm", set={"zero_grad_set_to_none": "false"})
        self.assertEqual(made.command, "dsplan simulate gpt2 --hardware h100-sxm --micro-batch 2 --checkpoint full --freeze 'transformer.wte.*' "
                         "--freeze 'transformer.wpe.*' --set zero_grad_set_to_none=false -- torchrun --nproc-per-node 2 train.py")
        self.assertEqual(made.world_size, 2)
        for name in ("format", "out"):
            with self.assertRaisesRegex(TypeError, name):
                dsplan.simulate("gpt2", **{name: "json"})


class Refusing(unittest.TestCase):
    def test_says_what_the_program_says(self):
        wrong = {"zero_optimization": {"stage": 7, "foo": 1}}
        with self.assertRaises(dsplan.Refused) as caught:
            dsplan.simulate("gpt2", deepspeed=wrong, gpus=8)
        error = caught.exception
        self.assertEqual(error.code, 2)
        self.assertTrue(str(error).startswith("deepspeed.json:3:14: error: ZeRO stage 7 does not exist"), str(error))
        self.assertIn('unknown key "foo"', str(error))  # All faults together.
        self.assertNotIn(tempfile.gettempdir(), str(error))
        self.assertEqual(error.command, "dsplan simulate gpt2 --deepspeed deepspeed.json --gpus 8 --format json")

    def test_an_option_that_there_is_not(self):
        with self.assertRaisesRegex(dsplan.Refused, "did you mean --gpus"):
            dsplan.simulate("gpt2", gpuss=8)

    def test_a_model_that_there_is_not(self):
        with self.assertRaisesRegex(dsplan.Refused, "lists them"):
            dsplan.plan("gpt-2-small-ish", gpus=8)

    def test_a_program_that_there_is_not(self):
        with mock.patch.dict(os.environ, {"PATH": "/nonexistent"}):
            del os.environ["DSPLAN_BINARY"]
            with mock.patch("os.path.isfile", return_value=False), self.assertRaisesRegex(dsplan.Error, "DSPLAN_BINARY"):
                dsplan.simulate("gpt2")


class Planning(unittest.TestCase):
    def test_has_every_figure_of_the_program(self):
        said = json.loads(printed("plan", "gpt2", "--gpus", "2", "--hardware", "h100-sxm", "--pareto", "--format", "json"))
        made = dsplan.plan("gpt2", gpus=2, hardware="h100-sxm", pareto=True)
        self.assertEqual(plain(made), said)
        self.assertIs(made.feasible, True)
        self.assertEqual(made.chosen.settings.gpus, 2)
        self.assertGreater(len(made.front), 1)

    def test_nothing_fits(self):
        said = json.loads(printed("plan", "llama-3-70b", "--gpus", "1", "--hardware", "h100-sxm", "--format", "json", code=5))
        made = dsplan.plan("llama-3-70b", gpus=1, hardware="h100-sxm")
        self.assertEqual(plain(made), said)
        self.assertIsNone(made.chosen)
        self.assertIn("no plan fits", repr(made))


class Sweeping(unittest.TestCase):
    def test_has_every_point_of_the_program(self):
        said = json.loads(printed("sweep", "gpt2", "--gpus", "2", "--hardware", "h100-sxm", "--zero-stage", "2", "--vary",
                                  "micro_batch=1,2", "--vary", "tp=1,5", "--format", "json"))
        made = dsplan.sweep("gpt2", vary={"micro_batch": range(1, 3), "tp": "1,5"}, **GPT2)
        self.assertEqual(plain(made), said)
        self.assertEqual([point.fits for point in made.points], [True, None, True, None])
        self.assertEqual(made.points[0].process_bytes, dsplan.simulate("gpt2", micro_batch=1, **GPT2).memory.peak.process)
        self.assertEqual(made.fastest().values, {"micro_batch": "2", "tp": "1"})
        self.assertEqual(repr(made), "<Sweep of 2 micro_batch x 2 tp: 2 of 4 fit>")
        self.assertIn("micro_batch=1, tp=1: fits", repr(made.points[0]))
        self.assertTrue(str(made).startswith("4 points: 2 FITS, 2 refused"), str(made))
        tags = Tags(made._repr_html_())
        self.assertEqual((tags.open, tags.faults, tags.rows), ([], [], 5))

    def test_models_are_an_axis(self):
        made = dsplan.sweep(vary={"model": ["tiny-llama", "tiny-gpt2"]})
        self.assertEqual([point.values["model"] for point in made.points], ["tiny-llama", "tiny-gpt2"])
        with self.assertRaisesRegex(TypeError, "a comma"):
            dsplan.sweep("gpt2", vary={"seq": ["1,2"]})
        with self.assertRaisesRegex(dsplan.Refused, "did you mean micro_batch"):
            dsplan.sweep("gpt2", vary={"micro_batc": [1]})


class Comparing(unittest.TestCase):
    """A receipt as a perfect run would write it, made of the prediction itself, and one that asked for more."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = str(pathlib.Path(cls.folder.name, "receipt.json"))
        cls.config = json.loads((ROOT / "models" / "gpt2.json").read_text())
        cls.training = {"dsplan": 1, "kind": "training", "source": "a test", "seq": 256, "dtype": "bf16"}
        cls.made = dsplan.simulate(cls.config, training=cls.training)

    def write(self, more):
        phases = [{"name": phase.name, "marks": [], **{key: getattr(phase, key) + more for key in
                   ("peak_requested", "peak_allocated", "peak_active", "peak_reserved")}} for phase in self.made.memory.phases
                  if phase.name in ("init", "first_step", "steady")]
        peak = {key: max(phase["peak_" + key] for phase in phases) for key in ("requested", "allocated", "active", "reserved")}
        counts = {"total": self.made.parameters.total, "trainable": self.made.parameters.trainable}
        rank = {"rank": 0, "parameters": counts, "communication": None, "snapshot": None,
                "not_measured": [{"what": what, "why": "a test"} for what in ("memory.persistent", "memory.peak.process",
                                                                              "memory.host", "communication", "snapshot")],
                "memory": {"persistent": None, "peak": {**peak, "process": None, "phase": None}, "phases": phases, "host": None}}
        environment = dict.fromkeys(("gpu", "capacity_bytes", "driver", "cuda", "python", "torch", "transformers", "deepspeed",
                                     "peft", "limit_bytes"))
        value = {"schema": "dsplan.receipt/1", "source": "a test", "name": "receipt", "level": "framework", "device": "cuda",
                 "ranks_are": "process", "complete": True, "outcome": "ran", "message": None, "world_size": 1, "ranks": [rank],
                 "samples": [], "environment": {**environment, "allocator_conf": "", "recorded": "2026-01-01T00:00:00Z"},
                 "inputs": {"model": self.config, "deepspeed": None, "training_arguments": None, "options": [], "fingerprint": None,
                            "training": self.training}}
        pathlib.Path(self.path).write_text(json.dumps(value))

    def test_equal_and_not(self):
        self.write(0)
        found = dsplan.compare(self.path)
        self.assertIs(found.differs, False, found.summary())
        self.assertEqual(found.summary(), "")
        self.write(1 << 20)
        found = dsplan.compare(self.path)
        self.assertIs(found.differs, True)
        self.assertIn("memory.peak.requested", found.summary())
        self.assertEqual(plain(found), json.loads(printed("compare", "--re-predict", self.path, "--format", "json", code=4)))
        self.assertIs(dsplan.compare(self.path, tolerance=["requested=2097152", "allocated=2097152", "active=2097152",
                                                           "reserved=2097152"]).differs, False)

    def callback(self, more, **options):
        """What MemoryCheck says after a run of four steps, with a recorder in the place of torch's."""
        test, said, recorded = self, [], []

        class Recorder:
            def on_train_begin(self, args, state, control, **_):
                self.receipt = types.SimpleNamespace(path=test.path, __exit__=lambda: None)

                class Receipt:
                    path = test.path

                    def __exit__(self):
                        recorded.append(state.global_step)
                        test.write(more)
                self.receipt = Receipt()

        fake = types.ModuleType("dsplan.receipt")
        fake.ReceiptCallback = lambda path: Recorder()
        with mock.patch.dict(sys.modules, {"dsplan.receipt": fake}):
            sys.modules.pop("dsplan.trainer", None)
            from dsplan.trainer import MemoryCheck
            callback = MemoryCheck(self.path, tell=said.append, **options)
        state = types.SimpleNamespace(global_step=10)  # As after a resumed checkpoint.
        callback.on_train_begin(None, state, None)
        for _ in range(4):
            state.global_step += 1
            callback.on_step_end(None, state, None)
        self.assertEqual(recorded, [12])
        return said

    def test_the_callback_says_what_differs_once(self):
        self.assertEqual(self.callback(0), [])
        self.assertEqual(self.callback(4096), [])  # Within what may differ.
        [said] = self.callback(4096, tolerance=[])
        self.assertIn("memory.peak.requested", said)
        self.assertIn("dsplan compare", said)
        [said] = self.callback(1 << 30)
        self.assertIn("memory.peak.reserved", said)

    def test_the_callback_never_ends_the_job(self):
        with mock.patch.dict(os.environ, {"DSPLAN_BINARY": "/nonexistent/dsplan"}):
            [said] = self.callback(0)
        self.assertIn("dsplan: ", said)
        self.config, kept = {"model_type": "nobody-knows"}, self.config
        try:
            [said] = self.callback(0)
        finally:
            self.config = kept
        self.assertIn("nobody-knows", said)


class Showing(unittest.TestCase):
    def test_report_and_page_are_the_programs(self):
        made = dsplan.simulate("gpt2", **GPT2)
        words = ["gpt2", "--hardware", "h100-sxm", "--gpus", "2", "--zero-stage", "2"]
        self.assertEqual(str(made), printed("simulate", *words))
        self.assertEqual(made.page(), printed("emit", *words, "--format", "html"))
        self.assertIn("| role |", made.markdown())
        self.assertIn("gpt2, rank 0 of 2: fits", repr(made))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "page.html")
            made.save_page(path)
            self.assertEqual(path.read_text(encoding="utf-8"), made.page())

    def test_a_stored_prediction(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "prediction.json")
            made = dsplan.simulate("gpt2", **GPT2)
            path.write_text(printed("simulate", "gpt2", "--gpus", "2", "--hardware", "h100-sxm", "--zero-stage", "2", "--format",
                                    "json"))
            stored = dsplan.read_prediction(path)
        self.assertEqual(stored, made)
        self.assertEqual(stored.command, "")
        with self.assertRaises(dsplan.Error):
            stored.page()
        tags = Tags(stored._repr_html_())
        self.assertEqual((tags.open, tags.faults, tags.frames), ([], [], []))
        self.assertGreater(tags.rows, 10)

    def test_tables_for_notebooks(self):
        made = dsplan.simulate("gpt2", **GPT2)
        tags = Tags(made._repr_html_())
        self.assertEqual((tags.open, tags.faults), ([], []))
        self.assertGreater(tags.rows, 10)
        self.assertIn("GiB", made._repr_html_())
        self.assertEqual(tags.frames, [made.page()])  # As a viewer reads it.
        for search in (dsplan.plan("gpt2", **GPT2), dsplan.plan("llama-3-70b", gpus=1, hardware="h100-sxm")):
            tags = Tags(search._repr_html_())
            self.assertEqual((tags.open, tags.faults), ([], []))


class Reading(unittest.TestCase):
    def setUp(self):
        self.said = json.loads(printed("simulate", "gpt2", "--gpus", "2", "--hardware", "h100-sxm", "--format", "json"))

    def refused(self, pattern):
        with self.assertRaisesRegex(dsplan.SchemaError, pattern):
            dsplan.Prediction.from_json(self.said)

    def test_unknown_keys(self):
        self.said["memory"]["peak"]["novel"] = 1
        self.refused("Prediction.memory.peak.novel")

    def test_missing_keys(self):
        del self.said["memory"]["peak"]["process"]
        self.refused("process")

    def test_wrong_types(self):
        self.said["memory"]["peak"]["process"] = "1 GiB"
        self.refused("Prediction.memory.peak.process is '1 GiB'")

    def test_true_is_no_count(self):
        self.said["rank"] = True
        self.refused("Prediction.rank is True")

    def test_words_that_are_no_verdict(self):
        self.said["verdict"] = "perhaps"
        self.refused("verdict")

    def test_results_do_not_change(self):
        with self.assertRaises(dataclasses.FrozenInstanceError):
            dsplan.Prediction.from_json(self.said).fits = True


class Starting(unittest.TestCase):
    def test_module_is_the_program(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run([sys.executable, "-m", "dsplan", "--version"], capture_output=True, text=True, env=environment)
        self.assertEqual((done.returncode, done.stdout), (0, printed("--version")))
        done = subprocess.run([sys.executable, "-m", "dsplan", "simulate"], capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(dsplan.version(), printed("--version").split()[1])

    def test_version_is_that_of_the_build(self):
        text = (ROOT / "CMakeLists.txt").read_text()
        self.assertIn(f"project(dsplan VERSION {dsplan.version()}", text)

    def test_every_class_says_its_units(self):
        for name in dsplan._types.__all__:
            kind = getattr(dsplan, name)
            counted = [field.name for field in dataclasses.fields(kind) if field.type in (int, float)]
            for field in counted:
                self.assertIn(f"{field}: ", kind.__doc__, name)


if __name__ == "__main__":
    unittest.main()
