"""Receipts of the fake device against dsplan's predictions at dispatch level, byte for byte and mark for mark, over the
oracle's own configurations; and one receipt of real tensors on the CPU. Needs torch, transformers, a C compiler and
DSPLAN_BINARY; with `all` as an argument every configuration of the oracle, else those named below."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, HERE)
if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")) \
        or not os.environ.get("DSPLAN_BINARY"):
    print("skipped: needs torch, transformers and DSPLAN_BINARY")
    sys.exit(77)

from common import device, predict
from common.configuration import Configuration
from common.receipt import validate

NAMES = ["gpt2", "llama-checkpoint-accumulate", "llama-fp32-autocast", "mistral-window", "qwen2-tied"]
WITH_PEFT = ["llama-lora-checkpoint"]


def configurations(names):
    from memory_cases import CASES
    for name in names or CASES:
        case = CASES[name]
        training = {key: value for key, value in case["training"].items() if value is not None}
        if "transformers_version" in training or "tp" in case["training"] or training["loss"] == "liger":
            continue
        if case.get("reentrant"):
            training["checkpoint_impl"] = "reentrant"
        yield Configuration({"name": name, "model": case["config"], "training": training})


def measured(configuration, kind, folder):
    """Runs `step`'s own code in this process; the receipt."""
    from measure import Job, measure
    arguments = argparse.Namespace(out=folder, device=kind, extra_steps=0, snapshot=False, limit_bytes=None,
                                   dsplan=None, wait=False)
    job = Job(configuration, arguments)
    outcome, message = measure(job, arguments)
    if job.device is not None:
        job.end()
    job.receipt.finish(outcome, message)
    with open(job.receipt.path, encoding="utf-8") as file:
        return json.load(file)


def differences(receipt, prediction):
    """Lines; none if every requested byte agrees. Marks in order, of every micro-batch."""
    yield from validate(receipt)
    if receipt["outcome"] != "ran":
        yield receipt["message"]
        return
    memory, predicted = receipt["ranks"][0]["memory"], prediction["memory"]
    if receipt["ranks"][0]["parameters"] != prediction["parameters"]:
        yield f"parameters: {receipt['ranks'][0]['parameters']}, predicted {prediction['parameters']}"
    for what, ours, theirs in (
            ("persistent", predicted["persistent"]["total"], memory["persistent"]["requested"]),
            ("peak", predicted["peak"]["requested"], memory["peak"]["requested"]),
            ("phase", predicted["peak"]["phase"], memory["peak"]["phase"])):
        if ours != theirs:
            yield f"{what}: measured {theirs}, predicted {ours}"
    for phase, theirs in zip(predicted["phases"], memory["phases"]):
        if phase["name"] == "init" and theirs["peak_requested"] != phase["marks"][-1]["requested"]:
            yield f"init: measured a peak of {theirs['peak_requested']}, predicted {phase['marks'][-1]['requested']}"
        for total in ("requested_total", "allocations"):
            if phase["name"] != "init" and theirs[total] != phase[total]:  # Models are moved to the device here.
                yield f"{phase['name']}, {total}: measured {theirs[total]}, predicted {phase[total]}"
        found = [(mark["name"], mark["requested"]) for mark in theirs["marks"]]
        for at, mark in enumerate((mark["name"], mark["requested"]) for mark in phase["marks"]):
            if at >= len(found) or found[at] != mark:
                yield f"{phase['name']}, mark {at}: measured {found[at:at + 1]}, predicted {mark}"


def compare(names, folder):
    bad = compared = 0
    for configuration in configurations(names):
        receipt = measured(configuration, "fake", folder)
        prediction = predict.predict(os.environ["DSPLAN_BINARY"], configuration, ["--level", "dispatch"])
        faults = list(differences(receipt, prediction))
        for fault in faults:
            print(f"{configuration.name}: {fault}")
        bad += bool(faults)
        compared += 1
    print(f"{compared} configurations, {bad} differ")
    return bad == 0 and compared > 0


def on_the_cpu(folder):
    """`step` itself, as a program."""
    path = os.path.join(folder, "tiny.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"name": "tiny-cpu", "model": "tiny-llama", "training": {"seq": 32, "checkpoint": "full"}}, file)
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, os.path.join(HERE, "step"), path, "--out", folder, "--device", "cpu"],
                          capture_output=True, text=True, env=environment)
    with open(os.path.join(folder, "tiny-cpu.json"), encoding="utf-8") as file:
        receipt = json.load(file)
    faults = validate(receipt)
    said = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    if done.returncode != 0 or said.get("outcome") != "ran" or not receipt["complete"] or faults:
        print("on the CPU:", done.returncode, said, faults, done.stderr[-2000:])
        return False
    return True


def main():
    device.prepare("fake")
    everything = "all" in sys.argv[1:]
    names = NAMES + (WITH_PEFT if importlib.util.find_spec("peft") else [])
    with tempfile.TemporaryDirectory() as folder:
        good = on_the_cpu(folder)
        good = compare(None if everything else names, folder) and good
    return 0 if good else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # The engine's device thread cannot be joined.
