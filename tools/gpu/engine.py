"""Runs stages one after the other, each with its own time limit; a stage that fails or hangs is a row like any other."""
import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OK, RED, SKIPPED, TIMED_OUT, FAILED = "ok", "red", "skipped", "timed out", "failed"
OF_EXIT_CODE = {0: OK, 4: RED, 77: SKIPPED, 124: TIMED_OUT}
WORST_FIRST = (TIMED_OUT, FAILED, RED, OK, SKIPPED)
FINISHED = (OK, RED)
GRACE = 5  # seconds between asking a stage to end and ending it
WIND_UP = 15  # seconds that a tool gets to write its last file before its stage's limit


@dataclasses.dataclass
class Row:
    """What the table shows of one stage; written as result.json into the stage's folder."""
    number: int
    name: str
    outcome: str
    seconds: float = 0.0
    receipts: int = 0
    finding: str = ""
    commands: list = dataclasses.field(default_factory=list)

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schema": "dsplan.stage/1", **dataclasses.asdict(self)}, indent=1)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def read(folder):
        """The row of an earlier run, or None."""
        try:
            found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            found.pop("schema")
            return Row(**found)
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Interrupted(Exception):
    """Somebody asked the whole run to end: what there is gets packed."""


def folder_of(work, stage):
    return work / f"{stage.number:02}-{stage.name}"


def filled(line, places):
    """The command line with its places filled in, quoted for bash where they need it; {pick} is words of bash already."""
    quoted = {name: value if name == "pick" else shlex.quote(str(value)) for name, value in places.items()}
    return line.format_map(quoted)


def adopt_orphans():
    """Makes this process the parent of what its descendants leave behind (PR_SET_CHILD_SUBREAPER), so that it is found."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def descendants(ancestor):
    """Numbers of all processes below one, whatever group or session they are in."""
    children = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, pending = set(), [ancestor]
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def end(process, kept):
    """Ends a command and all that it started, politely first; `kept`: processes of ours that were there before."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    # Until nothing is left: what is ended may be about to start something.
    for _ in range(20):
        left = descendants(os.getpid()) - kept
        for number in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        process.poll()
        if not left:
            return
        time.sleep(0.05)


def run_line(line, log, seconds, environment):
    """Exit code of one command line, 124 where it was ended at its limit. Its output goes to the open file."""
    kept = descendants(os.getpid())
    # A group, but no session, of its own: whoever ends the session ends the command as well.
    process = subprocess.Popen(["bash", "-c", line], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                               stderr=subprocess.STDOUT, env={**os.environ, **environment}, process_group=0)
    try:
        return process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        return 124
    finally:
        # Also after a normal end: what a command leaves behind would hold device memory under the next stage.
        end(process, kept)


def finding_in(log):
    """The line that the table shows of a log: the last that begins with "finding:", else the last with anything in it."""
    last = ""
    marked = ""
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            line = line.strip()
            if line.startswith("finding:"):
                marked = line[len("finding:"):].strip()
            elif line and not line.startswith("$ "):
                last = line
    return marked or last


def receipts_in(folder):
    """Files with a schema of ours that the stage wrote."""
    found = 0
    for path in folder.rglob("*.json"):
        with open(path, encoding="utf-8", errors="replace") as file:
            head = file.read(400)
        found += '"dsplan.' in head and '"schema"' in head and '"dsplan.stage/' not in head
    return found


def run_commands(stage, folder, places_now, seconds):
    """(outcome, finding, [{line, exit_code, seconds}]) of a stage's commands; the clock runs over all of them."""
    began = time.monotonic()
    outcomes, commands, finding = [], [], ""
    def places(seconds_of_tool):
        now = places_now()
        return {**now, "here": folder, "seconds": seconds_of_tool,
                "pick": stage.pick if now["device"] == "cuda" else stage.dry_pick}

    environment = {name: filled(value, places(0)) for name, value in stage.environment}
    for index, template in enumerate(stage.commands, 1):
        may_fail = template.startswith("-")
        left = seconds - (time.monotonic() - began)
        if index > 1 and left < 1:
            outcomes.append(TIMED_OUT)
            finding = finding or f"no time left for command {index} of {len(stage.commands)}"
            break
        line = filled(template.lstrip("-").strip(), places(max(1, int(left - min(WIND_UP, left / 4)))))
        log = folder / f"command-{index}.log"
        started = time.monotonic()
        with open(log, "w", encoding="utf-8") as file:
            file.write("".join(f"$ export {name}={shlex.quote(value)}\n" for name, value in environment.items()))
            file.write(f"$ {line}\n")
            file.flush()
            print(f"   $ {line}", flush=True)
            code = run_line(line, file, left, environment)
        commands.append({"line": line, "exit_code": code, "seconds": round(time.monotonic() - started, 1)})
        outcome = OF_EXIT_CODE.get(code, FAILED)
        said = finding_in(log)
        if outcome == FAILED:
            said = f"exit code {code}: {said}"
        if outcome == TIMED_OUT:
            said = f"ended after {commands[-1]['seconds']:.0f} s: {said}"
        if outcome not in (FAILED, SKIPPED) or not may_fail:
            outcomes.append(outcome)
        # What went worst is what the reader wants to know; among equals the last, which summed up the others.
        if not (outcome == FAILED and may_fail) and outcome == min(outcomes or [outcome], key=WORST_FIRST.index):
            finding = said
    return min(outcomes or [OK], key=WORST_FIRST.index), finding, commands


def run_stage(stage, work, places_now, seconds, resume=False):
    """Runs one stage into a fresh folder; whatever happens in it ends up in the row.

    resume: into the folder as it is, because some tools go on where they were ended.
    """
    folder = folder_of(work, stage)
    began = time.monotonic()
    row = Row(stage.number, stage.name, FAILED)
    try:
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        if stage.needs_dsplan and not places_now()["dsplan"]:
            row.outcome, row.finding = SKIPPED, "no dsplan here: run the stage named dsplan first, or set DSPLAN"
        else:
            row.outcome, row.finding, row.commands = run_commands(stage, folder, places_now, seconds)
    except Interrupted:
        row.outcome, row.finding = TIMED_OUT, "the whole run was ended from outside"
        raise
    except Exception as fault:  # noqa: BLE001: a stage never kills the script
        row.finding = f"{type(fault).__name__}: {fault}"
    finally:
        row.seconds = round(time.monotonic() - began, 1)
        row.finding = " ".join(row.finding.split())[:200]
        try:
            row.receipts = receipts_in(folder)
            row.write(folder)
        except OSError as fault:
            row.outcome, row.finding = FAILED, f"{type(fault).__name__}: {fault}"
    return row


def run_all(stages, work, places_now, minutes=None, resume=False, after_each=lambda rows: None):
    """Rows by number. Stages come in the order given; one that does not fit in what is left of the time is skipped.

    places_now: a function, asked again before each command, because one may build what the next one needs.
    """
    began = time.monotonic()
    rows = {}
    stop = False
    for position, stage in enumerate(stages, 1):
        earlier = Row.read(folder_of(work, stage)) if resume else None
        if earlier and earlier.outcome in FINISHED:
            rows[stage.number] = earlier
            continue
        left = stage.limit if minutes is None else min(stage.limit, minutes * 60 - (time.monotonic() - began))
        if stop or left < min(stage.expected, stage.limit):
            rows[stage.number] = Row(stage.number, stage.name, SKIPPED, finding="not run: no time was left for it")
            continue
        print(f"== {position}/{len(stages)}  stage {stage.number} {stage.name}: {stage.what}", flush=True)
        try:
            rows[stage.number] = run_stage(stage, work, places_now, left, resume)
            print(f"   {rows[stage.number].outcome} after {rows[stage.number].seconds} s: "
                  f"{rows[stage.number].finding}", flush=True)
            after_each(rows)
        except Interrupted:
            stop = True
            rows[stage.number] = Row.read(folder_of(work, stage)) or Row(stage.number, stage.name, TIMED_OUT)
    return rows


def table(rows):
    head = ("stage", "outcome", "seconds", "receipts", "finding")
    cells = [head] + [(f"{row.number:2} {row.name}", row.outcome, f"{row.seconds:.0f}", str(row.receipts),
                       row.finding[:100]) for _, row in sorted(rows.items())]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)) + "  " + line[4]
                     for line in cells)


def exit_code(rows):
    outcomes = {row.outcome for row in rows.values()}
    if RED in outcomes:
        return 4
    return 1 if outcomes & {FAILED, TIMED_OUT} else 0
