"""Outside oracle for recorded modules: writes each of module_graph_cases.py as tools/export_graph.py records it, and what
real torch takes for two steps of it under memory.py's counter.

    module_graphs.py OUT_DIR [NAME...]
"""

import gc
import os
import sys

from preload import preload

if __name__ == "__main__":
    preload()

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import export_graph
import memory
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from module_graph_cases import CASES


def measure(make):
    """The log of one training step, optimizer left out, twice: the second finds no gradients, as after zero_grad."""
    meter = memory.Meter()
    with FakeTensorMode(allow_non_fake_inputs=True), meter, memory.DEVICE:
        module, inputs, *loss = make()
        module.train()
        gc.collect()
        gc.disable()
        log = []
        for _ in range(2):
            held = tree_map(lambda t: torch.empty_like(t), inputs)
            meter.log.clear()
            out = module(**held) if isinstance(held, dict) else module(*held)
            value = loss[0](out) if loss else getattr(out, "loss", out)
            del out
            meter.mark("backward")
            with torch.autograd.set_multithreading_enabled(False):
                value.backward()
            del value
            log.append(list(meter.log))
            for parameter in module.parameters():
                parameter.grad = None
        gc.enable()
    return log[1]


def main():
    out = sys.argv[1]
    for name in sys.argv[2:] or CASES:
        graph = export_graph.record(CASES[name])
        with open(os.path.join(out, name + ".json"), "w") as file:
            file.write(export_graph.text_of(graph))
        log = measure(CASES[name])
        with open(os.path.join(out, name + ".log"), "w") as file:
            file.write("\n".join(log) + "\n")
        print(name, len(graph["ops"]), len(log))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
