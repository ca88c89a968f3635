"""Phases and marks of one rank, in the words of a prediction (docs/receipts.md)."""

import contextlib
import time

from .receipt import COUNTERS, PEAKS


class Phases:
    """Records into a receipt. A phase that is left by an exception is kept as far as it came.

        with phases("first_step"):
            phases.mark("before forward")
    """

    def __init__(self, receipt, device, rank=0):
        self.receipt = receipt
        self.device = device
        self.rank = rank
        self.marks = None
        for entry in device.not_measured():
            receipt.not_measured(entry["what"], entry["why"], rank)

    def mark(self, name):
        """Counters only: nothing is synchronised, so that waiting frees wait as they would without marks."""
        counters = self.device.counters()
        self.marks.append({"name": name, **{counter: counters[counter] for counter in COUNTERS}})

    @contextlib.contextmanager
    def __call__(self, name):
        self.marks = []
        self.device.synchronize()
        self.device.reset_peaks()
        before = self.device.totals()
        self.mark("begin")
        started = time.perf_counter_ns()
        try:
            yield self
            self.device.synchronize()
            taken = time.perf_counter_ns() - started
            self.mark("end")
            if name != "init" and self.device.has_time:
                self.receipt.sample(name, taken, self.rank)
        finally:
            peaks = self.device.peaks()
            marks, self.marks = self.marks, None
            totals = {key: value - before[key] for key, value in self.device.totals().items()}
            self.receipt.add_phase({"name": name, "marks": marks, **totals,
                                    **{"peak_" + counter: peaks[counter] for counter in PEAKS}}, self.rank)

    def persistent(self):
        """What is alive now is what lives between steps."""
        counters = self.device.counters()
        memory = self.receipt.rank(self.rank)["memory"]
        memory["persistent"] = {key: counters[key] for key in ("requested", "allocated")}
        self.receipt.save()
