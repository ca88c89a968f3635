"""Receipts (dsplan.receipt/1, docs/receipts.md): written phase by phase, and checked. Standard library only.

A receipt is on the disk from the first line of a run on, and is replaced whole after each phase: whatever ends the
run, a valid receipt remains that says `complete: false` and holds what was measured until then.

    python3 receipt.py FILE...      checks files; exit code 1 with one line per fault
"""

import datetime
import json
import os
import re
import sys

SCHEMA = "dsplan.receipt/1"
PHASES = ("init", "first_step", "steady")
MARKS = ("begin", "before batch", "before forward", "after forward", "before backward", "after backward",
         "before step", "after step", "end")
COUNTERS = ("requested", "allocated", "active", "reserved", "process")
PEAKS = COUNTERS[:-1]  # The process has no peak of its own: the highest mark stands for it.
TOTALS = ("requested_total", "allocations", "host_requested_total")  # Of a phase; receipts had none before they were counted.
LEVELS = ("threads", "virtual", "nccl", "tcp", "framework")
DEVICES = ("cuda", "cpu", "fake")
OUTCOMES = ("ran", "out_of_memory", "error")
ENVIRONMENT = ("gpu", "capacity_bytes", "driver", "cuda", "python", "torch", "transformers", "deepspeed", "peft",
               "allocator_conf", "limit_bytes", "recorded")
INPUTS = ("model", "deepspeed", "training", "training_arguments", "options", "fingerprint")
TOP = ("schema", "source", "name", "level", "device", "ranks_are", "complete", "outcome", "message", "environment",
       "inputs", "world_size", "ranks", "samples")
RANK = ("rank", "parameters", "memory", "communication", "snapshot", "not_measured")
HOST = ("pinned", "pageable", "peak", "per_node")


def write_json(path, value):
    """Whole or not at all: readers never see half a file."""
    beside = f"{path}.{os.getpid()}.part"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def inputs_of(model, training=None, deepspeed=None, training_arguments=None, options=(), fingerprint=None):
    """What dsplan predicts from."""
    return {"model": model, "deepspeed": deepspeed, "training": training, "training_arguments": training_arguments,
            "options": list(options), "fingerprint": fingerprint}


class Receipt:
    """One run, written to FOLDER/NAME.json from the start. `environment` may be replaced until the end."""

    def __init__(self, folder, name, source, device, inputs, environment, world_size=1, ranks_are="process",
                 level="framework"):
        self.path = os.path.join(folder, name + ".json")
        self.value = {"schema": SCHEMA, "source": source, "name": name, "level": level, "device": device,
                      "ranks_are": ranks_are, "complete": False, "outcome": "error",
                      "message": "the run ended before its end was written", "environment": environment,
                      "inputs": inputs, "world_size": world_size, "ranks": [], "samples": []}
        self.save()

    def rank(self, number):
        """The entry of one rank, made at its first use."""
        for entry in self.value["ranks"]:
            if entry["rank"] == number:
                return entry
        entry = {"rank": number, "parameters": {"total": None, "trainable": None},
                 "memory": {"persistent": None, "peak": None, "phases": [], "host": None},
                 "communication": None, "snapshot": None, "not_measured": []}
        self.value["ranks"].append(entry)
        return entry

    def not_measured(self, what, why, rank=0):
        """`what`: a path in the rank's entry ("memory.host"), or one counter wherever it stands ("memory.process")."""
        entries = self.rank(rank)["not_measured"]
        if all(entry["what"] != what for entry in entries):
            entries.append({"what": what, "why": why})

    def add_phase(self, phase, rank=0):
        """A finished phase, {"name", "marks", "peak_requested", ...}; the rank's peak follows it."""
        memory = self.rank(rank)["memory"]
        memory["phases"].append(phase)
        memory["peak"] = peak_of(memory["phases"])
        self.save()

    def sample(self, phase, step_ns, rank=0):
        self.value["samples"].append({"phase": phase, "rank": rank, "step_ns": int(step_ns)})

    def finish(self, outcome="ran", message=None):
        """`complete` if the run reached its end. What is null by then is named as not measured."""
        self.value.update(complete=outcome == "ran", outcome=outcome, message=message)
        why = "nothing measures it" if outcome == "ran" else "the run ended before it"
        for entry in self.value["ranks"]:
            for path, value in leaves(entry):
                if value is None and not covered(path, entry["not_measured"]):
                    self.not_measured(general(path), why, entry["rank"])
        self.save()

    def save(self):
        write_json(self.path, self.value)


def peak_of(phases):
    """The maximum over phases, counter by counter; `phase` is that of the highest requested (or first measured) one."""
    peak = {}
    for counter in PEAKS:
        peak[counter] = highest(phase["peak_" + counter] for phase in phases)
    peak["process"] = highest(mark["process"] for phase in phases for mark in phase["marks"])
    leading = next((counter for counter in PEAKS if peak[counter] is not None), None)
    peak["phase"] = next((phase["name"] for phase in phases
                          if leading and phase["peak_" + leading] == peak[leading]), None)
    return peak


def highest(values):
    return max((value for value in values if value is not None), default=None)


def leaves(entry):
    """The measured values of a rank as (path, value), phases and marks by their names."""
    yield from under("parameters", entry["parameters"])
    memory = entry["memory"]
    for key in ("persistent", "peak", "host"):
        yield from under("memory." + key, memory[key])
    for phase in memory["phases"]:
        base = f"memory.phases.{phase['name']}"
        for counter in PEAKS:
            yield f"{base}.peak_{counter}", phase.get("peak_" + counter)
        for mark in phase["marks"]:
            for counter in COUNTERS:
                yield f"{base}.{mark['name']}.{counter}", mark.get(counter)
    yield "communication", entry["communication"]
    yield "snapshot", entry["snapshot"]


def under(path, value):
    if not isinstance(value, dict):
        yield path, value
        return
    for key, inner in value.items():
        yield f"{path}.{key}", inner


def covered(path, entries):
    """Whether an entry of not_measured names this path, one above it, or its counter wherever it stands."""
    counter = path.rsplit(".", 1)[-1].removeprefix("peak_")
    return any(entry["what"] in (path, "memory." + counter) or path.startswith(entry["what"] + ".")
               for entry in entries if isinstance(entry, dict) and isinstance(entry.get("what"), str))


def general(path):
    """The name under which a null stands in not_measured: a counter goes for all its places."""
    counter = path.rsplit(".", 1)[-1].removeprefix("peak_")
    return "memory." + counter if path.startswith("memory.") and counter in COUNTERS else path


class Check:
    """Collects faults; every method takes the path that it speaks of."""

    def __init__(self):
        self.faults = []

    def fault(self, path, text):
        self.faults.append(f"{path or 'receipt'}: {text}")

    def keys(self, path, value, names):
        """An object with exactly these keys."""
        if not isinstance(value, dict):
            self.fault(path, "is not an object")
            return False
        for name in names:
            if name not in value:
                self.fault(path, f'"{name}" is missing')
        for name in value:
            if name not in names:
                self.fault(path, f'unknown key "{name}"')
        return all(name in value for name in names)

    def one_of(self, path, value, names):
        if value not in names:
            self.fault(path, f"{json.dumps(value, default=str)} is none of {', '.join(names)}")

    def text(self, path, value, null=False):
        if not (isinstance(value, str) or (null and value is None)):
            self.fault(path, "is not a string" + (" or null" if null else ""))

    def whole(self, path, value, null=False, least=0):
        if value is None and null:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.fault(path, f"is not an integer of at least {least}" + (" or null" if null else ""))

    def a_list(self, path, value):
        if isinstance(value, list):
            return True
        self.fault(path, "is not a list")
        return False


def validate(receipt):
    """All faults of a receipt, as lines; none if it is one. Every null that was to be measured must have its reason."""
    check = Check()
    if not check.keys("", receipt, TOP):
        return check.faults
    check.one_of("schema", receipt["schema"], (SCHEMA,))
    check.text("source", receipt["source"])
    if not (isinstance(receipt["name"], str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", receipt["name"])):
        check.fault("name", "is not a file's name")
    check.one_of("level", receipt["level"], LEVELS)
    check.one_of("device", receipt["device"], DEVICES)
    check.one_of("ranks_are", receipt["ranks_are"], ("process", "fake_process_group"))
    check.one_of("outcome", receipt["outcome"], OUTCOMES)
    check.text("message", receipt["message"], null=True)
    if not isinstance(receipt["complete"], bool):
        check.fault("complete", "is not true or false")
    elif receipt["complete"] and receipt["outcome"] != "ran":
        check.fault("complete", f"true, but the outcome is {receipt['outcome']}")
    check_environment(check, receipt["environment"])
    check_inputs(check, receipt["inputs"])
    check.whole("world_size", receipt["world_size"], least=1)
    if check.a_list("ranks", receipt["ranks"]):
        check_ranks(check, receipt)
    if check.a_list("samples", receipt["samples"]):
        for at, sample in enumerate(receipt["samples"]):
            path = f"samples[{at}]"
            if check.keys(path, sample, ("phase", "rank", "step_ns")):
                check.one_of(path + ".phase", sample["phase"], PHASES)
                check.whole(path + ".rank", sample["rank"])
                check.whole(path + ".step_ns", sample["step_ns"])
    return check.faults


def check_environment(check, environment):
    if not check.keys("environment", environment, ENVIRONMENT):
        return
    for key, value in environment.items():
        if key.endswith("_bytes"):
            check.whole("environment." + key, value, null=True)
        elif key in ENVIRONMENT:
            check.text("environment." + key, value, null=key not in ("allocator_conf", "recorded", "python"))


def check_inputs(check, inputs):
    if not check.keys("inputs", inputs, INPUTS):
        return
    if not isinstance(inputs["model"], dict):
        check.fault("inputs.model", "is not an object")
    for key in ("deepspeed", "training", "training_arguments"):
        if inputs[key] is not None and not isinstance(inputs[key], dict):
            check.fault("inputs." + key, "is not an object or null")
    if check.a_list("inputs.options", inputs["options"]):
        for option in inputs["options"]:
            check.text("inputs.options", option)
    check.text("inputs.fingerprint", inputs["fingerprint"], null=True)


def check_ranks(check, receipt):
    seen = set()
    if receipt["complete"] and not receipt["ranks"]:
        check.fault("ranks", "none in a complete receipt")
    for at, entry in enumerate(receipt["ranks"]):
        path = f"ranks[{at}]"
        before = len(check.faults)
        if not check.keys(path, entry, RANK):
            continue
        check.whole(path + ".rank", entry["rank"])
        if entry["rank"] in seen:
            check.fault(path + ".rank", f"{entry['rank']} stands twice")
        seen.add(entry["rank"])
        if all(isinstance(n, int) for n in (entry["rank"], receipt["world_size"])) \
                and entry["rank"] >= receipt["world_size"]:
            check.fault(path + ".rank", f"{entry['rank']} of {receipt['world_size']}")
        if check.keys(path + ".parameters", entry["parameters"], ("total", "trainable")):
            for key, value in entry["parameters"].items():
                check.whole(f"{path}.parameters.{key}", value, null=True)
        check_memory(check, path + ".memory", entry["memory"], receipt["complete"])
        if entry["communication"] is not None:
            check.a_list(path + ".communication", entry["communication"])
        check.text(path + ".snapshot", entry["snapshot"], null=True)
        if check.a_list(path + ".not_measured", entry["not_measured"]):
            for i, row in enumerate(entry["not_measured"]):
                if check.keys(f"{path}.not_measured[{i}]", row, ("what", "why")):
                    check.text(f"{path}.not_measured[{i}].what", row["what"])
                    check.text(f"{path}.not_measured[{i}].why", row["why"])
        if receipt["complete"] and len(check.faults) == before:
            for leaf, value in leaves(entry):
                if value is None and not covered(leaf, entry["not_measured"]):
                    check.fault(f"{path}.{leaf}", "is null without a reason in not_measured")


def check_memory(check, path, memory, complete):
    if not check.keys(path, memory, ("persistent", "peak", "phases", "host")):
        return
    for key, names in (("persistent", ("requested", "allocated")), ("host", HOST)):
        if memory[key] is not None and check.keys(f"{path}.{key}", memory[key], names):
            for name in names:
                check.whole(f"{path}.{key}.{name}", memory[key][name], null=True)
    if memory["peak"] is not None and check.keys(path + ".peak", memory["peak"], COUNTERS + ("phase",)):
        for counter in COUNTERS:
            check.whole(f"{path}.peak.{counter}", memory["peak"][counter], null=True)
        if memory["peak"]["phase"] is not None:
            check.one_of(path + ".peak.phase", memory["peak"]["phase"], PHASES)
    if not check.a_list(path + ".phases", memory["phases"]):
        return
    named = []
    for at, phase in enumerate(memory["phases"]):
        where = f"{path}.phases[{at}]"
        counted = {key: phase[key] for key in phase if key in TOTALS} if isinstance(phase, dict) else {}
        for key, value in counted.items():
            check.whole(f"{where}.{key}", value)
        if check.keys(where, phase, ("name", "marks", *counted) + tuple("peak_" + counter for counter in PEAKS)):
            check_phase(check, where, phase)
            named.append(phase["name"])
    if complete and tuple(named) != PHASES:
        check.fault(path + ".phases", f"{', '.join(map(str, named)) or 'none'} instead of {', '.join(PHASES)}")


def check_phase(check, path, phase):
    check.one_of(path + ".name", phase["name"], PHASES)
    for counter in PEAKS:
        check.whole(f"{path}.peak_{counter}", phase["peak_" + counter], null=True)
    if not check.a_list(path + ".marks", phase["marks"]):
        return
    for at, mark in enumerate(phase["marks"]):
        where = f"{path}.marks[{at}]"
        if not check.keys(where, mark, ("name",) + COUNTERS):
            continue
        check.one_of(where + ".name", mark["name"], MARKS)
        for counter in COUNTERS:
            value = mark[counter]
            check.whole(f"{where}.{counter}", value, null=True)
            peak = phase.get("peak_" + counter)
            if isinstance(value, int) and isinstance(peak, int) and value > peak:
                check.fault(f"{where}.{counter}", f"{value} is more than the phase's peak {peak}")


def main():
    bad = 0
    for path in sys.argv[1:]:
        try:
            with open(path, encoding="utf-8") as file:
                faults = validate(json.load(file))
        except (OSError, ValueError) as error:
            faults = [str(error)]
        bad += bool(faults)
        for fault in faults:
            print(f"{path}: {fault}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
