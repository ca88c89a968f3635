#!/usr/bin/env python3
"""What TRL's OffloadActivations does with each tensor that autograd saves, and in which order it brings them back.

  tools/dry/run --world 1 -- python tools/oracles/activation_offloading.py tests/witnesses/activation_offloading.json

The real class around steps of real models, on the dry device (docs/dry-device.md): two layers of each. Of the second
step there is a line: `sent` has the bytes of each tensor that went to the host; `copied` those that were made contiguous
before; `kept` says how many stayed as they were; `back` has the bytes of each that came back by a copy, in order, with
`again` in the place of one that had not left yet.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dry"))

from matrix import model_config, runner, tables, worker  # noqa: E402

MODELS = {"llama-3.2-1b": "num_hidden_layers", "qwen2-0.5b": "num_hidden_layers", "gpt2": "n_layer"}
WAYS = ("plain", "again", "autocast", "autocast-again", "lora", "trl-again", "trl-lora")


def watched(path):
    """In place of worker.offloading: the class with eyes."""

    def offloading(model, how):
        import torch
        from trl.models.activation_offloading import get_act_offloading_ctx_manager

        context = get_act_offloading_ctx_manager(model, use_streams=how == "streams")
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


def main():
    jobs = []
    for job in tables.jobs():
        way = next((w for w in WAYS for m in MODELS if job["name"].endswith(f"-{w}-streams") and job["model"] == m), None)
        short = way and job["name"] == "-".join(
            ["activations", job["model"], f"s{job['training']['seq']}", f"b{job['training']['micro_batch']}", way, "streams"]
        )
        if job["stratum"] == "activations" and short and not (way.startswith("trl") and job["model"] == "gpt2"):
            made = dict(job, change={MODELS[job["model"]]: 2})
            jobs.append(dict(made, config=model_config.config(made)))
    runner.imports(jobs)
    path = f"/tmp/offloading.{__import__('os').getpid()}.json"
    worker.offloading = watched(path)
    found = {}
    for job in jobs:
        answer = runner.measure(job, 300)
        if "failed" in answer:
            raise SystemExit(f"{job['name']}: {answer['failed']}")
        found[job["name"]] = {"config": job["config"], "training": job["training"], **json.load(open(path))}
    versions = {**runner.versions(), "trl": __import__("importlib.metadata").metadata.version("trl")}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
    pathlib.Path(sys.argv[1]).write_text(f'{{"versions": {json.dumps(versions)},\n"jobs": {{\n{lines}\n}}}}\n')


main()
