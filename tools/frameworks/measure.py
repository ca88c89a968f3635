"""The program `step`: see there."""

import argparse
import json
import os
import sys
import traceback

from common import configuration
from common.device import device_of, prepare
from common.environment import environment
from common.phases import Phases
from common.predict import binary, predict
from common.receipt import Receipt, inputs_of

CODES = {"ran": 0, "out_of_memory": 3, "error": 1}


class Job:
    """What a runtime's module is given: run(job)."""

    def __init__(self, configuration, arguments):
        self.configuration = configuration
        self.model_config = configuration.model
        self.training = configuration.training
        self.deepspeed = configuration.deepspeed
        self.world_size = configuration.world_size()
        self.rank = configuration.rank()
        self.out = arguments.out
        self.extra_steps = arguments.extra_steps
        self.snapshot = arguments.snapshot or configuration.snapshot
        self.limit_bytes = arguments.limit_bytes or configuration.limit_bytes
        self.device = None
        self.phases = None
        inputs = inputs_of(configuration.model, configuration.training, configuration.deepspeed,
                           options=configuration.options_of_all_ranks(),
                           fingerprint=fingerprint(configuration, arguments.dsplan))
        self.receipt = Receipt(arguments.out, configuration.name, "tools/frameworks/step", arguments.device, inputs,
                               environment(limit_bytes=self.limit_bytes), self.world_size,
                               "fake_process_group" if self.world_size > 1 else "process")

    def begin(self, kind):
        """From here on the device is in use."""
        self.device = device_of(kind)
        if self.limit_bytes:
            self.limit_bytes = self.device.limit(self.limit_bytes)
        self.receipt.value["environment"] = environment(self.device, self.limit_bytes)
        self.phases = Phases(self.receipt, self.device, self.rank)
        if self.snapshot:
            self.device.start_snapshot()

    def end(self):
        """What is left to do however the run ended."""
        try:
            self.receipt.rank(self.rank)["snapshot"] = self.device.dump_snapshot(self.out, self.configuration.name)
        except Exception as error:  # A run is worth more than its snapshot.
            self.receipt.not_measured("snapshot", f"{type(error).__name__}: {error}", self.rank)
        for entry in self.device.not_measured():
            self.receipt.not_measured(entry["what"], entry["why"], self.rank)


def fingerprint(configuration, dsplan):
    try:
        found = binary(dsplan)
        return predict(found, configuration)["fingerprint"] if found else None
    except Exception:  # Only where dsplan is at hand and takes the configuration.
        return None


def runtime_of(name):
    if name == "deepspeed":
        import deepspeed_step
        return deepspeed_step
    import pytorch_step
    return pytorch_step


def measure(job, arguments):
    """Runs the job; its outcome and message."""
    try:
        runtime = runtime_of(job.configuration.runtime)  # Imports torch and transformers.
        if arguments.wait and sys.stdin.readline().strip() != "go":
            return "error", "nobody said go"
        job.begin(arguments.device)
        with job.device.running():
            runtime.run(job)
        return "ran", None
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"[:4000]
        if job.device is not None and job.device.is_out_of_memory(error):
            return "out_of_memory", text
        traceback.print_exc()
        return "error", text


def main():
    parser = argparse.ArgumentParser(prog="step", description="Measures two optimizer steps and writes a receipt.")
    parser.add_argument("config")
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda")
    parser.add_argument("--dsplan", help="the binary that names the fingerprint")
    parser.add_argument("--snapshot", action="store_true")
    parser.add_argument("--limit-bytes", type=int)
    parser.add_argument("--extra-steps", type=int, default=0, help="timed after the measured ones")
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()
    try:
        chosen = configuration.read(arguments.config)
    except (OSError, ValueError, KeyError) as error:
        print(f"{arguments.config}: {error}", file=sys.stderr)
        return 2
    prepare(arguments.device, chosen.training.get("allocator_conf"))
    os.makedirs(arguments.out, exist_ok=True)
    job = Job(chosen, arguments)
    outcome, message = measure(job, arguments)
    retries = None
    if job.device is not None:
        job.end()
        retries = job.device.retries()
    job.receipt.finish(outcome, message)
    print(json.dumps({"name": chosen.name, "outcome": outcome, "retries": retries, "message": message}))
    return CODES[outcome]
