"""Outside oracle for DeepSpeed's activation checkpointing: the real deepspeed.checkpointing.checkpoint around the
layers of transformers' models, as memory.py runs them: fake tensors on cuda:0, a counter on the device's storages.

    deepspeed_checkpointing.py OUT_FILE [NAME...]     all configurations in one file

The device is fake, so what the CUDA accelerator would be asked is answered here: its name, that it has streams (of
which nothing is waited for), that pinning hands back the same tensor. What it cannot show: when a copy on another
stream is over, and what lies on the host.

Needs what memory.py needs, and deepspeed; for the cases over tensor-parallel ranks Megatron-LM (tensor_parallel.py).
"""

import contextlib
import importlib.metadata
import os
import sys
import types

from preload import preload

if __name__ == "__main__":
    preload()
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from torch._subclasses.fake_tensor import FakeTensor

import memory
import memory_cases
import op_graph_files
from op_graph_cases import op, tensor
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.activation_checkpointing import checkpointing

LLAMA = memory_cases.config("llama", num_hidden_layers=3, hidden_size=64, intermediate_size=96, vocab_size=200)
# Its blocks get non-tensors by position, which partitioning hands on twice: without that only.
GPT2 = memory_cases.gpt2(n_layer=4, vocab_size=200, resid_pdrop=0.0, embd_pdrop=0.0)


def case(block, config=LLAMA, streams=True, **more):
    made = memory_cases.case(config, seq=96, checkpoint="full", **more)
    return {**made, "input_require_grads": True, "block": block, "streams": streams}


PARTITION = {"partition_activations": True}
CONTIGUOUS = {**PARTITION, "contiguous_memory_optimization": True}
CASES = {
    "plain": case({}, micro_batch=2),
    "plain-gpt2": case({}, GPT2),
    "partition": case(PARTITION, micro_batch=2),
    "contiguous": case({**CONTIGUOUS, "number_checkpoints": 3}),
    "contiguous-spare": case({**CONTIGUOUS, "number_checkpoints": 7}, grad_accum=2),
    "partition-cpu": case({**PARTITION, "cpu_checkpointing": True}),
    "contiguous-cpu": case({**CONTIGUOUS, "number_checkpoints": 5, "cpu_checkpointing": True}),
    "cpu": case({"cpu_checkpointing": True}, GPT2, grad_accum=2),
    "cpu-blocking": case({"cpu_checkpointing": True}, GPT2, streams=False),
    "plain-tp2": case({}, micro_batch=2, tp=2),
    "partition-tp2": case(PARTITION, micro_batch=2, tp=2),
    "contiguous-tp2": case({**CONTIGUOUS, "number_checkpoints": 4}, grad_accum=2, tp=2),
    "partition-cpu-tp2": case({**PARTITION, "cpu_checkpointing": True}, tp=2),
    "contiguous-cpu-tp2": case({**CONTIGUOUS, "number_checkpoints": 3, "cpu_checkpointing": True}, micro_batch=2, tp=2),
    "synchronize-profile": case({"synchronize_checkpoint_boundary": True, "profile": True}, GPT2),
}
# What users meet; the message is DeepSpeed's.
FAILS = {"contiguous-too-few": case({**CONTIGUOUS, "number_checkpoints": 2}), "partition-gpt2": case(PARTITION, GPT2)}


# Two checkpoints of two tensors and a mask each; the second one's second argument is the first one's, emptied by then.
ONE = tensor((64, 32))
GRAPH = {
    "dsplan": 1, "kind": "graph", "source": "tools/oracles/deepspeed_checkpointing.py",
    "tensors": {"x": ONE, "y": ONE, "m": tensor((64, 32), "bool"), "w": ONE},
    "ops": [
        op("exp", "x", "h"), op("exp", "y", "u"),
        {"op": "checkpoint", "reentrant": True, "inputs": ["h", "u", "m"], "outputs": ["c", "d"], "ops": [
            op("masked_fill", "h m", "a", value=0.0), op("mul", "a u", "b"), op("exp", "b", "c"), op("sin", "b", "d")]},
        {"op": "checkpoint", "reentrant": True, "inputs": ["c", "d"], "outputs": ["g"], "ops": [
            op("mul", "c d", "e"), op("mul", "e w", "f"), op("tanh", "f", "g")]},
        op("sin", "g", "z")],
    "outputs": ["z"]}
GRAPHS = {
    "plain": {}, "partition": PARTITION, "contiguous": {**CONTIGUOUS, "number_checkpoints": 3},
    "partition-cpu": {**PARTITION, "cpu_checkpointing": True}, "cpu": {"cpu_checkpointing": True},
}


class Stream:
    """Of which nothing is ever waited for."""

    def wait_stream(self, stream):
        pass

    wait_event = wait_stream

    def record_event(self):
        return types.SimpleNamespace(query=lambda: True, synchronize=lambda: None)

    def synchronize(self):
        pass


class Timers:
    """For `profile`."""

    def __call__(self, name):
        return self

    def start(self):
        pass

    def stop(self):
        pass

    def log(self, names):
        pass


class Torch:
    """torch, but for the tensors of constants: operators on those are run for real, which the device cannot."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def tensor(self, data):
        return torch.empty(0) if data == () else torch.tensor(data)


def index(*bounds):
    """`range` as an index becomes a tensor on the device within torch's C++, where no fake one can be made."""
    one = range(*bounds)
    return torch.empty(len(one), dtype=torch.int64, device=memory.DEVICE) if len(bounds) == 3 else one


def accelerator(streams):
    one = get_accelerator()
    one.current_device_name = lambda: "cuda:0"
    one.is_synchronized_device = lambda: not streams
    one.on_accelerator = lambda tensor: tensor.device.type == "cuda"
    type(one).Stream = Stream
    one.stream = lambda stream: contextlib.nullcontext()
    one.current_stream = lambda: Stream()
    one.pin_memory = lambda tensor, **_: tensor
    one.synchronize = lambda *_: None
    torch.Tensor.record_stream = lambda tensor, stream: None
    checkpointing._set_cuda_rng_state = lambda state, device=-1: None
    checkpointing.see_memory_usage = lambda *_, **__: None
    checkpointing.Timers = Timers
    checkpointing.torch = Torch()
    checkpointing.range = index if not checkpointing.CPU_CHECKPOINT else range


def configure(block, ranks=1):
    checkpointing.mp_rank, checkpointing.mp_size = 0, ranks
    checkpointing.mp_group = torch.distributed.group.WORLD if ranks > 1 else None
    checkpointing.dist = torch.distributed  # deepspeed.comm would want an engine's initialisation.
    checkpointing.PARTITION_ACTIVATIONS = block.get("partition_activations", False)
    checkpointing.CONTIGUOUS_CHECKPOINTING = block.get("contiguous_memory_optimization", False)
    checkpointing.num_layers = block.get("number_checkpoints")
    checkpointing.CPU_CHECKPOINT = block.get("cpu_checkpointing", False)
    checkpointing.SYNCHRONIZE = block.get("synchronize_checkpoint_boundary", False)
    checkpointing.PROFILE_TIME = block.get("profile", False)
    checkpointing.contiguous_data_buffers, checkpointing.data_offsets = [], []
    checkpointing.contiguous_size_buffers, checkpointing.size_offsets = [], []
    checkpointing._cpu_offload_engine = None


def model_with(case):
    make = memory.__dict__["_model_of"]

    def made(_, meter):
        model = make(case, meter)
        for layer in memory.layers_of(model):
            layer._gradient_checkpointing_func = checkpointing.checkpoint
        return model
    return made


def run_graph(block):
    FakeTensor.numpy = lambda _: ONE["shape"]
    configure(block)
    accelerator(True)
    op_graph_files.checkpoint = lambda function, *arguments, **_: checkpointing.checkpoint(function, *arguments)
    return op_graph_files.measure(GRAPH)["log"]


def run(case):
    # A fake tensor has no data: what a shape's tensor holds is the one shape that there is.
    width = case["config"].get("hidden_size", case["config"].get("n_embd"))
    FakeTensor.numpy = lambda _: [case["training"]["micro_batch"], case["training"]["seq"], width]
    configure(case["block"], case["training"].get("tp", 1))
    accelerator(case["streams"])
    memory.model_of = model_with(case)
    one = memory.Run(case, False)
    return list(one.meter.log), one.steps  # What the model frees when it goes is none of it.


def main():
    memory._model_of = memory.model_of
    memory.patch()
    result = {"versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "deepspeed")},
              "cases": {}, "fails": {}}
    for name in sys.argv[2:] or CASES:
        log, steps = run(CASES[name])
        print(name, len(log), steps[1]["peak"], flush=True)
        result["cases"][name] = {key: CASES[name][key] for key in ("config", "training", "block", "streams")}
        result["cases"][name]["training"] = {"dsplan": 1, "kind": "training", "source": "tools/oracles",
                                             **CASES[name]["training"]}
        result["cases"][name]["log"] = " | ".join(log)
    result["graph"] = GRAPH
    result["graphs"] = {name: {"block": block, "log": " | ".join(run_graph(block))} for name, block in GRAPHS.items()}
    for name in FAILS if not sys.argv[2:] else ():
        try:
            run(FAILS[name])
        except Exception as error:
            result["fails"][name] = {**{key: FAILS[name][key] for key in ("config", "training", "block")},
                                     "error": f"{type(error).__name__}: {error}"}
    with open(sys.argv[1], "w") as file:
        file.write(memory.compact(result) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
