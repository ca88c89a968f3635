"""DeepSpeed as a runtime of `step`. Everywhere: the rows of its matrices. Where DSPLAN_BINARY says which dsplan: each
row is one that dsplan takes. Where deepspeed is installed: traffic counted on a stub, and two tiny runs on the CPU held
against the committed receipts, with torch.optim's Adam in place of the compiled one."""

import argparse
import importlib.util
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(os.path.dirname(HERE))
RECEIPTS = os.path.join(ROOT, "tests", "data", "receipts")
sys.path.insert(0, HERE)

from common import configuration, predict, receipt

FAULTS = []
GPU_BYTES, HOST_BYTES = 120 * 10 ** 9, 110 * 10 ** 9


def check(holds, text):
    if not holds:
        FAULTS.append(text)
        print("FAILED:", text)


def rows_of(name):
    return configuration.rows([os.path.join(HERE, name)])


def check_matrix():
    """What the issue asks of the matrix."""
    rows = rows_of("matrix_deepspeed.json")
    stages = [row.deepspeed["zero_optimization"]["stage"] for row in rows.values()]
    offloads = [row for row in rows.values() if any(key.startswith("offload_")
                                                    for key in row.deepspeed["zero_optimization"])]
    worlds = {row.world_size() for row in rows.values()}
    check(len(rows) >= 36 and set(stages) == {1, 2, 3}, f"{len(rows)} rows of stages {sorted(set(stages))}")
    check(len(offloads) >= 8, f"{len(offloads)} rows with offload")
    check({1, 2, 4, 8, 64} <= worlds, f"worlds {sorted(worlds)}")
    check(3 <= sum(row.verdict for row in rows.values()) <= 12, "a few rows are for verdicts")
    for row in [*rows.values(), *rows_of("tiny_deepspeed.json").values()]:
        check(row.runtime == "deepspeed" and "--gpus" in row.options, f"{row.name}: runtime or --gpus")
        check(0 <= row.rank() < row.world_size(), f"{row.name}: rank {row.rank()} of {row.world_size()}")
        check("--rank" not in row.options_of_all_ranks(), f"{row.name}: --rank goes into the receipt")
        check(isinstance(row.deepspeed.get("train_micro_batch_size_per_gpu"), int), f"{row.name}: micro-batch")


def check_taken(dsplan):
    """dsplan takes every row, and it fits, as far as dsplan knows."""
    for name in ("matrix_deepspeed.json", "tiny_deepspeed.json"):
        for row in rows_of(name).values():
            try:
                memory = predict.predict(dsplan, row)["memory"]
            except predict.Refused as refusal:
                check(False, f"{row.name}: {refusal}")
                continue
            if memory["peak"]:
                check(memory["peak"]["reserved"] <= GPU_BYTES, f"{row.name}: {memory['peak']['reserved']} bytes")
            host = (memory["host"] or {}).get("peak") or 0
            check(host <= HOST_BYTES, f"{row.name}: {host} bytes of host memory")


def check_receipts():
    """The committed ones are valid, of the CPU, and of the tiny rows."""
    for name, row in rows_of("tiny_deepspeed.json").items():
        with open(os.path.join(RECEIPTS, name + ".json"), encoding="utf-8") as file:
            value = json.load(file)
        faults = receipt.validate(value)
        check(not faults, f"{name}: {faults}")
        check(value["device"] == "cpu" and value["complete"], f"{name}: {value['device']} {value['outcome']}")
        check(value["inputs"]["deepspeed"] == row.deepspeed and value["inputs"]["model"] == row.model,
              f"{name}: its row has changed since")
        check(value["ranks"][0]["rank"] == row.rank() and value["world_size"] == row.world_size(), f"{name}: rank")


def check_traffic():
    """Payload, wire, groups and what is control."""
    import torch
    from zero.traffic import Traffic

    class Stub:
        def all_reduce(self, tensor, op=None, group=None, async_op=False):
            return tensor

        def reduce_scatter_tensor(self, output_tensor, input_tensor, op=None, group=None, async_op=False):
            self.all_reduce(input_tensor)  # What a backend calls of its own is not counted.

    stub = Stub()
    traffic = Traffic(stub, 4)
    traffic.stretch, traffic.phase = "steady", "backward"
    stub.all_reduce(torch.zeros(10, dtype=torch.bfloat16))
    stub.all_reduce(tensor=torch.zeros(6, dtype=torch.bfloat16))
    stub.reduce_scatter_tensor(output_tensor=torch.zeros(2), input_tensor=torch.zeros(8))
    traffic.phase = "step"
    stub.all_reduce(torch.zeros(1))
    traffic.stretch = "first_step"
    stub.all_reduce(torch.zeros(1))
    rows = {(row["collective"], row["phase"], row["dtype"], row["kind"]):
            (row["calls"], row["payload_bytes"], row["wire_bytes"]) for row in traffic.rows()}
    check(rows == {("all_reduce", "backward", "bf16", "data"): (2, 32, 48),
                   ("reduce_scatter", "backward", "fp32", "data"): (1, 32, 24),
                   ("all_reduce", "step", "fp32", "control"): (1, 4, 6)}, f"rows of traffic: {rows}")


def run_here(name):
    """A child measures one tiny row, without compiling anything; its receipt."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            os._exit(measure_row(name, folder))
        os.waitpid(child, 0)
        with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
            return json.load(file)


def measure_row(name, folder):
    from common.device import prepare
    prepare("cpu")
    from measure import Job, measure
    import deepspeed_step
    deepspeed_step.why_not = lambda *_: "the test compiles nothing"
    job = Job(rows_of("tiny_deepspeed.json")[name], argparse.Namespace(
        out=folder, device="cpu", extra_steps=0, snapshot=False, limit_bytes=None, dsplan=None, wait=False))
    outcome, message = measure(job, argparse.Namespace(wait=False, device="cpu"))
    if job.device is not None:
        job.end()
    job.receipt.finish(outcome, message)
    return 0


OVERFLOW_BUFFER = 4  # An int32 that FusedAdam holds on the device and torch's Adam does not.


def check_run(name):
    value = run_here(name)
    check(value["outcome"] == "ran" and not receipt.validate(value), f"{name}: {value['message']}")
    if value["outcome"] != "ran":
        return
    check(value["inputs"]["deepspeed"]["optimizer"]["params"]["torch_adam"] is True, f"{name}: which Adam ran")
    with open(os.path.join(RECEIPTS, name + ".json"), encoding="utf-8") as file:
        known = json.load(file)["ranks"][0]
    found = value["ranks"][0]
    check(found["communication"] == known["communication"], f"{name}: traffic {found['communication']}")
    for at, (mine, theirs) in enumerate(zip(marks(found, "first_step"), marks(known, "first_step"))):
        if theirs[0] == "after step":  # From here on the two differ in more.
            break
        check(mine == (theirs[0], theirs[1] - OVERFLOW_BUFFER), f"{name}: mark {at}: {mine}, the receipt {theirs}")


def marks(entry, phase):
    return [(mark["name"], mark["requested"]) for found in entry["memory"]["phases"] if found["name"] == phase
            for mark in found["marks"]]


def main():
    check_matrix()
    check_receipts()
    if os.environ.get("DSPLAN_BINARY"):
        check_taken(os.environ["DSPLAN_BINARY"])
    if FAULTS:
        return 1
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers", "deepspeed")):
        print("skipped: runs need torch, transformers and deepspeed")
        return 77
    for name in ("cpu-z2-w4-accum2", "cpu-z3-w4"):
        check_run(name)
    check_traffic()
    print(f"{len(FAULTS)} faults")
    return 1 if FAULTS else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
