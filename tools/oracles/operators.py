"""Outside oracle for the rows of the operator catalogue: each operator alone, in real torch under FakeTensorMode on
cuda:0, with a log of every storage that the dispatcher sees.

    operators.py OUT [NAME...]      writes OUT (all operators without NAME)

Nothing is computed and no GPU is needed. Temporaries inside kernels are not seen: such slots of a row stay "read". The
cases are in operators_cases.py, the format of the file in README.md. Needs the CUDA build of torch and a C compiler.
"""
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

    def serial_of(self, tensor):
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.known and self.known[key][0]() is storage:
            return self.known[key][1]
        return None


def text_of(log, roles):
    """The log as words: "+out0:120", "+e:8" (kept for backward), "+t:60", "-t:60". What one call makes is one word,
    sorted and joined by commas: in which order a kernel allocates is not seen. What dies after the last allocation dies
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
        if entry[3] != call:
            close()
        call = entry[3]
        words += [f"-t:{size}" for size in sorted(frees)]
        frees = []
        made.append(f"+{roles.get(entry[1], 't')}:{entry[2]}")
    close()
    return " ".join(words)


def saved_of(outputs, leaves, meter, places):
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
                if not isinstance(tensor, torch.Tensor) or tensor.device != DEVICE or tensor.untyped_storage().nbytes() == 0:
                    continue
                serial = meter.serial_of(tensor)
                found.append((name, serial, tensor.untyped_storage().nbytes()))
        for following, _ in node.next_functions:
            if following is not None and following not in leaves:
                pending.append(following)
    return found


def spec(tensor):
    return NAMES[tensor.dtype] + str(list(tensor.shape)).replace(" ", "")


def run(case, dtype, shape_index, needs, in_place):
    """One line of the file."""
    shapes = case["shapes"][shape_index]
    kinds = case["kinds"]
    meter = Meter()
    with FakeTensorMode(), meter:
        leaves = [torch.empty(shape, dtype=DTYPES[dtype if kind == "f" else kind], device=DEVICE, requires_grad=need)
                  for shape, kind, need in zip(shapes, kinds, needs)]
        inputs = list(leaves)
        boundary = set()
        if in_place:
            inputs[0] = leaves[0].clone()
            boundary.add(inputs[0].grad_fn)
        grad = any(needs)
        first_specs = [spec(tensor) for tensor in inputs]
        places = {meter.serial_of(tensor): f"in{i}" for i, tensor in reversed(list(enumerate(inputs)))
                  if meter.serial_of(tensor) is not None}
        meter.log.clear()
        with torch.set_grad_enabled(grad):
            outputs = (case["in_place"] if in_place else case["call"])(*inputs)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        forward = list(meter.log)
        roles, outs = {}, []
        for i, out in enumerate(outputs):
            serial = meter.serial_of(out)
            outs.append(spec(out) + ("*" if out.requires_grad else "") +
                        (f"@{places[serial]}" if serial in places and places[serial].startswith("in") else ""))
            if serial not in places:
                places[serial] = f"out{i}"
                roles[serial] = f"out{i}"
        line = {"op": case["op"]}
        if case.get("attributes"):
            line.update(case["attributes"])
        if in_place:
            line["in_place"] = True
        line["in"] = [text + ("*" if need else "") for text, need in zip(first_specs, needs)]
        line["out"] = outs
        if grad and any(out.requires_grad for out in outputs):
            saved = saved_of(outputs, boundary, meter, places)
            for _, serial, _ in saved:
                roles.setdefault(serial, "e")
            line["saved"] = sorted(f"{name}={places.get(serial, f'e:{size}')}" for name, serial, size in saved)
            line["forward"] = text_of(forward, roles)
            backward(line, meter, outputs, leaves, needs)
            if case["op"] in ARTEFACTS and (case["op"] not in ("max", "min") or len(outputs) == 2):
                line["artefact"] = True
        else:
            line["forward"] = text_of(forward, roles)
    return line


def backward(line, meter, outputs, leaves, needs):
    differentiable = [out for out in outputs if out.requires_grad]
    incoming = [torch.empty(out.shape, dtype=out.dtype, device=DEVICE) for out in differentiable]
    arriving = {meter.serial_of(tensor) for tensor in incoming}
    wanted = [i for i, need in enumerate(needs) if need]
    meter.log.clear()
    gradients = torch.autograd.grad(differentiable, [leaves[i] for i in wanted], incoming, allow_unused=True)
    log = list(meter.log)
    roles, passes, missing = {}, [], []
    for i, gradient in zip(wanted, gradients):
        if gradient is None:
            missing.append(f"in{i}")
            continue
        serial = meter.serial_of(gradient)
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


def lines_of(case):
    can = case["grad"]
    combinations = [combo for combo in itertools.product([False, True], repeat=len(can))
                    if all(may or not need for may, need in zip(can, combo))]
    combinations.sort(key=lambda combo: (-sum(combo), combo))
    for dtype in case.get("dtypes", ["fp32", "bf16", "fp16"]):
        for shape_index in range(len(case["shapes"])):
            for needs in combinations:
                if case["call"] is not None:
                    yield run(case, dtype, shape_index, needs, False)
                if "in_place" in case and needs == combinations[0] or "in_place" in case and not any(needs[1:]):
                    yield run(case, dtype, shape_index, needs, True)


def main():
    wanted = set(sys.argv[2:])
    gc.disable()  # Nothing but reference counts may end a storage.
    seen, lines = set(), []
    for case in CASES:
        if wanted and case["op"] not in wanted:
            continue
        try:
            for line in lines_of(case):
                text = json.dumps(line, separators=(",", ":"))
                if text not in seen:
                    seen.add(text)
                    lines.append(text)
        except Exception as error:
            print(f"{case['op']} {case.get('attributes', '')}: {error!r}"[:400], file=sys.stderr, flush=True)
        print(case["op"], len(lines), file=sys.stderr, flush=True)
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write('{"source": "tools/oracles/operators.py", "torch": "%s",\n"artefacts": %s,\n"cases": [\n' %
                  (torch.__version__, json.dumps(ARTEFACTS)))
        out.write(",\n".join(lines))
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
