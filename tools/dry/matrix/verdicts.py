"""One result against its prediction, and tables over many."""

import math
import re
import tempfile

from . import predict
from .worker import WHAT

COMPARED = WHAT[:3]
SMALL = 1 << 16  # Pinned bytes that copies of numbers take in passing.


def steps_of(job):
    """Which of a prediction's phases is which measured step. With a static graph one more comes before the settled one,
    and with a hook one more; of several in between the first has marks of its own."""
    ddp = job.get("ddp", {})
    later = 2 + bool(ddp.get("static_graph")) + ("comm_hook" in ddp)
    return {"first_step": "1", **({"middle_steps": "2"} if later > 2 else {}), "steady": str(later)}


def judge(result, dsplan):
    """{"name", "stratum", "status", "phases": {phase: {what: [measured, predicted]}}}"""
    job = result["job"]
    row = {"name": job["name"], "stratum": job["stratum"], "job": job, "phases": {}, "status": "compared", "why": ""}
    if "failed" in result:
        return {**row, "status": "not measured", "why": result["failed"]}
    frees = "at-sync" if job.get("events", "done") == "pending" else "immediate"
    with tempfile.TemporaryDirectory() as folder:
        prediction, why = predict.predicted(job, dsplan, folder, frees, result["versions"])
    if prediction is None:
        return {**row, "status": "not predicted", "why": why}
    if job.get("events") == "timed" and "oom" not in result:  # Between the ends: only the reserved peak says something.
        row["timed"] = timed(result, prediction)
        return {**row, "status": "timed"}
    row["outcome"] = [outcome_measured(result), outcome_predicted(prediction, frees)]
    row["kernels"], row["torch"] = result.get("kernels"), result["versions"]["torch"]
    row["pinned"] = [result.get("pinned", 0), (prediction["memory"].get("host") or {}).get("pinned", 0)]
    if "oom" in result or row["outcome"][0] != "fits":  # Peaks of a run that flushed or ended say little.
        return {**row, "status": "outcome"}
    ours, theirs = predicted_peaks(prediction, steps_of(job)), measured_peaks(result)
    for phase in theirs:
        if phase in ours:
            row["phases"][phase] = {what: [theirs[phase][at], ours[phase][at]] for at, what in enumerate(COMPARED)}
    return row


def timed(result, prediction):
    """[measured, expected, low end, high end] of the reserved peak."""
    peak = prediction["memory"]["peak"]
    expected = peak.get("reserved_expected", peak["reserved"])
    return [max(row["peak"][2] for row in result["rows"]), expected, peak["reserved_low"], peak["reserved"]]


def outcome_measured(result):
    if "oom" in result:
        phase = result["oom"]["phase"].rstrip("0123456789")
        return "does not fit: " + (phase if "." in phase else "init")
    retries = sum(row.get("retries", 0) for row in result["rows"])
    return f"retries {retries} times" if retries else "fits"


def outcome_predicted(prediction, frees):
    if not prediction["fits"]:
        where = re.search(r"at (forward|recompute|backward|optimizer)\b.*(first|second) step", prediction["verdict_reason"])
        phase = {"recompute": "backward", "optimizer": "step"}
        return "does not fit: " + (f"{('first', 'second').index(where[2]) + 1}.{phase.get(where[1], where[1])}" if where else "init")
    retries = prediction["retries" if frees == "at-sync" else "retries_low"]
    return f"retries {retries} times" if retries else "fits"


def measured_peaks(result):
    """Micro-batches of one step together; what comes before the first step is init."""
    found = {}
    for row in result["rows"]:
        step, _, name = row["phase"].partition(".")
        name = name.rstrip("0123456789")
        key = f"{step} {'backward' if name == 'micro_step' else name}" if name else "init"
        if row["phase"] in ("start", "batch"):
            continue
        peaks = found.setdefault(key, [0] * len(WHAT))
        found[key] = [max(a, b) for a, b in zip(peaks, row["peak"])]
    return found


def predicted_peaks(prediction, steps):
    found = {}
    for phase in prediction["memory"]["phases"]:
        if phase["name"] == "init":
            found["init"] = [phase[f"peak_{what}"] for what in COMPARED]
        for part in phase["parts"] if phase["name"] in steps else ():
            name = "backward" if part["name"] == "outputs_released" else part["name"]
            key = f"{steps[phase['name']]} {name}"
            now = [part[f"peak_{what}"] for what in COMPARED]
            found[key] = [max(a, b) for a, b in zip(found.get(key, now), now)]
    return found


def error(pair):
    measured, ours = pair
    return (ours - measured) / measured if measured else float(ours != 0)


def phases_of(row):
    yield f"{row['name']}: {row['status']} {row['why']} {row.get('outcome', '')} {row.get('kernels') or ''}"
    for phase, values in row["phases"].items():
        cells = [f"{what} {m:>15,} {p - m:>+14,} {100 * error((m, p)):>+8.3f}%" for what, (m, p) in values.items()]
        yield f"  {phase:11} " + "  ".join(cells)


def table(rows):
    yield (
        f"{'stratum':11} {'jobs':>4} {'not meas':>8} {'not pred':>8} {'outcome':>9} "
        + " ".join(f"{what + ' =':>12} {'jobs':>8} {'worst':>8} {'peak':>8}" for what in COMPARED)
    )
    strata = sorted({row["stratum"] for row in rows})
    for stratum in strata + ["all"]:
        mine = [row for row in rows if stratum in ("all", row["stratum"])]
        compared = [row for row in mine if row["phases"]]
        judged = [row["outcome"] for row in mine if "outcome" in row]
        cells = []
        for what in COMPARED:
            pairs = [(phase, values[what]) for row in compared for phase, values in row["phases"].items()]
            equal = sum(m == p for _, (m, p) in pairs)
            whole = sum(all(v[what][0] == v[what][1] for v in row["phases"].values()) for row in compared)
            worst = max((abs(error(pair)) for phase, pair in pairs if phase != "init"), default=0)
            peaks = sum(peak_equal(row, what) for row in compared)
            cells.append(
                f"{equal:>6}/{len(pairs):<5} {whole:>4}/{len(compared):<3} {100 * worst:>7.3f}% {peaks:>4}/{len(compared):<3}"
            )
        yield (
            f"{stratum:11} {len(mine):>4} {sum(r['status'] == 'not measured' for r in mine):>8} "
            f"{sum(r['status'] == 'not predicted' for r in mine):>8} {sum(a == b for a, b in judged):>4}/{len(judged):<4} "
            + " ".join(cells)
        )


def runtime_of(job):
    """As src/planner/predict/doubts.cpp calls it."""
    if job["training"].get("runtime") in ("fsdp1", "fsdp2", "hsdp"):
        return "fsdp2"
    if "deepspeed" not in job:
        return "ddp" if job.get("world", 1) > 1 else "pytorch"
    zero = job["deepspeed"].get("zero_optimization", {})
    blocks = [zero.get(key, {}).get("device", "none") for key in ("offload_optimizer", "offload_param")]
    offloads = zero.get("stage", 0) == 3 and any(device != "none" for device in blocks)
    return f"zero{zero.get('stage', 0)}" + ("-offload" if offloads else "")


def errors(rows):
    """By how many thousandths of the prediction the reserved peak of a job is larger: nine of ten jobs, and the worst."""
    found = {}
    for row in rows:
        if row["phases"]:
            measured, ours = (max(v["reserved"][at] for v in row["phases"].values()) for at in (0, 1))
            found.setdefault(runtime_of(row["job"]), []).append(math.ceil(1000 * max(0, measured - ours) / ours))
    yield "# By `tools/dry/compare tests/receipts/dry --errors`: src/planner/predict/doubts.cpp has the third column."
    yield "jobs,count,nine_of_ten_permille,worst_permille"
    for jobs, values in sorted(found.items()):
        values.sort()
        yield f"{jobs},{len(values)},{values[math.ceil(0.9 * len(values)) - 1]},{values[-1]}"


def peak_equal(row, what):
    return max(v[what][0] for v in row["phases"].values()) == max(v[what][1] for v in row["phases"].values())


def groups(rows, most):
    """Jobs that differ, by how: which figures, in which phases first, by how much per token or at all."""
    found = {}
    for row in rows:
        if row["status"] in ("not measured", "not predicted"):
            found.setdefault(f"{row['status']}: {row['why'][:110]}", []).append(row["name"])
        elif row["status"] == "outcome" or row.get("outcome", [0, 0])[0] != row.get("outcome", [0, 0])[1]:
            if row["outcome"][0] != row["outcome"][1]:
                found.setdefault("outcome {} predicted {}".format(*row["outcome"]), []).append(row["name"])
        pinned = row.get("pinned", [0, 0])
        if abs(pinned[0] - pinned[1]) >= SMALL:
            found.setdefault(f"{row['stratum']}: pinned host memory", []).append(row["name"])
        if key := first_difference(row):
            found.setdefault(key, []).append(row["name"])
    for key, names in sorted(found.items(), key=lambda item: -len(item[1])):
        yield f"{len(names):4} {key}"
        yield from (f"       {name}" for name in names[:most])


def first_difference(row):
    """What is requested comes first, for the rest follows from it; init alone is told apart, for it is another part."""
    for what in COMPARED:
        off = [(phase, p - m) for phase, (m, p) in ((phase, v[what]) for phase, v in row["phases"].items()) if m != p]
        steps = [entry for entry in off if entry[0] != "init"]
        if off:
            phase, by = (steps or off)[0]
            small = f" by {by:+,}" if abs(by) < 10000 else ""
            return f"{row['stratum']}: {what} in {'init and ' if steps and off[0][0] == 'init' else ''}{phase}{small}"
    return None
