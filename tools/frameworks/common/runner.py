"""Runs `step` on many configurations, each in a process of its own, within a budget of time. Standard library only.

The next process imports what it needs while the one before measures, and touches the device only when that one is gone.
Whatever becomes of a process, its receipt is there afterwards: a crash or a timeout is written into it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

from . import receipt
from .configuration import Configuration
from .environment import environment

STEP = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "step")


class Task:
    """One configuration (the object of a matrix row) and where its receipt goes."""

    def __init__(self, value, out, device, more=()):
        self.value = value
        self.name = value["name"]
        self.out = out
        self.device = device
        self.more = list(more)
        self.process = None
        self.result = None
        self.seconds = 0.0

    def path(self):
        return os.path.join(self.out, self.name + ".json")

    def done_before(self):
        """A receipt that says how the run ended, other than by an error."""
        try:
            with open(self.path(), encoding="utf-8") as file:
                value = json.load(file)
            return not receipt.validate(value) and value["outcome"] != "error"
        except (OSError, ValueError, KeyError):
            return False

    def start(self):
        """Begins to import; touches the device only after `go`."""
        os.makedirs(self.out, exist_ok=True)
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "config.json")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(self.value, file)
        self.log = open(os.path.join(self.out, self.name + ".log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, STEP, config, "--out", self.out, "--device", self.device, "--wait", *self.more],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True)

    def finish(self, timeout):
        """Lets it measure and waits for its end; `result`: what step says in its last line."""
        started = time.monotonic()
        try:
            said, _ = self.process.communicate("go\n", timeout=max(1.0, timeout))
        except subprocess.TimeoutExpired:
            self.end()
            said = ""
        self.seconds = time.monotonic() - started
        try:
            self.result = json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            self.result = self.died(timeout)
        self.close()

    def died(self, timeout):
        """Step could not speak for itself: the receipt is told why."""
        code = self.process.returncode
        late = self.seconds >= timeout
        self.log.seek(0)
        last = self.log.read()[-1500:]
        why = f"ended after {timeout:.0f} s" if late else f"exit code {code}: {last}"
        try:
            with open(self.path(), encoding="utf-8") as file:
                value = json.load(file)
            value.update(complete=False, outcome="error", message=why)
            receipt.write_json(self.path(), value)
        except (OSError, ValueError):  # It did not come as far as a receipt.
            chosen = Configuration(self.value)
            inputs = receipt.inputs_of(chosen.model, chosen.training, chosen.deepspeed, options=chosen.options)
            receipt.Receipt(self.out, self.name, "tools/frameworks/common/runner.py", self.device, inputs,
                            environment(), chosen.world_size()).finish("error", why)
        return {"name": self.name, "outcome": "error", "retries": None, "message": why}

    def end(self):
        """Its process and the group that it leads, by number."""
        try:
            os.killpg(self.process.pid, 9)
        except ProcessLookupError:
            pass
        self.process.wait()

    def close(self):
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):
                pipe.close()
        if self.result["outcome"] == "ran":
            os.remove(self.log.name)
        self.folder.cleanup()


def run(tasks, timeout, budget, report=None):
    """All tasks in order, as far as `budget` seconds carry; each at most `timeout` seconds on the device. Returns
    (done, left). `report(task)` is called after each."""
    ahead = max(1, min(5, (os.cpu_count() or 1) // 3))  # Importing takes longer than measuring, and a core each.
    end = time.monotonic() + budget
    left = list(tasks)
    started, done = [], []
    try:
        while left or started:
            while left and len(started) <= ahead:
                task = left.pop(0)
                task.start()
                started.append(task)
            remaining = end - time.monotonic()
            if remaining < min(10.0, timeout):
                break
            task = started[0]
            task.finish(min(timeout, remaining))
            started.pop(0)
            done.append(task)
            if report:
                report(task)
    finally:
        for task in started:  # They have not touched the device.
            task.end()
            task.result = {"outcome": "error"}
            task.close()
            remove(task.path())
    return done, started + left


def remove(path):
    with contextlib.suppress(OSError):
        os.remove(path)
