"""Jobs that nobody chose, as launchers start them: a seed draws from what they offer, and gives the same jobs for ever."""

from . import model_config
from .chance import DEVICES, MODELS, WIDER, Draw, adapters, fewer_layers, of_deepspeed, of_fsdp, of_pytorch, shape, weights_of

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GATED = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "smollm3", "granite")
LIGER = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "smollm3", "granite")
RECOMPUTED = ({}, {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}, {"checkpoint": "full", "checkpoint_impl": "reentrant"})


def trained_parts(draw):
    return {"r": draw.one([8, 16, 64]), "targets": draw.one([LINEARS, LINEARS, ["q_proj", "v_proj"]])}


def of_accelerate(draw, world, family):
    """`fsdp_version: 1`, as prepare wraps it."""
    policy = {"sync_module_states": "true", "backward_prefetch": draw.one(["none", "pre", "post"])}
    if draw.chance(0.6):
        policy["use_orig_params"] = "true"
    for key, value, share in (
        ("forward_prefetch", "true", 0.2),
        ("limit_all_gathers", "false", 0.2),
        ("reshard_after_forward", False, 0.25),
        ("cpu_offload", True, 0.15),
    ):
        if draw.chance(share):
            policy[key] = value
    more = {
        "runtime": "fsdp1",
        "fsdp": policy,
        "accelerate": {"fsdp_version": 1},
        "mixed_precision": "bf16",
        "dtype": draw.one(["bf16", "fp32"]),
        "optimizer": {"name": "adamw", "implementation": draw.one(["foreach", "fused", "for-loop"])},
        **draw.one(RECOMPUTED),
    }
    if policy.get("cpu_offload"):
        more["optimizer"]["implementation"] = "for-loop"
    if draw.chance(0.5):
        more["max_grad_norm"] = 1.0
    if draw.chance(0.3):
        more["grad_accum"] = 2 + draw.below(2)
    if family in GATED and draw.chance(0.4):
        policy.pop("cpu_offload", None)
        more["lora"] = {**trained_parts(draw), **({"dtype": "bf16"} if more["dtype"] == "bf16" else {})}
        policy["wrap"] = "adapters+layers"
    return more


def of_qlora(draw, world):
    """Packed weights alone, under DDP, DeepSpeed or fully_shard."""
    packing = {"quantization": "int8"} if draw.chance(0.25) else {
        "quantization": "nf4", "double_quant": draw.chance(0.6), "quant_compute_dtype": "bf16"}
    more = {**packing, "dtype": "bf16", "needs": "bitsandbytes", "lora": trained_parts(draw), **RECOMPUTED[1 + draw.below(2)]}
    way = draw.one(["plain", "ddp", "zero"] if packing["quantization"] == "int8" else ["plain", "ddp", "zero", "fsdp"])
    if world == 1:
        way = "plain"
    if way == "fsdp":
        policy = {"param_dtype": "bf16", "reduce_dtype": draw.one(["bf16", "fp32"])}
        return {**more, "runtime": "fsdp2", "fsdp": policy, "dtype": "bf16", "quant_storage": "bf16", "kbit_prepare": False}
    if draw.chance(0.5):
        more["kbit_prepare"] = False
        more["autocast"] = "bf16"
    if way == "zero":
        more.pop("autocast", None)
        zero = {"stage": draw.one([1, 2]), **({"overlap_comm": True} if draw.chance(0.5) else {})}
        made = {"zero_optimization": zero, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}}
        return {**more, "deepspeed": made}
    if draw.chance(0.5):
        more["max_grad_norm"] = 0.3
    if draw.chance(0.4):
        more["grad_accum"] = 2 + draw.below(3)
    return more


def of_cache(draw, world):
    """A plain loop that leaves use_cache as transformers has it."""
    more = of_pytorch(draw, world)
    more.pop("loss", None)
    if "find_unused_parameters" in more.get("ddp", {}):
        del more["ddp"]
    return {**more, "use_cache": True, "holds_outputs": draw.chance(0.6)}


def of_kernels(draw, world):
    kinds = draw.one(["rope,rms_norm,swiglu", "rope,rms_norm,swiglu", "rms_norm", "rope,swiglu"])
    more = of_pytorch(draw, world)
    more.pop("loss", None)
    return {**more, "liger_kernels": kinds, "liger_version": "0.8.5", "loss": draw.one(["liger", "liger", "hf"]), **draw.one(RECOMPUTED[:2])}


def of_zero3(draw, world):
    """Stage 3 with what of_deepspeed leaves alone."""
    zero = {"stage": 3}
    if draw.chance(0.3):
        zero["offload_param"] = {"device": "cpu", "pin_memory": draw.chance(0.5)}
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif world % 2 == 0 and draw.chance(0.4):
        zero["zero_hpz_partition_size"] = 2
    for key, value in (("stage3_max_live_parameters", 20_000_000 + draw.below(900_000_000)),
                       ("stage3_max_reuse_distance", draw.below(900_000_000)),
                       ("sub_group_size", 5_000_000 + draw.below(900_000_000)),
                       ("contiguous_gradients", False), ("overlap_comm", False)):
        if draw.chance(0.35):
            zero[key] = value
    made = {"zero_optimization": zero, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}
    if draw.chance(0.4):
        made["gradient_accumulation_steps"] = 2 + draw.below(2)
    if draw.chance(0.5):
        made["gradient_clipping"] = 1.0
    return {"deepspeed": made, **draw.one(RECOMPUTED)}


KINDS = {
    "accelerate": of_accelerate, "cache": of_cache, "kernels": of_kernels, "qlora": of_qlora, "zero3": of_zero3,
    "fsdp": of_fsdp, "deepspeed": of_deepspeed,
}


def one(draw, number):
    kind = draw.one(["accelerate", "accelerate", "cache", "cache", "kernels", "qlora", "qlora", "zero3", "zero3", "fsdp", "deepspeed"])
    while True:
        model = draw.one(MODELS + WIDER)
        config = model_config.config({"model": model})
        wanted = {"qlora": GATED, "kernels": LIGER}.get(kind)
        if wanted is None or config["model_type"] in wanted:
            break
    change = fewer_layers(draw, config)
    seq, batch = shape(draw, config)
    alone = kind in ("cache", "kernels", "qlora") and draw.chance(0.5)
    world = 1 if alone else draw.one([2, 4, 8, 12, 32, 128])
    more = {"attention": draw.one([None, None, None, "eager", "flash"])}
    if kind == "accelerate":
        more.update(of_accelerate(draw, world, config["model_type"]))
    else:
        more.update(KINDS[kind](draw, world))
    if kind in ("zero3", "fsdp", "deepspeed", "cache") and draw.chance(0.3) and (lora := adapters(draw, config)):
        if weights_of(more) != "bf16":
            lora.pop("dtype", None)
        more["lora"] = lora
    told = {"world": world, "rank": draw.below(world)} if world > 1 else {}
    return (model, seq, batch), {**more, **told, "change": change, "device": draw.one(DEVICES), "name": f"{number:02d}-{kind}"}


def jobs(make, stratum, seed, count):
    draw = Draw(seed)
    for number in range(count):
        what, more = one(draw, number)
        yield make(stratum, *what, **more)
