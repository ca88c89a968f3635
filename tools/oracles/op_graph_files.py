"""Outside oracle for op-graph files: runs any of them with real torch under memory.py's counter.

    op_graph_files.py OUT_DIR

Writes each graph of op_graph_cases.py as OUT_DIR/NAME.json, and OUT_DIR/answers.json with what real PyTorch takes above
the tensors of each of them and of the bundled files (models/graphs). Forward, the outputs are dropped, backward from
expanded scalars that were there before.
"""

import gc
import json
import os
import sys

from preload import preload

if __name__ == "__main__":
    preload()

import memory
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from op_graph_cases import ARTEFACTS, CASES
from op_graph_torch import KEPT, OPERATORS

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "graphs")
aten = torch.ops.aten


class Meter(memory.Meter):
    """Further forms that a dispatch mode changes: see IN_PLACE of memory.py."""

    FURTHER = {aten.scatter_add.default: aten.scatter_add_.default, aten.index_add.default: aten.index_add_.default}
    adds_in_place = False  # linear its bias, _scaled_dot_product_attention_math its mask: unless isTensorSubclassLike.

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.FURTHER and not torch.is_grad_enabled():
            func = self.FURTHER[func]  # gather_backward, index_select_backward (FunctionsManual.cpp).
        if self.adds_in_place and func is aten.add.Tensor:
            args[0].add_(args[1])
            func, args = aten.alias.default, args[:1]
        return super().__torch_dispatch__(func, types, args, kwargs)


METER = None


def attributes_of(op):
    return {k: v for k, v in op.items() if k not in ("op", "inputs", "output", "outputs", "in_place", "no_grad", "ops")}


def outputs_of(op):
    return op["outputs"] if "outputs" in op else [op["output"]]


def reads_of(op):
    inner = [name for one in op.get("ops", []) for name in reads_of(one)]
    inner += [name for function in op.get("functions", []) for one in function for name in reads_of(one)]
    return op["inputs"] + inner + (op.get("saves", []) if op["op"] == "custom" else [])


def made_by(op):
    inner = [name for one in op.get("ops", []) for name in made_by(one)]
    return inner + [name for function in op.get("functions", []) for one in function for name in made_by(one)] + (
        outputs_of(op))


def run_ops(ops, values, returned, hold=()):
    """`values` by name; a name goes after its last reader."""
    last = {name: i for i, op in enumerate(ops) for name in outputs_of(op)}
    for i, op in enumerate(ops):
        for name in reads_of(op):
            if name in last:
                last[name] = max(last[name], i)
    for name, until in dict(hold).items():
        if name in last:
            last[name] = max(last[name], until)
    for i, op in enumerate(ops):
        if op.get("no_grad"):
            with torch.no_grad():
                run_op(op, values)
        else:
            run_op(op, values)
        for name in [n for n, at in last.items() if at == i and n not in returned]:
            del values[name]


def run_op(op, values):
    if op["op"] == "checkpoint":
        made = run_checkpoint(op, values)
    elif op["op"] == "checkpoint_sequential":
        made = run_sequential(op, values)
    elif op["op"] == "custom":
        made = custom(op).apply(*[values[name] for name in op["inputs"]])
    else:
        attributes = attributes_of(op)
        METER.adds_in_place = op["op"] == "linear" or attributes.get("kernel") == "math"
        try:  # Early stop leaves an operator by an exception.
            made = OPERATORS[op["op"]](*[values[name] for name in op["inputs"]], in_place=op.get("in_place", False),
                                       **attributes)
        finally:
            METER.adds_in_place = False
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    values.update(zip(outputs_of(op), made, strict=True))


def function_of(ops, inputs, outputs, values):
    """A closure that holds what its operators read besides the inputs."""
    own = {name for op in ops for name in made_by(op)} | set(inputs)
    captured = {name: values[name] for op in ops for name in reads_of(op) if name not in own}

    def function(*arguments):
        inner = {**captured, **dict(zip(inputs, arguments))}
        run_ops(ops, inner, outputs)
        result = tuple(inner[name] for name in outputs)
        return result[0] if len(result) == 1 else result
    return function


def run_checkpoint(op, values):
    how = {"use_reentrant": op.get("reentrant", False), "preserve_rng_state": op.get("preserve_rng_state", True)}
    if "save" in op:
        kept = [KEPT[name] for name in op["save"]]
        how["context_fn"] = lambda: create_selective_checkpoint_contexts(kept)
    function = function_of(op["ops"], op["inputs"], op["outputs"], values)
    return checkpoint(function, *[values[name] for name in op["inputs"]], **how)


def run_sequential(op, values):
    functions, inputs = [], op["inputs"]
    for ops in op["functions"]:
        outputs = outputs_of(ops[-1])
        functions.append(function_of(ops, inputs, outputs, values))
        inputs = outputs
    return checkpoint_sequential(functions, op["segments"], values[op["inputs"][0]],
                                 use_reentrant=op.get("reentrant", False))


def custom(op):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            inner = dict(zip(op["inputs"], arguments))
            ctx.shapes = [(a.shape, a.dtype) for a in arguments]
            run_ops(op["ops"], inner, op["outputs"] + op.get("saves", []))
            ctx.save_for_backward(*[inner[name] for name in op.get("saves", [])])
            result = tuple(inner[name] for name in op["outputs"])
            return result[0] if len(result) == 1 else result

        @staticmethod
        def backward(ctx, *gradients):
            ctx.saved_tensors
            return tuple(torch.empty(shape, dtype=dtype, device=memory.DEVICE) if needed else None
                         for needed, (shape, dtype) in zip(ctx.needs_input_grad, ctx.shapes))
    return Custom


def measure(graph):
    global METER
    METER = meter = Meter()
    dtypes = {name: getattr(torch, row["dtype"]) for name, row in graph["tensors"].items()}
    with FakeTensorMode(allow_non_fake_inputs=True), meter:
        values = {name: torch.empty(row["shape"], dtype=dtypes[name], device=memory.DEVICE,
                                    requires_grad=row.get("requires_grad", False))
                  for name, row in graph["tensors"].items()}
        leaves = dict(values)
        seeds = {d: torch.empty((), dtype=d, device=memory.DEVICE)
                 for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
        gc.collect()
        gc.disable()
        base = meter.live
        meter.log.clear()
        meter.window()
        run_ops(graph["ops"], values, graph["outputs"], graph.get("hold", {}))
        figures = {"after_forward": meter.live - base, "forward_peak": meter.window() - base, "backward_peak": None,
                   "after_backward": None}
        outputs = [values.pop(name) for name in graph["outputs"]]
        values.clear()
        differentiable = [out for out in outputs if out.requires_grad]
        if differentiable:
            starts = [seeds[out.dtype].expand(out.shape) for out in differentiable]
            edges = [torch.autograd.graph.get_gradient_edge(out) for out in differentiable]
            del differentiable
            if not graph.get("keep_outputs"):
                del outputs
            meter.window()
            torch.autograd.backward(edges, starts)
            figures["backward_peak"] = meter.window() - base
            figures["after_backward"] = meter.live - base
        figures["log"] = list(meter.log)
        gc.enable()
        gc.collect()
        del leaves
    return figures


def bundled():
    for file in sorted(os.listdir(MODELS)):
        with open(os.path.join(MODELS, file)) as text:
            yield file[:-5], json.load(text)


def write_graph(path, graph):
    """One line for each tensor and operator."""
    def lines(items):
        return ",\n    ".join(items)
    tensors = lines(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in graph["tensors"].items())
    ops = lines(json.dumps(op) for op in graph["ops"])
    rest = "".join(f',\n  {json.dumps(k)}: {json.dumps(v)}' for k, v in graph.items()
                   if k not in ("dsplan", "kind", "source", "tensors", "ops"))
    with open(path, "w") as file:
        file.write(f'{{\n  "dsplan": 1,\n  "kind": "graph",\n  "source": {json.dumps(graph["source"])},\n'
                   f'  "tensors": {{\n    {tensors}\n  }},\n  "ops": [\n    {ops}\n  ]{rest}\n}}\n')


def main():
    out = sys.argv[1]
    answers = {"dsplan": 1, "kind": "op_graph_answers", "source": "tools/oracles/op_graph_files.py",
               "versions": {"torch": torch.__version__}, "artefacts": ARTEFACTS}
    failed = []
    for name, graph in list(bundled()) + list(CASES.items()):
        if name in CASES:
            write_graph(os.path.join(out, name + ".json"), graph)
        try:
            answers[name] = measure(graph)
        except Exception as error:
            if os.environ.get("STRICT"):
                raise
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            gc.enable()
    with open(os.path.join(out, "answers.json"), "w") as file:
        file.write(memory.compact(answers) + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
