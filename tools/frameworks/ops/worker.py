"""The process that runs the cases, one line each. Whoever starts it sees in OUT.part.now which one is running."""
import gc
import itertools
import os
import sys
import time

from common.device import prepare

from .run import HERE, ORACLES, TIME_IS_OVER, append, file_of, keys_of

DEVICE_IS_LOST = 9


class Lines:
    """What is done already, and where new lines go."""

    def __init__(self, said):
        self.part = file_of(said) + ".part"
        self.done = keys_of(self.part)
        self.ends = time.monotonic() + said.seconds

    def over(self):
        return time.monotonic() > self.ends

    def begin(self, key):
        with open(self.part + ".now", "w", encoding="utf-8") as file:
            file.write(key)

    def add(self, key, make):
        """One case: `make` gives its line or throws."""
        self.begin(key)
        try:
            line = {"key": key, "case": make()}
        except Exception as error:  # Whatever it is, the next case may work.
            line = {"key": key, "error": f"{type(error).__name__}: {error}".split("\n")[0][:400]}
        append(self.part, line)
        self.done.add(key)


def header(said, recorder_made):
    import torch
    from common.environment import environment

    class Device:
        def about(self):
            if said.device != "cuda":
                return {"gpu": None, "capacity_bytes": None}
            return {"gpu": torch.cuda.get_device_name(0), "capacity_bytes": torch.cuda.mem_get_info(0)[1]}

    return {"level": "dispatch" if said.device == "fake" else "kernel", "torch": torch.__version__,
            "environment": environment(Device()), "workspaces": sorted(recorder_made().workspaces)}


def recorders(said):
    """How to make a recorder for each case."""
    if said.device == "fake":
        import operators as oracle
        oracle.FakeRecorder.workspaces = ()
        return oracle.FakeRecorder
    if said.device == "simulated":
        from .simulated import SimulatedRecorder
        return SimulatedRecorder
    import torch
    from .recorders import CudaRecorder, warm_up
    torch.cuda.init()
    kept = warm_up(CudaRecorder())
    # Which sizes stay after two rounds: the handles' own.
    kept = [size for size in kept if size >= (1 << 20)]
    return lambda: CudaRecorder(workspaces=kept)


def of_case(case, which, recorder):
    import operators as oracle
    line = oracle.run(case, *which, recorder)
    history = getattr(recorder, "history", None)
    if history is None:
        return line
    line.pop("artefact", None)  # Of fake tensors only.
    line["moves"] = {"forward": history.moves(recorder.logs[1])}
    if "backward" in line:
        line["moves"]["backward"] = history.moves(recorder.logs[3])
    if recorder.own:
        line["workspaces"] = recorder.own
    if history.faults:
        raise RuntimeError("; ".join(history.faults[:3]))
    return line


def device_is_lost(said):
    """A kernel that failed takes the whole process's device with it."""
    if said.device != "cuda":
        return False
    import torch
    try:
        torch.cuda.synchronize()
        return False
    except RuntimeError:
        return True


def operators(said, lines, make):
    import operators as oracle
    which_part, parts = said.part
    for index, case in enumerate(oracle.CASES):
        if said.only and case["op"] not in said.only or index % parts != which_part - 1:
            continue
        for which in oracle.runs_of(case):
            dtype, shape, needs, in_place = which
            key = "/".join([case["op"], str(index), dtype, str(shape), "".join("01"[need] for need in needs)]
                           + ["in_place"] * in_place)
            if key in lines.done:
                continue
            if lines.over():
                return TIME_IS_OVER
            before = len(lines.done)
            lines.add(key, lambda: of_case(case, which, make()))
            if before < len(lines.done) and device_is_lost(said):
                return DEVICE_IS_LOST
    return 0


def optimizers(said, lines, make):
    from .optimizer_runs import steps_of
    for key, step in itertools.islice(steps_of(said.device, make), 4 if said.tiny else None):
        if key in lines.done:
            continue
        if lines.over():
            return TIME_IS_OVER
        lines.add(key, step)
        if device_is_lost(said):
            return DEVICE_IS_LOST
    return 0


def work(said):
    # Behind a driverless CUDA the program starts anew, under the path that it was started with.
    sys.argv[0] = HERE
    prepare("cuda" if said.device == "cuda" else "fake")
    sys.path.append(ORACLES)
    gc.disable()  # Nothing but reference counts may end a storage.
    lines = Lines(said)
    make = recorders(said)
    append(lines.part, {"header": header(said, make)})
    code = (optimizers if said.optimizers else operators)(said, lines, make)
    if code == DEVICE_IS_LOST:
        os._exit(code)  # Nothing of torch can be taken down in order any more.
    return code
