"""Jobs that nobody chose: a seed gives the same jobs for ever. What they show is what a stranger's job would show.

A stratum is one seed. Its first measurement is compared before anything is mended, and the page has that figure beside
today's: a seed whose jobs have been looked at is no longer held out, and the next question takes a new one.
"""

import random

from . import model_config

# Decoders: those that the hand-made tables have, and those that they lack.
MODELS = """gpt2 gpt2-large distilgpt2 llama-3-8b llama-3.2-1b llama-2-7b tinyllama-1.1b smollm2-360m yi-6b mistral-7b
mistral-nemo-12b qwen1.5-1.8b qwen2-1.5b qwen2.5-3b qwen3-1.7b qwen3-8b gemma-2b gemma-2-9b gemma-3-1b gemma-3-4b-text phi-1.5
phi-3-mini phi-4-mini opt-1.3b opt-350m pythia-410m pythia-2.8b falcon-7b falcon-rw-1b bloom-560m bloom-3b command-r7b olmo-2-1b
granite-3.1-2b glm-4-9b ernie-4.5-0.3b exaone-4.0-1.2b smollm3-3b stablelm-2-1.6b starcoder2-3b mixtral-8x7b qwen3-30b-a3b
qwen1.5-moe-a2.7b granite-3.1-1b-a400m deepseek-v2-lite gpt-oss-20b""".split()
PROJECTIONS = {"gpt2": ["c_attn", "c_proj"], "gpt_neox": ["query_key_value", "dense"]}
DEVICES = ["h100-sxm"] * 5 + ["a100-sxm-80", "a100-sxm-40", "h200-sxm", "rtx4090", "l40s", "b200-sxm"]


class Draw:
    """Of Python's generator only random() is promised to stay what it is."""

    def __init__(self, seed):
        self.generator = random.Random(seed)

    def below(self, count):
        return int(self.generator.random() * count)

    def one(self, choices):
        return choices[self.below(len(choices))]

    def chance(self, share):
        return self.generator.random() < share


def shape(draw, config):
    """A length and a batch of at most 8,192 tokens, half of them no multiple of anything."""
    most = min(4096, config.get("n_positions") or 4096, config.get("max_position_embeddings") or 4096)
    seq = 64 + draw.below(most - 63)
    if draw.chance(0.5):
        seq = seq // 128 * 128 or 128
    return seq, 1 + draw.below(max(1, min(4, 8192 // seq)))


def fewer_layers(draw, config):
    """Two to eight of its layers."""
    most = config[model_config.layers_key(config)]
    return model_config.with_layers(config, min(most, 2 + draw.below(7)))


def adapters(draw, config):
    names = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if config["model_type"] in PROJECTIONS:
        names = PROJECTIONS[config["model_type"]]
    elif config["model_type"] in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2") and draw.chance(0.5):
        names = [*names, "gate_proj", "up_proj", "down_proj"]
    elif config["model_type"] in ("falcon", "bloom", "phi3", "phi", "opt", "deepseek_v2"):
        return None
    lora = {"r": draw.one([4, 8, 16, 48]), "targets": names}
    if draw.chance(0.3):
        lora["dropout"] = 0.1
    if draw.chance(0.4):
        lora["dtype"] = "bf16"  # peft leaves adapters in the weights' own dtype, and has no way to say another.
    return lora


def precision(draw):
    return draw.one([{}, {}, {}, {"dtype": "fp32", "autocast": "bf16"}, {"dtype": "fp16"}, {"dtype": "fp32"}])


def update(draw):
    return implemented(draw, draw.one(["adamw", "adamw", "adamw", "adam", "sgd", "adagrad", "rmsprop"]))


def implemented(draw, name):
    """An optimizer of PyTorch's, one of its ways."""
    how = draw.one(["foreach", "for-loop"] if name in ("adagrad", "rmsprop") else ["fused", "foreach", "for-loop"])
    return {"optimizer": {"name": name, "implementation": how, **({"momentum": 0.9} if name == "sgd" else {})}}


def recomputed(draw):
    return draw.one([{}, {}, {"checkpoint": "full"}, {"checkpoint": "full", "checkpoint_impl": "reentrant"}])


def of_pytorch(draw, world):
    more = {**precision(draw), **update(draw)}
    if draw.chance(0.25):
        more["grad_accum"] = 2 + draw.below(3)
    if draw.chance(0.3):
        more["max_grad_norm"] = 1.0
    if draw.chance(0.2):
        more["loss"] = "native"
    if draw.chance(0.3):
        more["model_init"] = "host"
    if draw.chance(0.2):
        more["allocator_conf"] = draw.one(["expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8"])
    if world > 1:
        if draw.chance(0.3):
            more["ddp"] = draw.one([{"gradient_as_bucket_view": True}, {"bucket_cap_mb": 50}, {"find_unused_parameters": True}])
        more.pop("checkpoint_impl", None)
    return more


def of_fsdp(draw, world):
    policy = draw.one([{}, {"param_dtype": "bf16", "reduce_dtype": "fp32"}, {"param_dtype": "bf16"}])
    if draw.chance(0.3):
        policy = {**policy, "reshard_after_forward": draw.chance(0.5)}
    if draw.chance(0.2) and world % 2 == 0 and world > 2:
        policy = {**policy, "replicate": 2}
    if draw.chance(0.15):
        policy = {**policy, "cpu_offload": True}
    kind = "hsdp" if "replicate" in policy else "fsdp2"
    more = {"runtime": kind, "fsdp": policy, "dtype": "fp32" if "param_dtype" in policy else "bf16"}
    how = draw.one(["foreach", "fused", "for-loop"]) if not policy.get("cpu_offload") else "for-loop"
    more["optimizer"] = {"name": "adamw", "implementation": how}
    if draw.chance(0.3):
        more["max_grad_norm"] = 1.0
    if draw.chance(0.2):
        more["grad_accum"] = 2
    return more


def of_deepspeed(draw, world):
    stage = draw.one([0, 1, 2, 2, 3, 3, 3])
    zero = {"stage": stage}
    if stage and draw.chance(0.4):
        zero["overlap_comm"] = draw.chance(0.5)
    if stage and draw.chance(0.4):
        zero["reduce_bucket_size"] = 1_000_000 + draw.below(400_000_000)
    if stage == 3 and draw.chance(0.4):
        zero["stage3_param_persistence_threshold"] = draw.below(1_000_000)
    if stage == 3 and draw.chance(0.3):
        zero["stage3_prefetch_bucket_size"] = draw.below(200_000_000)
    if stage and draw.chance(0.2):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": draw.chance(0.5)}
    dtype = draw.one(["bf16", "bf16", "bf16", "fp16", "fp32"])
    made = {"zero_optimization": zero, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
    if draw.chance(0.3) and "offload_optimizer" not in zero:
        made["optimizer"]["params"]["torch_adam"] = True
    if dtype != "fp32":
        made[dtype] = {"enabled": True, **({"initial_scale_power": 8} if dtype == "fp16" else {})}
    if draw.chance(0.3):
        made["gradient_accumulation_steps"] = 2 + draw.below(3)
    if draw.chance(0.4):
        made["gradient_clipping"] = 1.0
    return {"deepspeed": made}


def weights_of(more):
    made = more.get("deepspeed")
    if made is None:
        return more.get("dtype", "bf16")
    return next((dtype for dtype in ("bf16", "fp16") if dtype in made), "fp32")


def one(draw, number):
    model = draw.one(MODELS)
    config = model_config.config({"model": model})
    change = fewer_layers(draw, config)
    seq, batch = shape(draw, config)
    kind = draw.one(["pytorch", "pytorch", "pytorch", "ddp", "fsdp", "fsdp", "deepspeed", "deepspeed", "deepspeed"])
    world = 1 if kind == "pytorch" else draw.one([2, 3, 4, 6, 8, 16, 64])
    more = {"attention": None, **recomputed(draw)}
    if kind != "deepspeed" and draw.chance(0.1):
        more["attention"] = "eager"
    more.update({"fsdp": of_fsdp, "deepspeed": of_deepspeed}.get(kind, of_pytorch)(draw, world))
    if draw.chance(0.25) and (lora := adapters(draw, config)):
        if weights_of(more) != "bf16":
            lora.pop("dtype", None)
        more["lora"] = lora
    told = {"world": world, "rank": draw.below(world)} if kind != "pytorch" else {}
    return (model, seq, batch), {**more, **told, "change": change, "device": draw.one(DEVICES), "name": f"{number:02d}-{kind}"}


def jobs(make, stratum, seed, count):
    """`make`: tables.job."""
    draw = Draw(seed)
    for number in range(count):
        what, more = one(draw, number)
        yield make(stratum, *what, **more)


# Of fully_shard and DistributedDataParallel alone, with what they can be given.
ENDS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "granite", "olmo2")


def given_shards(draw, world, family):
    policy = draw.one([{}, {"param_dtype": "bf16", "reduce_dtype": "fp32"}, {"param_dtype": "bf16"}])
    wrap = draw.one(["layers", "layers", "root", *(["ends", "layers+ends"] if family in ENDS else [])])
    if wrap != "layers":
        policy["wrap"] = wrap
    if "ends" in wrap and draw.chance(0.3):
        policy["reshard_tail"] = True
    if draw.chance(0.5):
        policy["reshard_after_forward"] = draw.one([True, False, world // 2, world // 4])
    if draw.chance(0.3):
        policy["reshard_root"] = True
    if wrap != "root" and draw.chance(0.2):
        policy["reshard_last"] = False
    if draw.chance(0.3):
        policy["replicate"] = draw.one([2, world // 2, world // 8 or 2])
        policy.pop("reshard_after_forward", None)
    if wrap == "layers" and draw.chance(0.3):
        policy["forward_prefetch"] = str(1 + draw.below(2))
    if wrap == "layers" and draw.chance(0.3):
        policy["backward_prefetch"] = str(1 + draw.below(3))
    if draw.chance(0.2):
        policy["cpu_offload"] = True
    if draw.chance(0.3):
        policy["gradient_sync"] = "every"
    kept = "fp32" if "param_dtype" in policy else "bf16"
    init = draw.one(["meta", "meta", "device", "host"])
    how = "for-loop" if policy.get("cpu_offload") else draw.one(["foreach", "fused", "for-loop"])
    name = draw.one(["adamw", "adamw", "sgd"])
    return {
        "runtime": "hsdp" if "replicate" in policy else "fsdp2",
        "fsdp": policy,
        "dtype": kept,
        "model_init": init,
        "optimizer": {"name": name, "implementation": how, **({"momentum": 0.9} if name == "sgd" else {})},
        **({"checkpoint": "full"} if draw.chance(0.4) else {}),
    }


def given_buckets(draw):
    ddp, beside = {}, {}
    if draw.chance(0.5):
        ddp["gradient_as_bucket_view"] = True
    if draw.chance(0.4):
        ddp["bucket_cap_mb"] = 10 + draw.below(300)
    if draw.chance(0.3):
        ddp["broadcast_buffers"] = False
    way = draw.one(["", "", "static_graph", "find_unused_parameters", "zero_redundancy"])
    if way:
        ddp[way] = True
    static = way == "static_graph"
    if static:
        beside["steps"] = 3
    return {**precision(draw), **update(draw), "ddp": ddp, **beside, **({"checkpoint": "full"} if draw.chance(0.3) else {})}, static


def one_shared(draw, number):
    model = draw.one(MODELS)
    config = model_config.config({"model": model})
    change = fewer_layers(draw, config)
    seq, batch = shape(draw, config)
    world = draw.one([8, 16, 24, 32, 64, 256])
    static = False
    if draw.chance(0.7):
        kind, more = "fsdp", given_shards(draw, world, config["model_type"])
    else:
        kind = "ddp"
        more, static = given_buckets(draw)
    if draw.chance(0.4):
        more["max_grad_norm"] = 1.0
    if not static and draw.chance(0.3):
        more["grad_accum"] = 2 + draw.below(2)
    if draw.chance(0.25) and (lora := adapters(draw, config)):
        if more.get("dtype", "bf16") != "bf16":
            lora.pop("dtype", None)
        more["lora"] = lora
    told = {"world": world, "rank": draw.one([0, draw.below(world), world - 1])}
    name = f"{number:02d}-{kind}"
    return (model, seq, batch), {"attention": None, **more, **told, "change": change, "device": draw.one(DEVICES), "name": name}


def shared_jobs(make, stratum, seed, count):
    draw = Draw(seed)
    for number in range(count):
        what, more = one_shared(draw, number)
        yield make(stratum, *what, **more)


# Whole models, and families that have no graph of every size among the tables: what somebody would try first.
WIDER = """llama-3.1-8b llama-3.2-3b llama-2-13b yi-9b solar-10.7b mistral-7b-v0.3 ministral-8b mistral-small-24b qwen1.5-4b qwen2-7b
qwen2.5-0.5b qwen2.5-14b qwen3-4b qwen3-14b gemma-7b gemma-2-27b gemma-3-270m gemma-3-12b-text gpt2-xl gpt2-medium opt-2.7b opt-6.7b
pythia-1.4b pythia-12b bloom-1b7 bloom-7b1 falcon-40b phi-2 phi-3-medium phi-4 command-r olmo-7b olmo-2-13b olmoe-1b-7b granite-3.3-8b
glm-4-9b-chat helium-1-2b starcoder2-7b stablelm-3b-4e1t minicpm3-4b seed-oss-36b mixtral-8x22b deepseek-v2 moonlight-16b-a3b
granite-3.1-3b-a800m qwen2-57b-a14b ernie-4.5-21b-a3b glm-4.5-air afm-4.5b aya-23-8b mamba2-370m granite-4.0-micro""".split()


def one_wider(draw, number):
    """Half of them have all their layers."""
    model = draw.one(WIDER)
    config = model_config.config({"model": model})
    change = {} if draw.chance(0.5) else fewer_layers(draw, config)
    seq, batch = shape(draw, config)
    kind = draw.one(["pytorch", "pytorch", "ddp", "ddp", "fsdp", "deepspeed", "deepspeed", "deepspeed", "deepspeed"])
    world = 1 if kind == "pytorch" else draw.one([2, 4, 5, 8, 12, 32, 128])
    more = {"attention": draw.one([None, None, None, "eager", "mem-efficient", "math", "flash"]), **recomputed(draw)}
    more.update({"fsdp": of_fsdp, "deepspeed": of_deepspeed}.get(kind, of_pytorch)(draw, world))
    if draw.chance(0.35) and (lora := adapters(draw, config)):
        if weights_of(more) != "bf16":
            lora.pop("dtype", None)
        more["lora"] = lora
    told = {"world": world, "rank": draw.below(world)} if kind != "pytorch" else {}
    device = draw.one(["h100-sxm", "a100-sxm-80", "h200-sxm", "rtx4090"])
    return (model, seq, batch), {**more, **told, "change": change, "device": device, "whole": True, "name": f"{number:02d}-{kind}"}


def wider_jobs(make, stratum, seed, count):
    draw = Draw(seed)
    for number in range(count):
        what, more = one_wider(draw, number)
        yield make(stratum, *what, **more)
