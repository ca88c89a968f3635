"""Outside oracle for op-graphs: small computations under memory.py's counter, in bytes above their inputs.

    op_graphs.py OUT.json

T1 to T7 are the seed experiments (two fp16 tensors of 2^29 elements), C1 the table of checkpointed MLP blocks. Each
case runs forward, drops the outputs, and starts backward from an expanded scalar that was there before.
"""

import gc
import json
import os
import sys

import memory

if __name__ == "__main__":
    memory.preload()

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

SIZE = 2 ** 29


class SavesInputs(torch.autograd.Function):
    """(x + 1) * (y + 1), saving x and y alone; backward makes one tensor for each gradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x + 1) * (y + 1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(y)


class LowPeak(SavesInputs):
    """The same with one temporary: the sum is multiplied in place."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        result = x + 1
        result *= y
        result += x
        result += 1
        return result


def pair(x_grad, y_grad):
    def make():
        return [torch.empty(SIZE, dtype=torch.float16, device=memory.DEVICE, requires_grad=g) for g in (x_grad, y_grad)]
    return make


def one(grad=True):
    return lambda: [torch.empty(SIZE, dtype=torch.float16, device=memory.DEVICE, requires_grad=grad)]


def chain_of_sigmoids(x):
    for _ in range(5):
        x = torch.nn.functional.sigmoid(x)
    return x


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return y * x


def mlp(how):
    class Block(torch.nn.Module):
        def __init__(self, up, down):
            super().__init__()
            self.up, self.down = torch.nn.Parameter(up), torch.nn.Parameter(down)

        def forward(self, x):
            linear = torch.nn.functional.linear
            return linear(torch.nn.functional.gelu(linear(x, self.up)), self.down)

    def make():
        rows, width = 4096, 512
        new = lambda *shape: torch.empty(shape, device=memory.DEVICE)
        x = new(rows, width).requires_grad_()
        return [x] + [Block(new(4 * width, width), new(width, 4 * width)) for _ in range(4)]

    def run(x, *modules):
        if how == "sequential":
            return checkpoint_sequential(torch.nn.Sequential(*modules), 2, x, use_reentrant=False)
        if how == "sequential reentrant":
            return checkpoint_sequential(torch.nn.Sequential(*modules), 2, x, use_reentrant=True)
        for module in modules:
            x = module(x) if how == "none" else checkpoint(module, x, use_reentrant=how == "reentrant")
        return x
    return make, run


CASES = {
    "T1": (pair(False, False), lambda x, y: (x + 1) * (y + 1)),
    "T2": (pair(True, True), lambda x, y: (x + 1) * (y + 1)),
    "T3": (pair(True, False), lambda x, y: (x + 1) * (y + 1)),
    "T4": (pair(True, True), SavesInputs.apply),
    "T5": (one(), torch.nn.Sigmoid()),
    "T6": (one(), lambda x: 1 / (1 + torch.exp(-x))),
    "T7": (one(), chain_of_sigmoids),
    "custom function with a low peak": (pair(True, True), LowPeak.apply),
    "a tensor used twice": (one(), lambda x: x.exp() * x),
    "no_grad": (one(), without_gradients),
    "relu in place": (one(), lambda x: (x * 2).relu_()),
    "sigmoid in place": (one(), lambda x: (x + 1).sigmoid_()),
    "add in place": (pair(True, True), lambda x, y: (x * 2).add_(y)),
    "sum of an expanded gradient": (one(), lambda x: x.sum()),
    "two leaves added": (pair(True, True), lambda x, y: x + y),
    **{f"C1 {how}": mlp(how) for how in ("none", "non-reentrant", "reentrant", "sequential", "sequential reentrant")},
}


def saved_of(root):
    """Each node's saved tensors under PyTorch's names, nodes in the order in which backward takes them."""
    rows, seen, ready = [], set(), [root]
    while ready:
        node = ready.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in sorted(n for n in dir(node) if n.startswith("_saved_") or n == "saved_tensors"):
            value = getattr(node, name)
            for tensor in value if isinstance(value, (tuple, list)) else [value]:
                if isinstance(tensor, torch.Tensor):
                    rows.append([node.name(), name, tensor.untyped_storage().nbytes()])
        ready += [following for following, _ in node.next_functions]
    return rows


def measure(make, run, listing):
    meter = memory.Meter()
    with FakeTensorMode(allow_non_fake_inputs=True), meter:
        inputs = make()
        seeds = {d: torch.empty((), dtype=d, device=memory.DEVICE) for d in (torch.float16, torch.float32)}
        gc.collect()
        gc.disable()
        base = meter.live
        meter.log.clear()
        meter.window()
        out = run(*inputs)
        figures = {"after_forward": meter.live - base, "forward_peak": meter.window() - base, "backward_peak": None,
                   "after_backward": None}
        if listing and out.grad_fn is not None:
            return saved_of(out.grad_fn)
        if out.requires_grad:
            start = seeds[out.dtype].expand(out.shape)
            edge = torch.autograd.graph.get_gradient_edge(out)
            del out
            meter.window()
            torch.autograd.backward(edge, start)
            figures["backward_peak"] = meter.window() - base
            figures["after_backward"] = meter.live - base
        figures["log"] = list(meter.log)
        gc.enable()
        gc.collect()
    return figures


def main():
    results = {}
    for name, (make, run) in CASES.items():
        results[name] = measure(make, run, False)
        results[name]["saved"] = [] if name.startswith("C1") or name == "T1" else measure(make, run, True)
    head = {"dsplan": 1, "kind": "op_graph_witness", "source": "tools/oracles/op_graphs.py, in bytes above the inputs",
            "versions": {"torch": torch.__version__}}
    with open(sys.argv[1], "w") as file:
        file.write(memory.compact({**head, **results}) + "\n")
    for name, row in results.items():
        unit = 2 ** 23 if name.startswith("C1") else 2 ** 30
        print(name, [None if row[k] is None else row[k] / unit
                     for k in ("after_forward", "forward_peak", "backward_peak", "after_backward")])
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
