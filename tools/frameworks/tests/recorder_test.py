"""python/dsplan/receipt.py around a loop of its own and around transformers' Trainer, on the CPU: valid receipts, from
which dsplan predicts. Needs torch and transformers; accelerate for the Trainer, DSPLAN_BINARY for the prediction."""

import functools
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")]
if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
    print("skipped: needs torch and transformers")
    sys.exit(77)

import torch
import transformers
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from common import predict
from common.configuration import Configuration, model_config
from common.receipt import validate
from dsplan.receipt import ReceiptCallback, finite, receipt


def tiny():
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**model_config("tiny-llama")))


def batch():
    ids = torch.randint(0, 100, (2, 16))
    return {"input_ids": ids, "labels": ids}


def train_holding(model, optimizer, steps):
    """As most scripts are: the variable of the outputs lives on."""
    for _ in range(steps):
        outputs = model(**batch())
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train(model, optimizer, steps, accumulate=1, fail_at=None):
    for step in range(steps):
        for _ in range(accumulate):
            if step == fail_at:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            model(**batch(), use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class Recording(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "out.json")

    def written(self):
        with open(self.path, encoding="utf-8") as file:
            value = json.load(file)
        self.assertEqual(validate(value), [])
        self.assertEqual([row for row in value["ranks"][0]["not_measured"] if row["what"].startswith("recorder")], [])
        return value

    def recorded(self, model, steps, **more):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        with receipt(self.path, model=model, optimizer=optimizer):
            train(model, optimizer, steps, **more)
        return self.written()

    def test_exactly_two_steps_and_more_are_complete(self):
        for steps in (2, 3):
            value = self.recorded(tiny(), steps, accumulate=2)
            self.assertTrue(value["complete"])
            phases = value["ranks"][0]["memory"]["phases"]
            self.assertEqual([phase["name"] for phase in phases], ["init", "first_step", "steady"])
            self.assertEqual([mark["name"] for mark in phases[2]["marks"]],
                             ["begin"] + ["before forward", "after forward"] * 2 + ["before step", "end"])
            training = value["inputs"]["training"]
            self.assertEqual((training["micro_batch"], training["seq"], training["grad_accum"], training["dtype"]),
                             (2, 16, 2, "bf16"))
            self.assertEqual(training["optimizer"], {"name": "adamw", "implementation": "foreach"})

    def test_what_the_loop_holds(self):
        self.assertEqual(self.recorded(tiny(), 3)["inputs"]["training"]["loop"], "minimal")
        model = tiny()
        optimizer = torch.optim.AdamW(model.parameters())
        with receipt(self.path, model=model, optimizer=optimizer):
            train_holding(model, optimizer, 3)
        value = self.written()
        self.assertEqual(value["inputs"]["training"]["loop"], "script")
        self.assertTrue(value["inputs"]["training"]["use_cache"])

    def test_labels_that_are_the_ids_themselves(self):
        model = tiny()
        optimizer = torch.optim.AdamW(model.parameters())
        with receipt(self.path, model=model, optimizer=optimizer):
            for _ in range(2):
                ids = batch()["input_ids"]
                model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertTrue(self.written()["inputs"]["training"]["labels_are_ids"])

    def test_what_the_loop_holds_and_a_prediction_does_not(self):
        model = tiny()
        optimizer = torch.optim.AdamW(model.parameters())
        with receipt(self.path, model=model, optimizer=optimizer):
            for _ in range(3):
                ids = batch()["input_ids"]
                loss = model(input_ids=ids, labels=ids.clone(), use_cache=False).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        value = self.written()
        missing = {row["what"]: row["why"] for row in value["ranks"][0]["not_measured"]}
        self.assertEqual(value["inputs"]["training"]["loop"], "loss")
        self.assertIn("gone before the step", missing["batch.labels"])

    def test_infinities_are_numbers_of_json(self):
        """accelerate says steps_per_print so."""
        told = finite({"steps_per_print": float("inf"), "time": (0.0, float("-inf")), "nothing": float("nan"), "lr": 1e-4})
        self.assertEqual(json.loads(json.dumps(told, allow_nan=False)),
                         {"steps_per_print": 1.7e308, "time": [0.0, -1.7e308], "nothing": None, "lr": 1e-4})

    def test_a_loss_of_its_own(self):
        model = tiny()
        optimizer = torch.optim.AdamW(model.parameters())
        with receipt(self.path, model=model, optimizer=optimizer):
            for _ in range(3):
                given = batch()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = model(input_ids=given["input_ids"], use_cache=False).logits
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
        training = self.written()["inputs"]["training"]
        self.assertEqual((training["loss"], training["loop"], training["autocast"]), ("native", "script", "bf16"))

    def test_autocast_inside_of_forward(self):
        """accelerate puts it around the model's forward."""
        model = tiny()
        model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
        value = self.recorded(model, 2)
        self.assertEqual(value["inputs"]["training"]["autocast"], "bf16")

    def checkpointed(self, put, **more):
        """What a training file says of checkpoints that `put` lays around a model, or why it says nothing."""
        model = tiny()
        put(model)
        value = self.recorded(model, 2, **more)
        missing = {row["what"]: row["why"] for row in value["ranks"][0]["not_measured"]}
        training = value["inputs"]["training"] or {}
        return training.get("checkpoint"), training.get("checkpoint_impl"), missing.get("inputs.training")

    def test_checkpoints_of_the_scripts_own(self):
        def around(layer, run, **how):
            layer.forward = functools.partial(checkpoint, run, **how)

        def each(model):
            for layer in model.model.layers:
                around(layer, layer.forward, use_reentrant=False)

        def last(model):
            around(model.model.layers[-1], model.model.layers[-1].forward, use_reentrant=False)

        def mlps(model):
            for layer in model.model.layers:
                around(layer.mlp, layer.mlp.forward, use_reentrant=True)

        def hidden(model):
            forward = model.model.layers[0].forward
            around(model.model.layers[0], lambda *args, **more: forward(*args, **more), use_reentrant=False)

        self.assertEqual(self.checkpointed(each, accumulate=2), ("full", "non_reentrant", None))
        at = len(tiny().model.layers) - 1
        self.assertEqual(self.checkpointed(last), (f"groups:{at}", "non_reentrant", None))
        self.assertIn("mlp", self.checkpointed(mlps)[2])
        self.assertIn("how they recompute is not stated", self.checkpointed(hidden)[2])

    def test_checkpoints_of_transformers(self):
        linear = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default])
        softmax = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten._softmax.default])

        def enable(**how):
            return lambda model: model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)

        self.assertEqual(self.checkpointed(enable(use_reentrant=True)), ("full", "reentrant", None))
        self.assertEqual(self.checkpointed(enable(use_reentrant=False, context_fn=linear)), ("keep:linear", "non_reentrant", None))
        self.assertIn("a choice of operators", self.checkpointed(enable(use_reentrant=False, context_fn=softmax))[2])
        self.assertEqual(self.checkpointed(lambda model: (enable(use_reentrant=False)(model), model.eval()))[0], "none")
        if "offload" in inspect.signature(transformers.PreTrainedModel.gradient_checkpointing_enable).parameters:
            offload = self.checkpointed(lambda model: model.gradient_checkpointing_enable(offload=True))
            self.assertIn("checkpoint_func", offload[2])

    @unittest.skipUnless(os.environ.get("DSPLAN_BINARY"), "needs DSPLAN_BINARY")
    def test_the_lines_that_dsplan_emits(self):
        """Whatever words made them, the recorder says the same checkpoints."""
        layers = len(tiny().model.layers)
        folder = os.path.dirname(self.path)
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(model_config("tiny-llama"), file)
        for words, seen in (("every:2", "groups:" + ",".join(f"{n}-{n + 1}" for n in range(0, layers - 1, 2))),
                            ("groups:0=reentrant,1=keep+linear", "groups:0=reentrant,1=keep+linear"),
                            ("modules:mlp", "modules:mlp"), ("nested", "nested"), ("keep:linear", "keep:linear")):
            with self.subTest(words=words):
                lines = subprocess.run([os.environ["DSPLAN_BINARY"], "emit", folder, "--checkpoint", words, "--seq", "16",
                                        "--format", "checkpointing"], capture_output=True, text=True, check=True).stdout
                self.assertEqual(self.checkpointed(lambda model: exec(lines, {"model": model}))[::2], (seen, None))

    def test_functions_that_were_replaced_are_put_back(self):
        module = torch.utils.checkpoint
        before = module._checkpoint_without_reentrant_generator
        self.recorded(tiny(), 2)
        self.assertIs(module._checkpoint_without_reentrant_generator, before)
        self.assertNotIn("apply", vars(module.CheckpointFunction))

    def test_what_is_compiled_is_recorded_and_named(self):
        for compiling in (lambda model: torch.compile(model, backend="aot_eager"), lambda model: model.compile(backend="aot_eager") or model):
            value = self.recorded(compiling(tiny()), 2)
            missing = {row["what"]: row["why"] for row in value["ranks"][0]["not_measured"]}
            self.assertIn("torch.compile runs the model", missing["inputs.compile"])
            self.assertTrue(value["complete"])
            self.assertEqual(value["inputs"]["model"]["model_type"], "llama")

    def test_one_step_is_not_complete(self):
        value = self.recorded(tiny(), 1)
        self.assertFalse(value["complete"])
        self.assertEqual(value["outcome"], "ran")

    def test_an_error_goes_through_and_is_written_down(self):
        with self.assertRaises(torch.OutOfMemoryError):
            self.recorded(tiny(), 3, fail_at=1)
        value = self.written()
        self.assertEqual((value["complete"], value["outcome"]), (False, "out_of_memory"))
        self.assertEqual(len(value["ranks"][0]["memory"]["phases"]), 1)

    def test_evaluation_is_no_step(self):
        model = tiny()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with receipt(self.path, model=model, optimizer=optimizer):
            for _ in range(2):
                train(model, optimizer, 1)
                with torch.no_grad():
                    model(**batch())
        self.assertTrue(self.written()["complete"])

    def test_the_job_never_suffers(self):
        with receipt("/nonexistent/folder/out.json", model=None, optimizer=None):
            pass
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with receipt(self.path, model=model, optimizer=optimizer):
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                optimizer.step()  # As ZeRO does, once for each group.
        self.assertTrue(self.written()["complete"])

    @unittest.skipUnless(os.environ.get("DSPLAN_BINARY"), "needs DSPLAN_BINARY")
    def test_dsplan_predicts_from_what_was_seen(self):
        model = tiny()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        value = self.recorded(model, 2)
        inputs = value["inputs"]
        self.assertEqual(inputs["training"]["checkpoint_impl"], "reentrant")
        prediction = predict.predict(os.environ["DSPLAN_BINARY"], Configuration(
            {"name": "seen", "model": inputs["model"], "training": inputs["training"], "options": inputs["options"]}))
        self.assertEqual(prediction["parameters"], value["ranks"][0]["parameters"])
        self.assertLessEqual({row["name"] for row in prediction["assumptions"]},
                             {"torch version", "transformers version", "GPUs"})

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "needs accelerate")
    def test_the_trainer(self):
        arguments = transformers.TrainingArguments(
            output_dir=os.path.dirname(self.path), per_device_train_batch_size=2, gradient_accumulation_steps=2,
            max_steps=3, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True)
        rows = [{key: value[0] for key, value in batch().items()} for _ in range(12)]
        transformers.Trainer(tiny(), arguments, train_dataset=rows, callbacks=[ReceiptCallback(self.path)]).train()
        value = self.written()
        self.assertTrue(value["complete"])
        self.assertEqual(value["inputs"]["training_arguments"]["max_steps"], 3)
        missing = {row["what"]: row["why"] for row in value["ranks"][0]["not_measured"]}
        self.assertIn("the Trainer holds", missing["loop.loss"])
        training = value["inputs"]["training"]
        self.assertEqual((training["loop"], training["grad_accum"], training["micro_batch"], training["max_grad_norm"]),
                         ("trainer", 2, 2, 1.0))


if __name__ == "__main__":
    unittest.main()
