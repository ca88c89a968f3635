"""Jobs that nobody chose, of everything that somebody outside would try: families by turns, lengths people write down, each way to
checkpoint, to attend, to update and to share. A seed gives the same jobs for ever."""

from . import model_config
from .chance import Draw, fewer_layers, implemented
from .chance_launchers import LINEARS

# By family: those of each that a GPU's owner would take, cut to a few layers where they are large.
DECODERS = [names.split() for names in """gpt2 gpt2-medium gpt2-large gpt2-xl distilgpt2
llama-3.2-1b llama-3-8b llama-2-7b llama-2-13b tinyllama-1.1b smollm-135m smollm2-1.7b deepseek-coder-1.3b codellama-7b yi-6b
llama-3.1-8b llama-3.2-3b llama-3-70b open-llama-3b sheared-llama-1.3b deepseek-llm-7b
mistral-7b mistral-7b-v0.3 mistral-nemo-12b mistral-small-24b ministral-8b mistral-large-2407
qwen2-0.5b qwen2-1.5b qwen2-7b qwen2-72b qwen1.5-0.5b qwen1.5-7b
qwen2.5-0.5b qwen2.5-1.5b qwen2.5-3b qwen2.5-7b qwen2.5-32b deepseek-r1-distill-qwen-1.5b
qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-32b
gemma-2b gemma-7b gemma-2-2b gemma-2-9b gemma-2-27b gemma-3-1b gemma-3-270m gemma-3-27b-text gemma-3-12b-text
gemma-4-31b-text gemma-4-26b-a4b-text
phi-1.5 phi-2 phi-3-mini phi-3-medium phi-4 phi-4-mini
opt-125m opt-350m opt-1.3b opt-6.7b pythia-160m pythia-1b pythia-6.9b gpt-neox-20b dolly-v2-3b redpajama-incite-3b
bloom-560m bloom-1b1 bloom-7b1 falcon-7b falcon-rw-1b falcon-40b
command-r command-r7b aya-23-8b olmo-1b olmo-2-7b olmo-2-32b olmoe-1b-7b
granite-3.1-8b granite-3.3-2b granite-3.1-1b-a400m granite-4.0-micro granite-4.0-h-micro granite-4.0-h-tiny
glm-4-9b glm-4-9b-chat glm-4-32b glm-4.5-air glm-4.7-flash
starcoder2-3b starcoder2-15b stablelm-2-1.6b stablelm-3b-4e1t smollm3-3b exaone-4.0-1.2b ernie-4.5-0.3b helium-1-2b
minicpm3-4b seed-oss-36b afm-4.5b cwm ernie-4.5-21b-a3b hunyuan-a13b dots-llm1 solar-open-100b minimax-m2 qwen3-next-80b-a3b
mixtral-8x7b mixtral-8x22b qwen1.5-moe-a2.7b qwen2-57b-a14b qwen3-30b-a3b qwen3-235b-a22b
deepseek-v2-lite deepseek-v3 moonlight-16b-a3b kimi-k2 gpt-oss-20b gpt-oss-120b llama-4-scout-text""".splitlines()]
ENCODERS = """bert-base bert-large roberta-large xlm-roberta-base camembert-base distilbert-base electra-base electra-large
deberta-v3-base modernbert-large vit-base vit-huge t5-base flan-t5-base mt5-base bart-large pegasus-xsum opus-mt-en-de m2m100-418m
mbart-large-cc25 whisper-base whisper-medium""".split()
LIGER = ("llama", "mistral", "qwen2", "qwen3")
LENGTHS = (128, 256, 500, 512, 1000, 1024, 2048, 4096, 8192)
DEVICES = ["h100-sxm", "h100-sxm", "a100-sxm-80", "a100-sxm-40", "h200-sxm", "rtx4090"]
CONFS = ["expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4", "garbage_collection_threshold:0.8",
         "expandable_segments:True,max_split_size_mb:256", "max_split_size_mb:64,roundup_power2_divisions:8"]
REENTRANT = {"checkpoint": "full", "checkpoint_impl": "reentrant"}


def shape(draw, config):
    most = config.get("n_positions") or config.get("max_position_embeddings") or 8192
    seq = draw.one([n for n in LENGTHS if n <= most])
    return seq, min(1 + draw.below(4), max(1, 8192 // seq))


def depth(draw, config):
    """All layers of what is small, a few of the rest."""
    layers, width = config[model_config.layers_key(config)], config.get("hidden_size") or config.get("n_embd") or 4096
    if layers * width <= 70_000 and draw.chance(0.5):
        return {}
    return fewer_layers(draw, config)


def recomputed(draw, config):
    more = draw.one([{}, {}, {"checkpoint": "full"}, {"checkpoint": "full"}, REENTRANT, REENTRANT, None])
    if more is not None:
        return more
    return {"checkpoint": draw.one(["every:2", "nth:3", "segments:2", "keep:linear", "keep:scaled_dot_product_attention"])}


def adapters(draw, config):
    names = {"gpt2": ["c_attn"], "gpt_neox": ["query_key_value"], "falcon": ["query_key_value"], "bloom": ["query_key_value"],
             "phi3": ["qkv_proj", "o_proj"]}.get(config["model_type"])
    if names is None and config["model_type"] in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"):
        names = draw.one([["q_proj", "v_proj"], LINEARS])
    if names is None:
        names = ["q_proj"] if not config["model_type"].startswith(("deepseek", "kimi", "minicpm3", "qwen3_next", "granitemoehybrid")) else None
    if names is None:
        return {}
    return {"lora": {"r": draw.one([8, 16, 32, 64]), "targets": names, **({"dropout": 0.05} if draw.chance(0.3) else {})}}


def update(draw):
    name = draw.one(["adamw", "adamw", "adamw", "adamw", "adam", "sgd", "adagrad", "rmsprop", "adam8bit", "adam8bit"])
    if name == "adam8bit":
        return {"optimizer": {"name": name}, "needs": "bitsandbytes"}
    return implemented(draw, name)


def alone(draw, config, world):
    more = {**draw.one([{}, {}, {"dtype": "fp32"}, {"dtype": "fp32", "autocast": "bf16"}]), **update(draw)}
    if draw.chance(0.2):
        more["grad_accum"] = 2 + draw.below(2)
    if draw.chance(0.3):
        more["max_grad_norm"] = 1.0
    if draw.chance(0.4):
        more["model_init"] = "host"
    if draw.chance(0.3):
        more["allocator_conf"] = draw.one(CONFS)
    kind = draw.one(["hf", "hf", "hf", "native", "liger", "held", "cache"])
    if kind == "liger" and config["model_type"] in LIGER and more.get("dtype") != "fp32":
        more.update({"loss": "liger", "liger_version": "0.8.5"})
        if draw.chance(0.5):
            more["liger_kernels"] = "rope,rms_norm,swiglu"
    elif kind == "native":
        more["loss"] = "native"
    elif kind in ("held", "cache"):
        more["holds_outputs"] = True
        if kind == "cache":
            more["use_cache"] = True
    if world > 1 and draw.chance(0.4):
        more["ddp"] = draw.one([{"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1 + draw.below(99)}, {"static_graph": True},
                                {"broadcast_buffers": False}])
        if "static_graph" in more["ddp"]:
            more["steps"] = 3
            more.pop("grad_accum", None)
    return more


def sharded(draw, config, world):
    policy = draw.one([{}, {"param_dtype": "bf16", "reduce_dtype": "fp32"}])
    if draw.chance(0.3):
        policy = {**policy, "reshard_after_forward": False}
    how = draw.one(["fused", "foreach", "for-loop"])
    return {"runtime": "fsdp2", "fsdp": policy, "dtype": "fp32" if policy.get("param_dtype") else "bf16",
            "optimizer": {"name": "adamw", "implementation": how}}


def of_stage(draw, config, world):
    stage = draw.one([0, 1, 2, 2, 3, 3, 3])
    zero = {"stage": stage}
    params = {"lr": 1e-4}
    made = {"zero_optimization": zero, "optimizer": {"type": draw.one(["AdamW", "AdamW", "Adam"]), "params": params}}
    more = {"deepspeed": made}
    if draw.chance(0.35):
        params["torch_adam"] = True
    dtype = draw.one(["bf16", "bf16", "bf16", "fp16", "fp32"])
    if dtype != "fp32":
        made[dtype] = {"enabled": True, **({"initial_scale_power": 8} if dtype == "fp16" else {})}
    if draw.chance(0.3):
        made["gradient_accumulation_steps"] = 2 + draw.below(3)
    if draw.chance(0.4):
        made["gradient_clipping"] = 1.0
    if stage == 0:
        return more
    ways = [("overlap_comm", draw.chance(0.5), 0.5), ("reduce_bucket_size", draw.one([123_456, 7_654_321, 50_000_000, 500_000_001]), 0.4),
            ("contiguous_gradients", False, 0.1), ("reduce_scatter", False, 0.1)]
    if stage == 3:
        ways += [("stage3_param_persistence_threshold", draw.one([0, 4096, 300_001, 20_000_000]), 0.4),
                 ("stage3_prefetch_bucket_size", draw.one([0, 1_234_567, 60_000_000, 400_000_000]), 0.4),
                 ("zero_hpz_partition_size", 2, 0.15 if world % 2 == 0 and world > 2 else 0),
                 ("zero_quantized_weights", True, 0.15), ("sub_group_size", 40_000_001, 0.1)]
    zero.update({key: value for key, value, share in ways if draw.chance(share)})
    if dtype in ("bf16", "fp16") and draw.chance(0.2) and "zero_hpz_partition_size" not in zero and "zero_quantized_weights" not in zero:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": draw.chance(0.5)}
        params.pop("torch_adam", None)
        if stage == 3 and draw.chance(0.5):
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return more


def tight(draw, config):
    """A device that holds the states in bf16, and of the rest some."""
    width, layers = config.get("hidden_size") or config.get("n_embd"), config[model_config.layers_key(config)]
    inner = config.get("intermediate_size") or 4 * width
    weights = layers * (3 * width * width + 3 * width * inner) + (1 if config.get("tie_word_embeddings", True) else 2) * width * config["vocab_size"]
    return (8 * weights >> 20 << 20) + ((1 + draw.below(12)) << 29)


WAYS = {"pytorch": alone, "ddp": alone, "fsdp": sharded, "deepspeed": of_stage}


def decoder(draw, number):
    model = draw.one(draw.one(DECODERS))
    config = model_config.config({"model": model})
    change = depth(draw, config)
    config = {**config, **change}
    seq, batch = shape(draw, config)
    kind = draw.one(["pytorch"] * 5 + ["ddp"] + ["fsdp"] + ["deepspeed"] * 5)
    world = 1 if kind == "pytorch" else draw.one([2, 3, 4, 8, 16, 64])
    how = draw.one([None] * 8 + ["flash", "cudnn", "mem-efficient", "math", "eager", "eager"])
    more = {"attention": how, **recomputed(draw, config), **WAYS[kind](draw, config, world)}
    if draw.chance(0.2):
        more.update(adapters(draw, config))
    elif kind in ("pytorch", "ddp") and draw.chance(0.15):
        more["freeze"] = draw.one([["*embed*", "*wte*"], ["*mlp*"], ["*.0.*", "*.1.*"]])
    if kind == "pytorch" and draw.chance(0.2) and not {"loss", "lora", "freeze"} & more.keys() and more.get("dtype", "bf16") == "bf16":
        more["capacity"] = tight(draw, config)
    told = {"world": world, "rank": draw.below(world)} if world > 1 else {}
    return (model, seq, batch), {**more, **told, "change": change, "name": f"{number:03d}-{kind}"}


def other(draw, number):
    """Encoders, two stacks, pictures as classes: whole."""
    model = draw.one(ENCODERS)
    config = model_config.config({"model": model})
    kind = draw.one(["pytorch", "pytorch", "ddp", "deepspeed", "deepspeed"])
    world = 1 if kind == "pytorch" else draw.one([2, 4, 8, 16])
    more = {**draw.one([{}, {}, {"checkpoint": "full"}, REENTRANT]), **WAYS[kind](draw, config, world)}
    for key in ("loss", "liger_version", "liger_kernels", "use_cache", "holds_outputs"):
        more.pop(key, None)
    stacks = config.get("is_encoder_decoder") or config["model_type"] in ("t5", "mt5", "bart", "pegasus", "marian", "m2m_100", "mbart", "whisper")
    seq = {"vit-base": 197, "vit-huge": 257}.get(model) or (1500 if model.startswith("whisper") else draw.one([128, 256, 500, 512]))
    if stacks:
        more["target_seq"] = draw.one([64, 100, 128])
        more.pop("autocast", None)
    told = {"world": world, "rank": draw.below(world)} if world > 1 else {}
    how = "eager" if model.startswith(("t5", "flan", "mt5")) else None
    trained = {"electra": "ElectraForMaskedLM", "vit": "ViTForImageClassification"}.get(config["model_type"])
    if trained and config.get("architectures") != [trained]:
        more["change"] = {"architectures": [trained]}
    return (model, seq, 1 + draw.below(4)), {**more, **told, "attention": how, "whole": True, "name": f"{number:03d}-other-{kind}"}


def jobs(make, stratum, seed, count):
    draw = Draw(seed)
    for number in range(count):
        what, more = (decoder if draw.chance(0.85) else other)(draw, number)
        yield make(stratum, *what, **{**more, "whole": True, "device": draw.one(DEVICES)})
