#!/usr/bin/env python3
"""Records one training step of any torch module as a file that dsplan takes as MODEL (docs/exporting.md).

    export_graph.py SCRIPT.py[:FUNCTION] | PACKAGE.MODULE[:FUNCTION]  [-o FILE] [--dtype float32|bfloat16|float16]

FUNCTION (make) returns (module, inputs) or (module, inputs, loss): `inputs` is a tuple or a dict of tensors, the first
dimension of the first one is the micro-batch; `loss(outputs)` gives one number. Without it the module's output is the
loss, or has one as `.loss`.

Nothing is computed: the tensors are fake ones on a GPU that need not be there. Needs torch alone, a CUDA build. On a
machine without a driver run it as `dsplan measure -- python3 tools/export_graph.py ...`.
"""

import argparse
import gc
import importlib
import json
import os
import sys
import weakref

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda:0")
aten = torch.ops.aten
sequence = torch.autograd._get_sequence_nr
# Backward formulas take the out-of-place form under a dispatch mode (at::isTensorSubclassLike); real tensors do not.
IN_PLACE = {aten.index_put.default: aten.index_put_.default, aten.scatter_add.default: aten.scatter_add_.default,
            aten.scatter.src: aten.scatter_.src, aten.index_add.default: aten.index_add_.default}


class Stage3Linear(torch.autograd.Function):
    """What DeepSpeed puts in the place of nn.functional.linear under ZeRO-3 (runtime/zero/linear.py)."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight, bias)
        if x.dim() == 2 and bias is not None:
            return torch.addmm(bias, x, weight.t())
        out = x.matmul(weight.t())
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight, _ = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (gradient.matmul(weight) if wanted[0] else None,
                rows.t().matmul(x.reshape(-1, x.shape[-1])) if wanted[1] else None,
                gradient.sum(list(range(gradient.dim() - 1))) if wanted[2] else None)


class Stop(Exception):
    """Why a module cannot be recorded."""


class Recorder(TorchDispatchMode):
    """The stream of one forward: storages by number, operators, module calls, and where each storage ends."""

    def __init__(self, placed):
        super().__init__()
        self.number, self.references, self.rows, self.packed, self.value_in = {}, {}, [], {}, {}
        self.inside, self.begun, self.count = None, sequence(), 0
        for tensor in placed:
            self.known(tensor)

    def known(self, tensor):
        """The number of the tensor's storage, and whether it is a new one."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.number:
            return self.number[key], False
        number, self.count = self.count, self.count + 1
        self.number[key] = number
        self.references[number] = weakref.ref(storage, lambda _: self.ended(key, number))
        return number, True

    def ended(self, key, number):
        del self.number[key], self.references[number]
        if self.inside is None:
            self.rows.append({"drop": number})
        elif number in self.inside["slots"]:
            self.inside["back"].append(f"-{self.inside['slots'].index(number)}")

    def on_device(self, tree):
        return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and t.device == DEVICE]

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is aten._local_scalar_dense.default:
            raise Stop("the module asks for the value of a tensor, which a recording does not have")
        if function.name().startswith("prim::") or function is aten.detach.default:
            return function(*args, **(kwargs or {}))  # What a fake tensor is asked of itself, and hooks do.
        backward = self.inside is not None
        if backward and function in IN_PLACE and (function is not aten.index_put.default or args[3:4] == (True,)):
            function = IN_PLACE[function]
        given = [] if backward else self.on_device((args, kwargs))
        for tensor in given:
            if tensor.grad_fn is not None:
                self.value_in[tensor.grad_fn._sequence_nr() - self.begun, tensor.output_nr] = self.known(tensor)[0]
        at = sequence() - 1 - self.begun
        out = function(*args, **(kwargs or {}))
        made = []
        for tensor in self.on_device(out):
            number, new = self.known(tensor)
            size = tensor.untyped_storage().nbytes()
            if not new or size == 0:
                continue
            made.append([number, size])
            if backward and not self.inside.get("idle"):
                self.inside["slots"].append(number)
                self.inside["back"].append(f"+{size}")
        if not backward:
            self.rows.append({
                "op": function.name().removeprefix("aten::").split(".")[0], "at": at, "graded": torch.is_grad_enabled(),
                "makes": made, "reads": sorted({self.known(t)[0] for t in given}),
                "returns": [self.known(t)[0] for t in self.on_device(out) if t.is_floating_point()]})
        return out

    def pack(self, tensor):
        """Says which node saves what, and keeps nothing: what ends now is what Python lets go of."""
        if isinstance(tensor, torch.Tensor) and tensor.device == DEVICE:
            at = sequence() - 1 - self.begun
            last = next((row for row in reversed(self.rows) if "op" in row), {})
            whole = not isinstance(tensor, torch.nn.Parameter) and tensor._base is not None
            self.packed.setdefault(at, []).append((self.known(tensor)[0], last.get("at") == at, whole))


def nodes_of(loss):
    """Autograd's nodes behind the loss, in the order in which they were made."""
    seen, stack = set(), [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [to for to, _ in node.next_functions]
    return sorted((n for n in seen if not hasattr(n, "variable")), key=lambda n: n._sequence_nr())


class Recording:
    """Two forwards: one that keeps nothing for backward, which says what Python holds, and one with its backward."""

    def __init__(self, module, inputs, loss):
        self.module, self.inputs, self.loss_of = module, inputs, loss
        self.parameters = list(module.parameters())
        self.placed = self.parameters + list(module.buffers()) + tree_leaves(inputs)
        gc.collect()
        gc.disable()
        self.held = Recorder(self.placed)
        with self.held, torch.autograd.graph.saved_tensors_hooks(self.held.pack, lambda _: None):
            loss = self.forward(self.held)
            self.last = self.held.known(loss)[0]
            self.held.inside = {"slots": [], "back": []}
            del loss
        self.real, self.functions, self.arrivals = Recorder(self.placed), {}, {}
        with self.real:
            self.backward(self.forward(self.real))
        gc.enable()
        self.lines = list(self.write())

    def forward(self, recorder):
        handles = []
        for at, module in enumerate(self.module.modules()):
            enter, leave = (lambda *_, at=at, key=key: recorder.rows.append({key: at}) for key in ("enter", "exit"))
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
        given = self.inputs
        out = self.module(**given) if isinstance(given, dict) else self.module(*given)
        for handle in handles:
            handle.remove()
        loss = self.loss_of(out) if self.loss_of else getattr(out, "loss", out)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.grad_fn is None:
            raise Stop("there is no loss: let make() return (module, inputs, loss), of which loss(outputs) is a number")
        return loss

    def backward(self, loss):
        recorder, self.nodes = self.real, []
        recorder.inside = idle = {"slots": [], "back": [], "idle": True}
        self.loss = (loss.grad_fn._sequence_nr() - recorder.begun, loss.output_nr)
        recorder.value_in[self.loss] = self.last
        for node in nodes_of(loss):
            at = node._sequence_nr() - recorder.begun
            edges = [(("leaf", to.variable) if hasattr(to, "variable") else (to._sequence_nr() - recorder.begun, nr))
                     if to is not None else None for to, nr in node.next_functions]
            custom = isinstance(node, torch.autograd.function.BackwardCFunction)
            self.nodes.append((at, node.name(), custom, edges, [(list(m.shape), m.dtype) for m in node._input_metadata]))
            node.register_prehook(lambda _, at=at: self.begin(at))
            node.register_hook(lambda out, into, at=at, edges=edges: self.end(at, edges, out, into, idle))
            for to, _ in node.next_functions:
                if hasattr(to, "variable"):
                    self.arrivals.setdefault(id(to.variable), 0)
                    to.register_prehook(lambda _, key=id(to.variable): self.arrive(key))
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()
        for parameter in self.parameters:
            parameter.grad = None

    def arrive(self, key):
        self.arrivals[key] = len(self.functions)  * 1000 + sum(1 for v in self.arrivals.values() if v)

    def begin(self, at):
        self.real.inside = self.functions[at] = {"slots": [], "back": [], "to": []}

    def end(self, at, edges, out, into, idle):
        mine = self.functions[at]
        first = next((g for g in into if g is not None), None)
        for edge, gradient in zip(edges, out, strict=True):
            if edge is None or gradient is None:
                continue
            number = self.real.known(gradient)[0]
            fills = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
            whole = fills and (gradient.stride() == edge[1].stride() if edge[0] == "leaf" else dense(gradient))
            view = gradient._is_view() and not any(gradient is g for g in into)
            if number in mine["slots"]:
                source = mine["slots"].index(number)
            else:
                source = -1 if first is not None and self.real.known(first)[0] == number else ("saved", number)
            mine["to"].append((edge, source, whole, view))
        self.real.inside, mine["slots"] = idle, []

    def write(self):
        """The stream, one line for each operator, call and end."""
        steps = [row for row in self.real.rows if "drop" not in row]
        if [{**r, "reads": 0} for r in steps] != [{**r, "reads": 0} for r in self.held.rows if "drop" not in r]:
            raise Stop("two forwards of the module are not alike")
        saved = {number for at, *_ in self.nodes for number, *_ in self.held.packed.get(at, [])}
        ends = {}
        for recorder, wanted in ((self.real, lambda n: n not in saved), (self.held, lambda n: n in saved)):
            at = 0
            for row in recorder.rows:
                at += "drop" not in row
                if "drop" in row and wanted(row["drop"]):
                    ends.setdefault(at, []).append(row["drop"])
        places = self.places(steps)
        used = {edge for *_, edges, _ in self.nodes for edge in edges if edge} | {self.loss}
        values, self.made = {}, {}
        base = len(set(self.real.known(t)[0] for t in self.placed))
        self.made = {number: number for number in range(base)}
        for at in range(len(steps) + 1):
            for node in places.get(("before", at), []):
                yield self.operator({"op": node[1], "makes": [], "reads": [], "returns": []}, node, values, used)
            for number in ends.get(at, []):
                if number in self.made and number >= base:
                    yield {"drop": self.made[number]}
            if at == len(steps):
                break
            row = steps[at]
            if "op" not in row:
                yield row
                continue
            node = places.get(("of", at))
            if row["makes"] or node:
                yield self.operator(row, node, values, used)
        self.loss_value = values[self.loss]
        left = sorted(set(self.made) - set(range(base)) - {n for numbers in ends.values() for n in numbers} - {self.last})
        if left:
            raise Stop(f"{len(left)} tensors stay after the forward that neither autograd nor the loss holds")

    def places(self, steps):
        """Where each node stands: with the operator that it is of, or behind what a custom function has run."""
        first, behind = {}, {}
        for index, row in enumerate(steps):
            if "op" in row:
                first.setdefault(row["at"], index)
                if behind.setdefault(row["at"], index) == index - 1 and not row["graded"]:
                    behind[row["at"]] = index
        places = {}
        for node in self.nodes:
            if not node[2] and node[0] in first and steps[first[node[0]]]["graded"]:
                places["of", first[node[0]]] = node
            else:
                index = max((behind[at] for at in behind if at <= node[0]), default=-1)
                places.setdefault(("before", index + 1), []).append(node)
        return places

    def operator(self, row, node, values, used):
        for number, _ in row["makes"]:
            self.made[number] = len(self.made)
        line = {"op": row["op"], "makes": [size for _, size in row["makes"]], "reads": self.storages(row["reads"])}
        if node is None:
            return line
        at, name, custom, edges, metadata = node
        mine, packed, line["outs"] = self.functions[at], self.held.packed.get(at, []), []
        for nr, (shape, dtype) in enumerate(metadata):
            if (at, nr) in used:
                values[at, nr] = len(values)
                storage = self.real.value_in.get((at, nr), (row["returns"] + [None] * 9)[nr])
                if storage not in self.made:
                    raise Stop(f"{name}: nobody knows where its result lies")
                line["outs"].append([self.made[storage], str(dtype).removeprefix("torch."), shape])
        kept = list(dict.fromkeys(number for number, *_ in packed if number in self.made))  # Others have no bytes.
        line.update(saves=self.storages(kept), after=any(after for _, after, _ in packed) or custom)
        views = [number for number, _, view in packed if view and number < len(self.parameters)]
        if views:
            line["views"] = self.storages(dict.fromkeys(views))
        leaves = sorted((to for to in mine["to"] if to[0][0] == "leaf"), key=lambda to: self.arrivals[id(to[0][1])])
        line["to"] = []
        for edge, source, whole, view in [to for to in mine["to"] if to[0][0] != "leaf"] + leaves:
            target = -1 - self.real.known(edge[1])[0] if edge[0] == "leaf" else values[edge]
            if isinstance(source, tuple):
                if source[1] not in kept:
                    raise Stop(f"{name}: a gradient lies in memory that its function neither made nor was given")
                source = -2 - kept.index(source[1])
            line["to"].append([target, source, int(whole), int(view)])
        line["back"] = mine["back"]
        return line

    def storages(self, numbers):
        return [self.made[number] for number in numbers]


def dense(tensor):
    expected = 1
    for stride, size in sorted((tensor.stride(i), n) for i, n in enumerate(tensor.shape) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def maker_of(text):
    path, _, function = text.partition(":")
    if path.endswith(".py"):
        folder, path = os.path.split(os.path.abspath(path)[:-3])
        sys.path.insert(0, folder)
    return getattr(importlib.import_module(path), function or "make")


def births(module, made):
    """Parameters that another module made than the first that has them, or behind children of its own: by whom, and behind
    how many."""
    paths = {id(m): name for name, m in module.named_modules()}
    for name, parameter in module.named_parameters():
        _, maker, before = made.get(id(parameter), (None, None, 0))
        if id(maker) in paths and (before or paths[id(maker)] != name.rpartition(".")[0]):
            yield [name, paths[id(maker)], before]


def tensor_row(name, tensor):
    return [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def record(make):
    """The file as a dictionary."""
    linear, made = torch.nn.functional.linear, {}

    def registered(maker, _, parameter):
        if parameter is not None:  # It stays alive, so that no other takes its id.
            made.setdefault(id(parameter), (parameter, maker, len(maker._modules)))
    with FakeTensorMode(allow_non_fake_inputs=True), DEVICE:
        with register_module_parameter_registration_hook(registered):
            module, inputs, *loss = make()
        born = list(births(module, made))
        made.clear()
        module.train()
        loss = loss[0] if loss else None
        plain = Recording(module, inputs, loss)
        torch.nn.functional.linear = lambda x, weight, bias=None: Stage3Linear.apply(x, weight, bias)
        try:
            stage3 = Recording(module, inputs, loss)
        finally:
            torch.nn.functional.linear = linear
    names = {id(p): name for name, p in reversed(list(module.named_parameters(remove_duplicate=False)))}
    parameters = [tensor_row(n, p) + [p.requires_grad] for n, p in module.named_parameters()]
    tied = [[n, names[id(p)]] for n, p in module.named_parameters(remove_duplicate=False) if names[id(p)] != n]
    batch = list(inputs.items()) if isinstance(inputs, dict) else [(f"input {i}", t) for i, t in enumerate(inputs)]
    first = batch[0][1]
    return {"dsplan": 1, "kind": "module_graph", "source": f"tools/export_graph.py: {type(module).__name__}",
            "torch": torch.__version__.split("+")[0], "dtype": str(plain.parameters[0].dtype).removeprefix("torch."),
            "micro_batch": first.shape[0], "seq": first.shape[1] if first.dim() == 2 else 1,
            "modules": [[n, type(m).__name__] for n, m in module.named_modules()],
            "parameters": parameters, "tied": tied, **({"born": born} if born else {}),
            "buffers": [tensor_row(n, b) for n, b in module.named_buffers()],
            "batch": [tensor_row(n, t) for n, t in batch], "loss": plain.loss_value, "loss_stage3": stage3.loss_value,
            "ops": plain.lines, "ops_stage3": stage3.lines}


def text_of(graph):
    rows = []
    for key, value in graph.items():
        many = isinstance(value, list) and value
        rows.append(f"  {json.dumps(key)}: " + ("[\n    " + ",\n    ".join(map(json.dumps, value)) + "\n  ]" if many
                                              else json.dumps(value)))
    return "{\n" + ",\n".join(rows) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", metavar="MODULE_OR_SCRIPT")
    parser.add_argument("-o", "--out", default="-")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    words = parser.parse_args()
    torch.set_default_dtype(getattr(torch, words.dtype))
    try:
        text = text_of(record(maker_of(words.module)))
    except Stop as stop:
        sys.exit(f"export_graph.py: {words.module}: {stop}")
    if words.out == "-":
        sys.stdout.write(text)
    else:
        with open(words.out, "w") as file:
            file.write(text)


if __name__ == "__main__":
    main()
