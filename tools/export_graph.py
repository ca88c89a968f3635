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
import functools
import gc
import importlib
import json
import os
import sys
import weakref
from unittest import mock

import torch
from torch.nn.modules import module as hooks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE, aten, tree_leaves = torch.device("cuda:0"), torch.ops.aten, torch.utils._pytree.tree_leaves
# The forward, or one backward function: its lines, with "-N" where the N-th storage that it made ends.
Stretch = type("Stretch", (list,), {"made": 0})
# Backward formulas take the out-of-place form under a dispatch mode (at::isTensorSubclassLike); real tensors do not.
IN_PLACE = {aten.index_put.default: aten.index_put_.default, aten.scatter_add.default: aten.scatter_add_.default,
            aten.scatter.src: aten.scatter_.src, aten.index_add.default: aten.index_add_.default}


def stop(reason):
    sys.exit(f"export_graph.py: {reason}")


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
        (x, weight, _), wanted = ctx.saved_tensors, ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (gradient.matmul(weight) if wanted[0] else None,
                rows.t().matmul(x.reshape(-1, x.shape[-1])) if wanted[1] else None,
                gradient.sum(list(range(gradient.dim() - 1))) if wanted[2] else None)


class Recording(TorchDispatchMode):
    """The stream of one forward, with what its backward makes and lets go of. A storage says which stretch made it, as
    which number. Autograd saves stand-ins, so that a storage ends where Python lets go of it. What is known of nodes of
    autograd's goes by their sequence numbers."""

    def __init__(self, module, inputs, loss_of):
        super().__init__()
        self.now = self.forward = Stretch()
        self.of, self.behind = {}, {}  # The operator that a node is of; the last line of what its function ran.
        self.saved, self.lies, self.values = {}, {}, {}
        self.parameters = len(list(module.parameters()))
        placed = [*module.parameters(), *module.buffers(), *tree_leaves(inputs)]
        for number, tensor in reversed(list(enumerate(placed))):  # Of two in one storage the first speaks for it.
            tensor.untyped_storage().made = self.forward, number
        self.forward.made = len(placed)
        with self, torch.autograd.graph.saved_tensors_hooks(self.save, lambda saved: saved):
            self.backward(self.run(module, inputs, loss_of))
        module.zero_grad()
        self.lines = [{"drop": int(line[1:])} if isinstance(line, str) else line for line in self.forward
                      if isinstance(line, str) or line.get("makes", True) or "outs" in line]

    def makes(self, out):
        """Numbers the storages that are new, and gives their sizes."""
        new = [s for s in dict.fromkeys(t.untyped_storage() for t in on_device(out)) if not hasattr(s, "made")]
        for storage in new:
            storage.made = self.now, self.now.made
            self.now.made += 1
            weakref.finalize(storage, self.ended, *storage.made)
        return [storage.nbytes() for storage in new]

    def ended(self, stretch, number, stand_in=False):
        if stretch is self.now and (not stand_in or f"-{number}" in stretch):
            if stand_in:  # Not Python was the last to hold it, but a node that is not behind the loss.
                stretch.remove(f"-{number}")
            stretch.append(f"-{number}")

    def number(self, tensor):
        stretch, number = getattr(tensor.untyped_storage(), "made", (None, None))
        if stretch is not self.forward:
            stop("the module reads a tensor that is neither a parameter nor a buffer nor an input of it")
        return number

    def __torch_dispatch__(self, function, types, args=(), kwargs={}):
        if function is aten._local_scalar_dense.default:
            stop("the module asks for the value of a tensor, which a recording does not have")
        if "cudnn_rnn" in function.name():
            stop("nn.LSTM, nn.GRU, nn.RNN: one call of cuDNN's, whose backward PyTorch does not run on fake tensors")
        if function.name().startswith("prim::") or function is aten.detach.default:
            return function(*args, **kwargs)  # What a fake tensor is asked of itself, and hooks do.
        if self.now is not self.forward:
            if torch.is_grad_enabled() and torch._C._current_autograd_node():
                stop("the module runs a part again in backward: record it with its own checkpoints left out")
            if function in IN_PLACE and (function is not aten.index_put.default or args[3:4] == (True,)):
                function = IN_PLACE[function]
            out = function(*args, **kwargs)
            self.now += [f"+{size}" for size in self.makes(out)]
            return out
        reads, at, graded = set(), torch.autograd._get_sequence_nr() - 1, torch.is_grad_enabled()
        for tensor in on_device((args, kwargs)):
            reads.add(self.number(tensor))
            if tensor.grad_fn is not None:
                self.lies[tensor.grad_fn._sequence_nr(), tensor.output_nr] = self.number(tensor)
        out = function(*args, **kwargs)
        row = {"op": function.name().removeprefix("aten::").split(".")[0],
               "makes": self.makes(out), "reads": sorted(reads)}
        if graded and at not in self.behind:
            self.of[at] = row
            for nr, tensor in enumerate(t for t in on_device(out) if t.is_floating_point()):
                self.lies.setdefault((at, nr), self.number(tensor))
        previous = next((line for line in reversed(self.forward) if not isinstance(line, str)), None)
        if at not in self.behind or not graded and self.behind[at] is previous:
            self.behind[at] = row
        self.forward.append(row)
        return out

    def save(self, tensor):
        """Gives autograd a stand-in for what it saves."""
        if self.now is not self.forward or not on_device(tensor):
            return tensor
        at, number = torch.autograd._get_sequence_nr() - 1, self.number(tensor)
        row = self.saved.setdefault(at, {"saves": [], "after": False})
        row["saves"] += [number] if number not in row["saves"] else []
        row["after"] |= at in self.behind
        if number < self.parameters and not isinstance(tensor, torch.nn.Parameter):
            row["views"] = row.get("views", []) + [number]
        self.now = Stretch()
        stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)
        self.now = self.forward
        weakref.finalize(stand_in.untyped_storage(), self.ended, self.forward, number, stand_in=True)
        return stand_in

    def run(self, module, inputs, loss_of):
        def passes(part, *given):  # Before its call arguments are given, behind it the result as well.
            if part in parts:
                word, note = ("enter", called.append) if len(given) == 1 else ("exit", called.remove)
                note(part)
                self.forward.append({word: parts[part]})
        def asked(part, name):  # ZeRO-3 gathers what Python takes in hand outside of its own module's call.
            found = getter(part, name)
            if isinstance(found, torch.nn.Parameter) and part in parts and part not in called:
                self.forward.append({"ask": self.number(found)})
            return found
        parts, called, getter = {part: at for at, part in enumerate(module.modules())}, [], torch.nn.Module.__getattr__
        with hooks.register_module_forward_pre_hook(passes), hooks.register_module_forward_hook(passes), \
                mock.patch.object(torch.nn.Module, "__getattr__", asked):
            out = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
        loss = loss_of(out) if loss_of else getattr(out, "loss", out)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.grad_fn is None:
            stop("there is no loss: let make() return (module, inputs, loss), of which loss(outputs) is a number")
        return loss

    def backward(self, loss):
        self.now, nodes = Stretch(), nodes_of(loss)
        self.loss = loss.grad_fn._sequence_nr(), loss.output_nr
        self.lies[self.loss] = self.number(loss)
        used = {(to._sequence_nr(), nr) for node in nodes for to, nr in node.next_functions if to} | {self.loss}
        for node in nodes:
            at, custom = node._sequence_nr(), isinstance(node, torch.autograd.function.BackwardCFunction)
            row = self.row_behind(at, node.name()) if custom or at not in self.of else self.of[at]
            row.update({"outs": [], "saves": [], "after": False, **self.saved.get(at, {}), "to": [], "back": Stretch()})
            row["after"] |= custom
            for nr, like in enumerate(node._input_metadata):
                if (at, nr) in used:
                    self.values[at, nr] = len(self.values)
                    row["outs"].append([self.lies.get((at, nr)), *row_of(like)])
            node.register_prehook(lambda _, function=row["back"]: setattr(self, "now", function))
            node.register_hook(functools.partial(self.returned, node, row))
            for to, _ in node.next_functions:
                if hasattr(to, "variable"):  # Gradients of leaves stand in the order in which the engine takes them.
                    target = -1 - self.number(to.variable)
                    to.register_prehook(lambda _, row=row, at=target: row["to"].sort(key=lambda one: one[0] == at))
        loss.backward()

    def row_behind(self, at, name):
        """A line of its own for a node, behind what its function has run, or the nodes before it."""
        before = max((known for known in self.behind if known <= at), default=min(self.behind))
        index = next(i for i, line in enumerate(self.forward) if line is self.behind[before])
        self.behind[before] = {"op": name, "makes": [], "reads": []}
        self.forward.insert(index + 1, self.behind[before])
        return self.behind[before]

    def returned(self, node, row, gradients, incoming):
        """Where each gradient lies: in a tensor of the function's, in what it was given (-1), or elsewhere (null)."""
        self.now = Stretch()  # What autograd does between functions, which no line tells.
        given = next((g.untyped_storage() for g in incoming if g is not None), None)
        for (to, nr), gradient in zip(node.next_functions, gradients, strict=True):
            if to is None or gradient is None:
                continue
            storage, bare = gradient.untyped_storage(), gradient.squeeze()  # A stride over one element says nothing.
            stretch, slot = getattr(storage, "made", (None, None))
            slot = slot if stretch is row["back"] else -1 if storage is given else None
            view = gradient._is_view() and not any(gradient is g for g in incoming)
            leaf = getattr(to, "variable", None)
            target = self.values[to._sequence_nr(), nr] if leaf is None else -1 - self.number(leaf)
            like = torch.empty_like(bare) if leaf is None else leaf.squeeze()
            whole = bare.stride() == like.stride() and storage.nbytes() == gradient.numel() * gradient.element_size()
            row["to"].append([target, slot, int(whole), int(view)])


def on_device(tree):
    """Its tensors that have bytes on the device."""
    return [t for t in tree_leaves(tree)
            if isinstance(t, torch.Tensor) and t.device == DEVICE and t.untyped_storage().nbytes()]


def nodes_of(loss):
    """Autograd's nodes behind the loss, in the order in which they were made."""
    seen, stack = {loss.grad_fn}, [loss.grad_fn]
    while stack:
        new = {to for to, _ in stack.pop().next_functions if to and not hasattr(to, "variable")} - seen
        seen |= new
        stack += new
    return sorted(seen, key=lambda node: node._sequence_nr())


def row_of(tensor):
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def maker_of(text):
    path, _, function = text.partition(":")
    folder, name = os.path.split(os.path.abspath(path)) if path.endswith(".py") else (os.getcwd(), path)
    sys.path.insert(0, folder)
    return getattr(importlib.import_module(name.removesuffix(".py")), function or "make")


def record(make):
    """The file as a dictionary."""
    made = {}
    gc.disable()  # Python's own ends are what is recorded.
    with FakeTensorMode(allow_non_fake_inputs=True), DEVICE, torch.autograd.set_multithreading_enabled(False):
        with hooks.register_module_parameter_registration_hook(
                lambda maker, _, p: made.update({p: made.get(p, (maker, len(maker._modules)))})):
            module, inputs, *loss = make()
        step = module.train(), inputs, loss[0] if loss else None
        plain = Recording(*step)
        if plain.lines != Recording(*step).lines:
            stop("two forwards of the module are not alike")
        with mock.patch("torch.nn.functional.linear", lambda x, weight, bias=None: Stage3Linear.apply(x, weight, bias)):
            stage3 = Recording(*step)
    paths = {part: path for path, part in module.named_modules()}
    names = {p: name for name, p in module.named_parameters()}
    # What another module made than the first that has it, or behind children of its own: by whom, and behind how many.
    born = [[name, paths[made[p][0]], made[p][1]] for p, name in names.items() if p in made and made[p][0] in paths
            and (made[p][1] or paths[made[p][0]] != name.rpartition(".")[0])]
    batch = list(inputs.items()) if isinstance(inputs, dict) else [(f"input {i}", t) for i, t in enumerate(inputs)]
    return {"dsplan": 1, "kind": "module_graph", "source": f"tools/export_graph.py: {type(module).__name__}",
            "torch": torch.__version__.split("+")[0], "dtype": row_of(next(module.parameters()))[0],
            "micro_batch": batch[0][1].shape[0], "seq": batch[0][1].shape[1] if batch[0][1].dim() == 2 else 1,
            "modules": [[path, type(part).__name__] for part, path in paths.items()],
            "parameters": [[name, *row_of(p), p.requires_grad] for p, name in names.items()],
            "tied": [[n, names[p]] for n, p in module.named_parameters(remove_duplicate=False) if n != names[p]],
            **({"born": born} if born else {}),
            "buffers": [[name, *row_of(b)] for name, b in module.named_buffers()],
            "batch": [[name, *row_of(t)] for name, t in batch],
            "loss": plain.values[plain.loss], "loss_stage3": stage3.values[stage3.loss],
            "ops": plain.lines, "ops_stage3": stage3.lines}


def text_of(graph):
    """JSON with a line for each row, by which faults are told."""
    def rows(value):
        lines = ",\n    ".join(map(json.dumps, value)) if isinstance(value, list) else ""
        return f"[\n    {lines}\n  ]" if lines else json.dumps(value)
    return "{\n" + ",\n".join(f'  "{key}": {rows(value)}' for key, value in graph.items()) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", metavar="MODULE_OR_SCRIPT")
    parser.add_argument("-o", "--out", default="-")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    words = parser.parse_args()
    torch.set_default_dtype(getattr(torch, words.dtype))
    text = text_of(record(maker_of(words.module)))
    (sys.stdout if words.out == "-" else open(words.out, "w")).write(text)


if __name__ == "__main__":
    main()
