"""Outside oracle for the rows of the operator catalogue: each operator alone, in real torch under FakeTensorMode on
cuda:0, with a log of every storage that the dispatcher sees.

    operators.py OUT [NAME...]      writes OUT (all operators without NAME)

Nothing is computed and no GPU is needed. Temporaries inside kernels are not seen: such slots of a row stay "read". The
cases are in operators_cases.py, the format of the file in README.md. Needs the CUDA build of torch and a C compiler.

tools/frameworks/ops asks the same of a GPU: it runs the same cases through `run` with a recorder of its own. A recorder
is a context manager with `device`; `tensor(case, place, shape, dtype, requires_grad)`, an input; `like(tensor)`, an
incoming gradient; `take()`, the log since the last call; `serial_of(tensor)`, the serial of its storage in that log.
"""
import contextlib
import gc
import itertools
import json
import sys
import weakref

from preload import preload

if __name__ == "__main__":
    preload()

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from operators_cases import ARTEFACTS, CASES

DEVICE = torch.device("cuda:0")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int64": torch.int64,
          "int32": torch.int32, "bool": torch.bool, "fp64": torch.float64, "uint8": torch.uint8}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Meter(TorchDispatchMode):
    """Logs ("+", serial, bytes) and ("-", serial) for every storage of the device."""

    def __init__(self):
        super().__init__()
        self.known = {}
        self.log = []
        self.serial = 0
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device == DEVICE:
                self.count(tensor.untyped_storage())
        return out

    def count(self, storage):
        key = id(storage)
        if key in self.known and self.known[key][0]() is storage or storage.nbytes() == 0:
            return
        self.serial += 1
        serial = self.serial

        def ended(_, key=key, serial=serial):
            del self.known[key]
            self.log.append(("-", serial))

        self.known[key] = (weakref.ref(storage, ended), serial)
        self.log.append(("+", serial, storage.nbytes(), self.calls))

    def take(self):
        log, self.log = self.log, []
        return log

    def serial_of(self, tensor):
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.known and self.known[key][0]() is storage:
            return self.known[key][1]
        return None


class FakeRecorder(Meter):
    """Fake tensors of cuda:0; what the dispatcher sees."""
    device = DEVICE

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(FakeTensorMode())
        return super().__enter__()

    def __exit__(self, *details):
        super().__exit__(*details)
        return self.stack.__exit__(*details)

    def tensor(self, case, place, shape, dtype, requires_grad):
        return torch.empty(shape, dtype=dtype, device=self.device, requires_grad=requires_grad)

    def like(self, tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)


def text_of(log, roles):
    """The log as words: "+out0:120", "+e:8" (kept for backward), "+t:60", "-t:60". What one call makes is one word,
    sorted and joined by commas: in which order a kernel allocates is not seen. (A GPU's allocator sees it, and its entries
    name no call, None: each allocation is a word.) What dies after the last allocation dies
    with the operator and is left out; frees that follow each other stand in order of size."""
    sizes = {entry[1]: entry[2] for entry in log if entry[0] == "+"}
    words, frees, made, call = [], [], [], None

    def close():
        if made:
            words.append(",".join(sorted(made)))
            made.clear()

    for entry in log:
        if entry[0] == "-":
            close()
            if entry[1] in sizes:
                frees.append(sizes[entry[1]])
            continue
        if entry[3] is None or entry[3] != call:
            close()
        call = entry[3]
        words += [f"-t:{size}" for size in sorted(frees)]
        frees = []
        made.append(f"+{roles.get(entry[1], 't')}:{entry[2]}")
    close()
    return " ".join(words)


def saved_of(outputs, leaves, recorder):
    """Names of the saved tensors of the operator's nodes, with what each one is."""
    found, seen, pending = [], set(), [out.grad_fn for out in outputs if out.grad_fn is not None]
    while pending:
        node = pending.pop(0)
        if node in seen or type(node).__name__ in ("AccumulateGrad", "CloneBackward0_of_input"):
            continue
        seen.add(node)
        for name in sorted(dir(node)):
            if not name.startswith("_saved_"):
                continue
            value = getattr(node, name)
            values = value if isinstance(value, (list, tuple)) else [value]
            for tensor in values:
                if not isinstance(tensor, torch.Tensor) or tensor.device != recorder.device:
                    continue
                if tensor.untyped_storage().nbytes() == 0:
                    continue
                serial = recorder.serial_of(tensor)
                found.append((name, serial, tensor.untyped_storage().nbytes()))
        for following, _ in node.next_functions:
            if following is not None and following not in leaves:
                pending.append(following)
    return found


def spec(tensor):
    return NAMES[tensor.dtype] + str(list(tensor.shape)).replace(" ", "")


def run(case, dtype, shape_index, needs, in_place, recorder):
    """One line of the file."""
    with recorder:
        leaves = [recorder.tensor(case, place, shape, DTYPES[dtype if kind == "f" else kind], need)
                  for place, (shape, kind, need) in enumerate(zip(case["shapes"][shape_index], case["kinds"], needs))]
        inputs = list(leaves)
        boundary = set()
        if in_place:
            inputs[0] = leaves[0].clone()
            boundary.add(inputs[0].grad_fn)
        recorder.take()
        places = {recorder.serial_of(tensor): f"in{i}" for i, tensor in reversed(list(enumerate(inputs)))
                  if recorder.serial_of(tensor) is not None}
        line = {"op": case["op"], **case.get("attributes", {})}
        if in_place:
            line["in_place"] = True
        line["in"] = [spec(tensor) + ("*" if need else "") for tensor, need in zip(inputs, needs)]
        with torch.set_grad_enabled(any(needs)):
            outputs = (case["in_place"] if in_place else case["call"])(*inputs)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        forward = recorder.take()
        roles, line["out"] = name_outputs(outputs, places, recorder)
        if not any(needs) or not any(out.requires_grad for out in outputs):
            line["forward"] = text_of(forward, roles)
            return line
        saved = saved_of(outputs, boundary, recorder)
        for _, serial, _ in saved:
            roles.setdefault(serial, "e")
        line["saved"] = sorted(f"{name}={places.get(serial, f'e:{size}')}" for name, serial, size in saved)
        line["forward"] = text_of(forward, roles)
        backward(line, recorder, outputs, leaves, needs)
        if case["op"] in ARTEFACTS and (case["op"] not in ("max", "min") or len(outputs) == 2):
            line["artefact"] = True
    return line


def name_outputs(outputs, places, recorder):
    """The roles of new storages, and the outputs as the file writes them; adds the new storages to `places`."""
    roles, texts = {}, []
    for i, out in enumerate(outputs):
        serial = recorder.serial_of(out)
        texts.append(spec(out) + ("*" if out.requires_grad else "") +
                     (f"@{places[serial]}" if serial in places and places[serial].startswith("in") else ""))
        if serial not in places:
            places[serial] = f"out{i}"
            roles[serial] = f"out{i}"
    return roles, texts


def backward(line, recorder, outputs, leaves, needs):
    differentiable = [out for out in outputs if out.requires_grad]
    incoming = [recorder.like(out) for out in differentiable]
    wanted = [i for i, need in enumerate(needs) if need]
    recorder.take()
    arriving = {recorder.serial_of(tensor) for tensor in incoming}
    gradients = torch.autograd.grad(differentiable, [leaves[i] for i in wanted], incoming, allow_unused=True)
    log = recorder.take()
    roles, passes, missing = {}, [], []
    for i, gradient in zip(wanted, gradients):
        if gradient is None:
            missing.append(f"in{i}")
            continue
        serial = recorder.serial_of(gradient)
        if serial in arriving:
            passes.append(f"in{i}")
        elif serial in roles:
            passes.append(f"in{i}={roles[serial]}")
        elif serial is not None:
            roles[serial] = f"in{i}"
    line["backward"] = text_of(log, roles)
    if passes:
        line["passes"] = passes
    if missing:
        line["no_gradient"] = missing


def runs_of(case):
    """(dtype, shape index, which inputs need a gradient, in place) of every run of a case."""
    can = case["grad"]
    combinations = [combo for combo in itertools.product([False, True], repeat=len(can))
                    if all(may or not need for may, need in zip(can, combo))]
    combinations.sort(key=lambda combo: (-sum(combo), combo))
    for dtype in case.get("dtypes", ["fp32", "bf16", "fp16"]):
        for shape_index in range(len(case["shapes"])):
            for needs in combinations:
                if case["call"] is not None:
                    yield dtype, shape_index, needs, False
                usual = needs == combinations[0] or not any(needs[1:])
                if "in_place" in case and (usual or case["call"] is None):
                    yield dtype, shape_index, needs, True


def main():
    wanted = set(sys.argv[2:])
    gc.disable()  # Nothing but reference counts may end a storage.
    seen, lines = set(), []
    for case in CASES:
        if wanted and case["op"] not in wanted:
            continue
        try:
            for which in runs_of(case):
                line = run(case, *which, FakeRecorder())
                text = json.dumps(line, separators=(",", ":"))
                if text not in seen:
                    seen.add(text)
                    lines.append(text)
        except Exception as error:
            print(f"{case['op']} {case.get('attributes', '')}: {error!r}"[:400], file=sys.stderr, flush=True)
        print(case["op"], len(lines), file=sys.stderr, flush=True)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write('{"schema": "dsplan.operator_runs/1", "source": "tools/oracles/operators.py", "device": "fake", '
                  '"level": "dispatch", "torch": "%s",\n"artefacts": %s,\n"cases": [\n' %
                  (torch.__version__, json.dumps(ARTEFACTS)))
        out.write(",\n".join(lines))
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
