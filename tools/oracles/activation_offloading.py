#!/usr/bin/env python3
"""What TRL's OffloadActivations does with each tensor that autograd saves, and in which order it brings them back.

  tools/dry/run --world 1 -- python tools/oracles/activation_offloading.py tests/witnesses/activation_offloading.json

The real class around steps of real models, on the dry device (docs/dry-device.md): two layers of each. Of the second
step there is a line: `sent` has the bytes of each tensor that went to the host; `copied` those that were made contiguous
before; `kept` says how many stayed as they were; `back` has the bytes of each that came back by a copy, in order, with
`again` in the place of one that had not left yet.
"""

import json
import os
import pathlib
import sys
import tempfile
from importlib import metadata

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dry"))

from matrix import model_config, runner, tables, worker  # noqa: E402

MODELS = {"llama-3.2-1b": ("num_hidden_layers", 1024, 2), "qwen2-0.5b": ("num_hidden_layers", 512, 3), "gpt2": ("n_layer", 1024, 2)}


def watched(path):
    """In place of worker.offloading: the class with eyes."""

    def offloading(model, how):
        import torch
        from trl.models.activation_offloading import get_act_offloading_ctx_manager

        context = get_act_offloading_ctx_manager(model, use_streams=how == "streams")
        context.virtual_memory_safe_pct = 100  # It would warn of this machine's memory.
        pack, unpack, enter = context.pack_hook, context.unpack_hook, context.__enter__
        seen = {}

        def begins():
            seen.update(sent=[], copied=[], kept=0, back=[])
            return enter()

        def packed(tensor):
            known = pack(tensor)
            if not context.tracker[known][1]:
                seen["kept"] += 1
                return known
            seen["sent"].append(tensor.nbytes)
            if not tensor.is_contiguous() or tensor.storage_offset() != 0:
                seen["copied"].append(tensor.nbytes)
            return known

        def unpacked(known):
            modified, stays = context.tracker[known][1], how == "streams" and known in context.fwd_stash
            tensor = unpack(known)
            if modified:
                seen["back"].append("again" if stays else tensor.nbytes)
            json.dump(seen, open(path, "w"))
            return tensor

        torch.autograd.graph.saved_tensors_hooks.__init__(context, packed, unpacked)
        type(context).__enter__ = lambda self: self.begins()
        context.begins = begins
        return context

    return offloading


def jobs_of():
    """Of two layers each; those that are no checkpoints show most of what the class does."""
    mixed = {"dtype": "fp32", "autocast": "bf16"}
    again = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    adapters = {"r": 16, "targets": tables.ALL_LINEARS}
    ways = {"plain": {}, "again": again, "autocast": mixed, "autocast-again": {**mixed, **again}, "lora": {"lora": adapters},
            "trl-again": {"loss": "trl", **again}, "trl-lora": {"loss": "trl", "lora": adapters}}
    for way, more in ways.items():
        for model, (layers, seq, batch) in MODELS.items():
            if model == "gpt2" and "loss" in more:
                continue
            if model == "gpt2" and "lora" in more:
                more = {**more, "lora": {"r": 16, "targets": ["c_attn", "c_proj", "c_fc"]}}
            made = tables.job("activations", model, seq, batch, name=f"{way}-streams", change={layers: 2},
                              activation_offloading="streams", **more)
            yield dict(made, config=model_config.config(made))


def main():
    jobs = [*jobs_of()]
    runner.imports(jobs)
    path = os.path.join(tempfile.gettempdir(), f"offloading.{os.getpid()}.json")
    worker.offloading = watched(path)
    found = {}
    for job in jobs:
        answer = runner.measure(job, 300)
        if "failed" in answer:
            raise SystemExit(f"{job['name']}: {answer['failed']}")
        found[job["name"]] = {"config": job["config"], "training": job["training"], **json.load(open(path))}
    versions = {**runner.versions(), "trl": metadata.version("trl")}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    pathlib.Path(sys.argv[1]).write_text(f'{{"versions": {json.dumps(versions)},\n"jobs": {{\n{lines}\n}}}}\n')


main()
