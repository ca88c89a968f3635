"""Outside oracle for dsplan's fully_shard: real PyTorch, its CUDA build on the dry device, one rank of a world each.

    tools/dry/run --world 1 -- python tools/oracles/fsdp_witness.py OUT.json [--match TEXT]

What a rank's allocator did from the model's first shard to the end of the second step, in order: (size * 8 + stream),
negative where it is freed. Streams are numbered as they first allocate; what torch's FakeTensor asks for
is left out, and so are later batches, and of a model that is made on the device what its rotary tables are computed by.
tests/fsdp_witness_test.cpp reads the file.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "dry"))

from matrix import runner

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1003, "hidden_size": 96,
         "intermediate_size": 200, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
         "hidden_act": "silu", "max_position_embeddings": 256, "tie_word_embeddings": False}
TIED = {**LLAMA, "tie_word_embeddings": True}
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 509, "n_positions": 128, "n_embd": 72,
        "n_layer": 2, "n_head": 3}
QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 811, "hidden_size": 80,
        "intermediate_size": 144, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
        "hidden_act": "silu", "max_position_embeddings": 256, "tie_word_embeddings": True}
MIXED = {"param_dtype": "bf16", "reduce_dtype": "fp32"}


def cases():
    """(name, config, world, rank, fsdp, more of the training file)"""
    for name, config in (("llama", LLAMA), ("tied", TIED), ("gpt2", GPT2), ("qwen2", QWEN)):
        for world, rank in ((2, 0), (3, 2), (4, 1), (8, 7)):
            yield f"{name}-w{world}-r{rank}", config, world, rank, {}, {}
            yield f"{name}-mixed-w{world}-r{rank}", config, world, rank, MIXED, {}
    ways = {
        "kept": ({"reshard_after_forward": False}, {}),
        "root-resharded": ({"reshard_after_forward": True, "reshard_root": True, **MIXED}, {}),
        "to-two": ({"reshard_after_forward": 2}, {}),
        "to-two-mixed": ({"reshard_after_forward": 2, **MIXED}, {}),
        "root": ({"wrap": "root", **MIXED}, {}),
        "ends": ({"wrap": "ends"}, {}),
        "ends-mixed": ({"wrap": "ends", **MIXED}, {}),
        "accumulated": ({}, {"grad_accum": 3}),
        "accumulated-mixed": (MIXED, {"grad_accum": 3}),
        "accumulated-every": ({"gradient_sync": "every", **MIXED}, {"grad_accum": 2}),
        "full": (MIXED, {"checkpoint": "full"}),
        "foreach": (MIXED, {"optimizer": {"name": "adamw", "implementation": "foreach"}}),
        "loop": (MIXED, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "sgd": (MIXED, {"optimizer": {"name": "sgd", "momentum": 0.9, "implementation": "foreach"}}),
        "replicas": ({"replicate": 2}, {}),
        "replicas-mixed": ({"replicate": 2, **MIXED}, {}),
        "host-mixed": (MIXED, {"model_init": "host"}),
        "bf16-reduce": ({"param_dtype": "bf16"}, {}),
        "lora": ({}, {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}),
        "lora-mixed": (MIXED, {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}),
        "clip": ({}, {"max_grad_norm": 1.0}),
        "clip-mixed": (MIXED, {"max_grad_norm": 1.0}),
        "frozen": (MIXED, {"freeze": ["*mlp*", "*embed*"]}),
        "fp32-reduce": ({"reduce_dtype": "fp32"}, {}),
        "as-accelerate": ({"wrap": "layers+ends", "param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"},
                          {"model_init": "host"}),
        "sent-by-accelerate": ({"wrap": "layers+ends"}, {"model_init": "rank0"}),
        "sent-by-accelerate-mixed": ({"wrap": "layers+ends", "param_dtype": "bf16", "reduce_dtype": "bf16",
                                      "output_dtype": "bf16"}, {"model_init": "rank0"}),
        "output-dtype": ({**MIXED, "output_dtype": "bf16"}, {}),
        "device": ({}, {"model_init": "device"}),
        "device-mixed": (MIXED, {"model_init": "device"}),
    }
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("tied", TIED, 4, 0)):
        for way, (fsdp, more) in ways.items():
            yield f"{name}-{way}-w{world}-r{rank}", config, world, rank, fsdp, more
    sent = {"wrap": "layers+ends"}, {"model_init": "rank0"}
    for name, config, world, rank in (("llama", LLAMA, 5, 0), ("tied", TIED, 3, 1), ("gpt2", GPT2, 24, 23), ("gpt2", GPT2, 24, 0)):
        yield f"{name}-sent-by-accelerate-w{world}-r{rank}", config, world, rank, *sent
    # Ranks that have no row of most parameters.
    for way, (fsdp, more) in {"clip": ({}, {"max_grad_norm": 1.0}), "clip-mixed": (MIXED, {"max_grad_norm": 1.0})}.items():
        yield f"qwen2-{way}-w24-r23", QWEN, 24, 23, fsdp, more
    yield "qwen2-w24-r23", QWEN, 24, 23, {}, {}
    yield from on_host()
    yield from asked_for()
    yield from reentrant()
    yield from adapters()
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("gpt2", GPT2, 6, 0)):
        yield f"{name}-sent-to-replicas-w{world}-r{rank}", config, world, rank, {**sent[0], "replicate": 2}, sent[1]


def asked_for():
    """Explicit prefetches, ignored parameters, checkpoints by operator, DoRA."""
    q_v = {"r": 4, "targets": ["q_proj", "v_proj"]}
    by_operator = {"checkpoint": "keep:linear/2+scaled_dot_product_attention"}
    ways = {
        "forward-1": ({"forward_prefetch": "1", **MIXED}, {}),
        "forward-2": ({"forward_prefetch": "2"}, {}),
        "backward-2": ({"backward_prefetch": "2", **MIXED}, {}),
        "both-1": ({"forward_prefetch": "1", "backward_prefetch": "1", "wrap": "ends", **MIXED}, {}),
        "both-2-accumulated": ({"forward_prefetch": "2", "backward_prefetch": "2"}, {"grad_accum": 2}),
        "both-1-kept": ({"forward_prefetch": "1", "backward_prefetch": "1", "reshard_after_forward": False}, {}),
        "both-1-to-two": ({"forward_prefetch": "1", "backward_prefetch": "1", "reshard_after_forward": 2}, {}),
        "both-1-offload": ({"forward_prefetch": "1", "backward_prefetch": "1", "cpu_offload": True, **MIXED}, {}),
        "both-1-full": ({"forward_prefetch": "1", "backward_prefetch": "1", **MIXED}, {"checkpoint": "full"}),
        "both-1-replicas": ({"forward_prefetch": "1", "backward_prefetch": "1", "replicate": 2}, {}),
        "ignored": ({"ignored": "*embed*"}, {"freeze": ["*embed*"]}),
        "ignored-mlp": ({"ignored": "*mlp*"}, {"freeze": ["*mlp*"]}),
        "ignored-device": ({"ignored": "*mlp*+*norm*"}, {"freeze": ["*mlp*", "*norm*"], "model_init": "device"}),
        "ignored-host": ({"ignored": "*self_attn*"}, {"freeze": ["*self_attn*"], "model_init": "host"}),
        "ignored-offload": ({"ignored": "*mlp*", "cpu_offload": True}, {"freeze": ["*mlp*"], "model_init": "device"}),
        "by-operator": (MIXED, by_operator),
        "by-operator-ends": ({"wrap": "ends"}, {**by_operator, "preserve_rng_state": False}),
        "dora": ({}, {"lora": {**q_v, "dora": True}}),
        "tail-resharded": ({"wrap": "ends", "reshard_tail": True, **MIXED}, {}),
        "tail-resharded-every": ({"wrap": "ends", "reshard_tail": True, "gradient_sync": "every"},
                                 {"grad_accum": 2, "checkpoint": "full", "max_grad_norm": 1.0}),
        "last-kept": ({"reshard_last": False, "reshard_root": True, **MIXED}, {}),
        "last-kept-every": ({"wrap": "ends", "reshard_last": False, "gradient_sync": "every"},
                            {"grad_accum": 2, "checkpoint": "full"}),
        "last-kept-ahead": ({"reshard_last": False, "forward_prefetch": "1", "backward_prefetch": "2"}, {}),
        "tail-alone-resharded": ({"wrap": "layers+ends", "reshard_tail": True, "reshard_after_forward": False}, {}),
    }
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("tied", TIED, 2, 0)):
        for way, (fsdp, more) in ways.items():
            unties = config is TIED and way == "ignored"  # to_empty makes a weight for each name.
            if fsdp.get("replicate") != world and not unties:
                yield f"{name}-{way}-w{world}-r{rank}", config, world, rank, fsdp, more


def reentrant():
    """Checkpoints whose recomputation runs the groups' forward hooks again."""
    q_v = {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}
    ahead = {"forward_prefetch": "1", "backward_prefetch": "1"}
    ways = {
        "": ({}, {}),
        "mixed": (MIXED, {}),
        "kept": ({"reshard_after_forward": False, **MIXED}, {}),
        "to-two": ({"reshard_after_forward": 2}, {}),
        "root-resharded": ({"reshard_after_forward": True, "reshard_root": True, **MIXED}, {}),
        "root": ({"wrap": "root", **MIXED}, {}),
        "ends": ({"wrap": "ends", **MIXED}, {}),
        "last-kept": ({"reshard_last": False, "reshard_root": True, **MIXED}, {}),
        "accumulated": ({}, {"grad_accum": 3}),
        "accumulated-mixed": (MIXED, {"grad_accum": 2}),
        "accumulated-every": ({"gradient_sync": "every", **MIXED}, {"grad_accum": 2, "max_grad_norm": 1.0}),
        "forward-1": ({"forward_prefetch": "1", **MIXED}, {}),
        "forward-2": ({"forward_prefetch": "2"}, {}),
        "backward-2": ({"backward_prefetch": "2", **MIXED}, {}),
        "both-1-ends": ({**ahead, "wrap": "ends", **MIXED}, {}),
        "both-1-accumulated": (ahead, {"grad_accum": 2}),
        "both-1-kept": ({**ahead, "reshard_after_forward": False}, {}),
        "both-1-to-two": ({**ahead, "reshard_after_forward": 2}, {}),
        "both-1-offload": ({**ahead, "cpu_offload": True, **MIXED}, {}),
        "replicas": ({"replicate": 2, **MIXED}, {}),
        "offload": ({"cpu_offload": True, **MIXED}, {}),
        "as-accelerate": ({"wrap": "layers+ends", "param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"},
                          {"model_init": "host"}),
        "lora": ({}, q_v),
        "lora-mixed": (MIXED, q_v),
        "lora-accumulated": (MIXED, {**q_v, "grad_accum": 2}),
    }
    checkpointed = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("tied", TIED, 6, 0), ("gpt2", GPT2, 8, 7), ("qwen2", QWEN, 24, 5)):
        for way, (fsdp, more) in ways.items():
            if "lora" in more and config is GPT2:
                continue
            yield "-".join(filter(None, (name, "reentrant", way, f"w{world}-r{rank}"))), config, world, rank, fsdp, {**checkpointed, **more}


def adapters():
    """Factors that have groups of their own, as axolotl cuts them."""
    every = {"lora": {"r": 6, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
    some = {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}
    half = {"param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"}  # Over fp32.
    full, again = {"checkpoint": "full"}, {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    ways = {
        "": ({}, every),
        "some": ({}, some),
        "embedded": ({}, {**some, "input_require_grads": True}),
        "mixed": (half, every),
        "mixed-some": (half, {**some, "input_require_grads": True}),
        "mixed-fp32": (MIXED, every),
        "kept": ({"reshard_after_forward": False, **half}, every),
        "to-two": ({"reshard_after_forward": 2}, some),
        "accumulated": (half, {**every, "grad_accum": 3}),
        "accumulated-every": ({"gradient_sync": "every", **half}, {**some, "grad_accum": 2}),
        "full": (half, {**every, **full}),
        "full-some": ({}, {**some, **full}),
        "full-accumulated": (half, {**every, **full, "grad_accum": 2, "max_grad_norm": 1.0}),
        "reentrant": (half, {**every, **again}),
        "reentrant-some": ({}, {**some, **again}),
        "dropout": (half, {"lora": {**every["lora"], "dropout": 0.1}}),
        "dropout-full": (half, {"lora": {**every["lora"], "dropout": 0.1}, **full}),
        "offload": ({"cpu_offload": True, **half}, every),
        "host": (half, {**some, "model_init": "host"}),
        "replicas": ({"replicate": 2, **half}, every),
    }
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("tied", TIED, 2, 0)):
        for way, (fsdp, more) in ways.items():
            if fsdp.get("replicate") != world:
                yield ("-".join(filter(None, (name, "adapters", way, f"w{world}-r{rank}"))), config, world, rank,
                       {"wrap": "adapters+layers", **fsdp}, more)


def on_host():
    """CPUOffloadPolicy: what is left on the device."""
    ways = {
        "offload": ({}, {}),
        "offload-mixed": (MIXED, {}),
        "offload-kept": ({"reshard_after_forward": False, **MIXED}, {}),
        "offload-accumulated": (MIXED, {"grad_accum": 3}),
        "offload-accumulated-every": ({"gradient_sync": "every", **MIXED}, {"grad_accum": 2}),
        "offload-replicas": ({"replicate": 2, **MIXED}, {}),
        "offload-host": (MIXED, {"model_init": "host"}),
        "offload-device": ({}, {"model_init": "device"}),
        "offload-lora": (MIXED, {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}),
    }
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("tied", TIED, 6, 0)):
        for way, (fsdp, more) in ways.items():
            yield f"{name}-{way}-w{world}-r{rank}", config, world, rank, {"cpu_offload": True, **fsdp}, more
    yield from sent_to_hosts()
    yield "gpt2-offload-mixed-w3-r2", GPT2, 3, 2, {"cpu_offload": True, **MIXED}, {}


def sent_to_hosts():
    """accelerate's cpu_ram_efficient_loading beside offload_params; clipping of gradients on the host."""
    sent = {"wrap": "layers+ends", "cpu_offload": True}
    cases = ("llama", LLAMA, 4, 3), ("tied", TIED, 6, 0), ("gpt2", GPT2, 24, 23), ("qwen2", QWEN, 24, 0)
    for name, config, world, rank in cases:
        where = f"w{world}-r{rank}"
        yield f"{name}-offload-sent-{where}", config, world, rank, sent, {"model_init": "rank0"}
        yield f"{name}-offload-sent-mixed-{where}", config, world, rank, {**sent, **MIXED}, {"model_init": "rank0"}
        replicas = {**sent, "replicate": 2}
        yield f"{name}-offload-sent-to-replicas-{where}", config, world, rank, replicas, {"model_init": "rank0"}
        clipped = {"cpu_offload": True}
        yield f"{name}-offload-clip-{where}", config, world, rank, clipped, {"max_grad_norm": 1.0}
        yield f"{name}-offload-clip-mixed-{where}", config, world, rank, {**clipped, **MIXED}, {"max_grad_norm": 1.0}


def job_of(name, config, world, rank, fsdp, more):
    training = {"seq": 40, "micro_batch": 2, "attention": "flash", "runtime": "fsdp2", "fsdp": fsdp, **more}
    training["dtype"] = "fp32" if "param_dtype" in fsdp else "bf16"
    return {"name": name, "stratum": "witness", "config": config, "device": "h100-sxm", "world": world, "rank": rank,
            "training": training}


def passing_tables(trace):
    """Indices of allocations in which a model's tables are computed, and which are gone when it is cut."""
    live, found = {}, set()
    for at, (action, size, stream, address, frames) in enumerate(trace):
        if action == "alloc":
            if any("_fsdp_param.py" in frame or "_flat_param.py" in frame for frame in frames):
                break
            live[address] = at if any("rope" in frame for frame in frames) else None
        elif action == "free_completed" and live.get(address) is not None:
            found.add(live.pop(address))
    return found


def events_of(path):
    """(size * 8 + stream), negative where it is freed."""
    streams, skipped, events = [], set(), []
    trace = json.load(open(path))
    passing = passing_tables(trace)
    for at, (action, size, stream, address, frames) in enumerate(trace):
        if action == "alloc":
            passes = any("fake_tensor" in frame or frame.endswith((":next_batch", ":count_nodes")) for frame in frames)
            if at in passing or passes:
                skipped.add(address)
                continue
            if any(frame.endswith(":batch") for frame in frames):  # Kept for good.
                skipped.add(address)
            if stream not in streams:
                streams.append(stream)
            events.append(size * 8 + streams.index(stream))
        elif action == "free_requested":  # What another stream has used is free when the next one asks.
            if address in skipped:
                skipped.discard(address)
            else:
                events.append(-(size * 8 + streams.index(stream)))
    return events


def given_by(about):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--match", default="")
    return parser.parse_args()


def witnessed(jobs):
    """What each job's allocator did; one that failed is told and left out."""
    runner.imports(jobs)
    for job in jobs:
        path = os.path.join(tempfile.gettempdir(), f"fsdp-witness.{os.getpid()}.json")
        answer = runner.measure(job, 120, events=path)
        if "failed" in answer:
            print(job["name"], answer["failed"], answer.get("at"), file=sys.stderr)
            continue
        events = events_of(path)
        os.unlink(path)
        print(job["name"], len(events), file=sys.stderr)
        yield job, events


def write(path, runs):
    lines = ",\n".join(json.dumps(run, separators=(",", ":")) for run in runs)
    pathlib.Path(path).write_text(f'{{"versions": {json.dumps(runner.versions())},\n"runs": [\n{lines}\n]}}\n')


def main():
    given = given_by(__doc__)
    jobs = [job_of(*case) for case in cases() if re.search(given.match, case[0])]
    kept = ("name", "config", "world", "rank", "training")
    write(given.out, [{key: job[key] for key in kept} | {"events": events} for job, events in witnessed(jobs)])


if __name__ == "__main__":
    main()
