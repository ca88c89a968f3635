"""Receipts: built phase by phase, valid at every moment, and every kind of fault found. Standard library only."""

import copy
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from common.environment import environment
from common.phases import Phases
from common.receipt import PHASES, Receipt, inputs_of, validate


class Counting:
    """A device without torch: each mark finds more than the one before."""
    has_time = True

    def __init__(self):
        self.live = 0

    def counters(self):
        self.live += 1024
        return {"requested": self.live, "allocated": self.live, "active": self.live, "reserved": self.live + 1,
                "process": None}

    def peaks(self):
        return {"requested": self.live, "allocated": self.live, "active": self.live, "reserved": self.live + 1}

    def totals(self):
        return {"requested_total": 2 * self.live, "allocations": self.live // 1024}

    def reset_peaks(self):
        pass

    def synchronize(self):
        pass

    def not_measured(self):
        return [{"what": "memory.process", "why": "there is no device"}]


def begun(folder):
    return Receipt(folder, "tiny", "receipt_test.py", "cpu", inputs_of({"model_type": "gpt2"}, {"dsplan": 1}),
                   environment())


def finished(folder):
    receipt = begun(folder)
    phases = Phases(receipt, Counting())
    for name in PHASES:
        with phases(name):
            if name != "init":
                phases.mark("before forward")
                phases.mark("after forward")
    phases.persistent()
    receipt.rank(0)["parameters"] = {"total": 10, "trainable": 10}
    receipt.finish()
    return receipt


def on_disk(receipt):
    with open(receipt.path, encoding="utf-8") as file:
        return json.load(file)


class Building(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_a_receipt_is_valid_and_incomplete_from_its_first_moment(self):
        receipt = begun(self.folder.name)
        value = on_disk(receipt)
        self.assertEqual(validate(value), [])
        self.assertFalse(value["complete"])

    def test_a_finished_one_is_complete_and_names_what_is_missing(self):
        value = on_disk(finished(self.folder.name))
        self.assertEqual(validate(value), [])
        self.assertTrue(value["complete"])
        what = {row["what"] for row in value["ranks"][0]["not_measured"]}
        self.assertEqual(what, {"memory.process", "memory.host", "communication", "snapshot"})
        self.assertEqual([sample["phase"] for sample in value["samples"]], ["first_step", "steady"])
        peak = value["ranks"][0]["memory"]["peak"]
        self.assertEqual(peak["phase"], "steady")
        self.assertEqual(peak["reserved"], peak["requested"] + 1)

    def test_a_phase_that_fails_is_kept_as_far_as_it_came(self):
        receipt = begun(self.folder.name)
        phases = Phases(receipt, Counting())
        with phases("init"):
            pass
        with self.assertRaises(MemoryError):
            with phases("first_step"):
                phases.mark("before forward")
                raise MemoryError
        self.assertEqual(validate(on_disk(receipt)), [])  # As an interrupted run would leave it.
        receipt.finish("out_of_memory", "too little")
        value = on_disk(receipt)
        self.assertEqual(validate(value), [])
        self.assertEqual([mark["name"] for mark in value["ranks"][0]["memory"]["phases"][1]["marks"]],
                         ["begin", "before forward"])

    def test_nothing_but_the_receipt_stays_in_the_folder(self):
        finished(self.folder.name)
        self.assertEqual(os.listdir(self.folder.name), ["tiny.json"])


# A change of a good receipt, and words of the fault that it must give.
FAULTS = [
    (lambda r: r.update(extra=1), 'unknown key "extra"'),
    (lambda r: r.pop("samples"), '"samples" is missing'),
    (lambda r: r.update(schema="dsplan.receipt/2"), "schema"),
    (lambda r: r.update(name="../x"), "name"),
    (lambda r: r.update(device="tpu"), "device"),
    (lambda r: r.update(outcome="out_of_memory"), "complete"),
    (lambda r: r.update(complete="yes"), "complete"),
    (lambda r: r["environment"].pop("driver"), '"driver" is missing'),
    (lambda r: r["environment"].update(capacity_bytes=1.5), "environment.capacity_bytes"),
    (lambda r: r["inputs"].update(model=None), "inputs.model"),
    (lambda r: r["inputs"].update(options=[1]), "inputs.options"),
    (lambda r: r.update(world_size=0), "world_size"),
    (lambda r: r["ranks"].append(copy.deepcopy(r["ranks"][0])), "stands twice"),
    (lambda r: r["ranks"][0].update(rank=3), "3 of 1"),
    (lambda r: r["ranks"][0]["parameters"].update(total=-1), "parameters.total"),
    (lambda r: r["ranks"][0]["memory"]["persistent"].update(allocated=True), "persistent.allocated"),
    (lambda r: r["ranks"][0]["memory"]["persistent"].update(allocated=None), "is null without a reason"),
    (lambda r: r["ranks"][0]["memory"]["peak"].update(phase="second"), "peak.phase"),
    (lambda r: r["ranks"][0]["memory"]["phases"].pop(), "instead of"),
    (lambda r: r["ranks"][0]["memory"]["phases"][1]["marks"][1].update(name="forward"), "marks[1].name"),
    (lambda r: r["ranks"][0]["memory"]["phases"][1]["marks"][1].update(requested=10 ** 9), "more than the phase's"),
    (lambda r: r["ranks"][0]["memory"]["phases"][1]["marks"][1].pop("active"), '"active" is missing'),
    (lambda r: r["ranks"][0].update(not_measured=[]), "without a reason"),
    (lambda r: r["ranks"][0]["not_measured"].append({"what": "x"}), '"why" is missing'),
    (lambda r: r["samples"][0].update(step_ns=-1), "step_ns"),
    (lambda r: r["samples"][0].update(phase="third"), "samples[0].phase"),
]


class Validating(unittest.TestCase):
    def test_every_fault_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            good = on_disk(finished(folder))
        for at, (change, words) in enumerate(FAULTS):
            with self.subTest(at=at, words=words):
                bad = copy.deepcopy(good)
                change(bad)
                faults = validate(bad)
                self.assertTrue(any(words in fault for fault in faults), faults)

    def test_what_is_no_object_is_one_fault(self):
        self.assertEqual(validate([]), ["receipt: is not an object"])


if __name__ == "__main__":
    unittest.main()
