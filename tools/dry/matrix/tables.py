"""The jobs, as tables. A row says what differs from the plain job: bf16, one row of 1,024 tokens, fused AdamW, flash
attention, one H100. Real models mostly; a model with fewer layers (`layers`) where nothing new would be seen in more.
"""

import functools
import itertools

from . import chance, chance_launchers, chance_others, chance_outside, chance_rare, model_config

FAMILIES = [
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "tinyllama-1.1b",
    "llama-3-8b",
    "mistral-7b",
    "qwen2-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-4b",
    "gemma-2-2b",
    "mixtral-8x7b",
]
SMALL = ["gpt2", "llama-3.2-1b", "qwen2-0.5b", "qwen3-0.6b", "tinyllama-1.1b"]
ALL_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LAYERS = {
    "mixtral-8x7b": 2,
    "llama-3-8b": 8,
    "mistral-7b": 8,
    "qwen2.5-7b": 8,
    "gemma-2-2b": 8,
    "qwen3-4b": 12,
    "llama-3-70b": 3,
    "gpt2-xl": 12,
    "gemma-2-9b": 4,
    "llama-2-13b": 5,
    "qwen2.5-72b": 2,
}


def job(stratum, model, seq=1024, batch=1, *, name="", change=None, whole=False, **more):
    """`more`: keys of a training file, and of a job (device, capacity, events, ddp, deepspeed, world, rank, steps)."""
    beside = {
        k: more.pop(k)
        for k in (
            "device",
            "capacity",
            "events",
            "ddp",
            "deepspeed",
            "world",
            "rank",
            "steps",
            "holds_outputs",
            "needs",
            "accelerate",
            "axolotl",
        )
        if k in more
    }
    change = dict(change or {})
    if model in LAYERS and not whole:
        change = {("n_layer" if model.startswith("gpt2") else "num_hidden_layers"): LAYERS[model], **change}
    training = {"seq": seq, "micro_batch": batch, "attention": "flash", **more}
    if training["attention"] is None:
        del training["attention"]
    made = {
        "stratum": stratum,
        "name": "-".join(filter(None, [stratum, model, f"s{seq}", f"b{batch}", name])),
        "model": model,
        "device": "h100-sxm",
        "training": training,
        **beside,
    }
    if change:
        made["change"] = change
    if "deepspeed" in made:  # DeepSpeed's file says what both would.
        training.pop("micro_batch")
        made["deepspeed"] = {"train_micro_batch_size_per_gpu": batch, **made["deepspeed"]}
    return made


def lengths(model):
    return [n for n in (128, 500, 1000, 1024, 2048, 4096, 8192) if n <= (1024 if model.startswith("gpt2") else 8192)]


def pytorch():
    for model in FAMILIES:
        for at, seq in enumerate(lengths(model)):
            eager = {"attention": "eager"} if model.startswith("gemma") else {}
            if model.startswith("gemma") and seq > 4096:
                continue
            if model == "mistral-7b" and seq >= 4096:  # Its window makes a mask, which flash does not take.
                eager = {"attention": None}
            yield job("pytorch", model, seq, 1 + at % 4 if seq < 4096 else 1, **eager)
    for model, seq, batch in itertools.product(SMALL, (500, 1024), (1, 2, 3, 4)):
        yield job("pytorch", model, seq, batch, name="grid")
    odd = {
        "num_hidden_layers": 3,
        "hidden_size": 520,
        "intermediate_size": 1111,
        "num_attention_heads": 10,
        "num_key_value_heads": 5,
        "vocab_size": 30011,
        "head_dim": 52,
        "tie_word_embeddings": False,
    }
    for model in ("llama-3.2-1b", "qwen2-0.5b", "mistral-7b", "qwen3-0.6b"):
        for seq in (77, 513, 1000):
            yield job("pytorch", model, seq, 3, change=odd, name="odd")
    for model in ("llama-3-8b", "qwen3-4b", "gpt2-xl", "llama-2-13b", "qwen2.5-7b"):
        yield job("pytorch", model, 1024, 1, whole=True, name="whole")


DECODERS = """aya-23-8b command-r7b olmo-2-1b granite-3.1-2b glm-4-9b gpt-oss-20b deepseek-v2-lite moonlight-16b-a3b
qwen3-30b-a3b qwen1.5-moe-a2.7b granite-3.1-1b-a400m glm-4.5-air ernie-4.5-0.3b smollm3-3b exaone-4.0-1.2b stablelm-2-1.6b
starcoder2-3b phi-1.5 phi-3-mini gemma-2b gemma-3-1b falcon-7b falcon-rw-1b bloom-560m opt-1.3b pythia-1b
llama-4-scout-text gemma-4-31b-text gemma-4-26b-a4b-text starcoderbase-1b starcoder lfm2-1.2b lfm2-2.6b vaultgemma-1b
minicpm3-4b glm-4-9b-chat solar-open-100b
jais-2-8b hyperclovax-seed-think-14b flex-olmo-7x7b apertus-8b nanochat-d20 gpt-j-6b gpt-neo-125m minimax-m2
nemotron-mini-4b exaone-4.0-32b olmo-3-7b hunyuan-7b phi-3.5-mini phi-4-mini""".split()
# Families that came last, under each runtime.
LATEST = """apertus-8b nanochat-d20 gpt-j-6b gpt-neo-125m nemotron-mini-4b exaone-4.0-32b olmo-3-7b hunyuan-7b
phi-3.5-mini phi-4-mini""".split()


PICTURED = "dinov2-small-imagenet1k dinov2-base-imagenet1k".split()
ENCODERS = "deberta-v3-small deberta-v3-base deberta-v3-large camembert-base".split()
SHARED = "albert-base albert-xxlarge".split()  # Layers that share their weights.
TRANSLATORS = "bart-base bart-large-cnn mbart-large-50 nllb-200-distilled-600m pegasus-xsum".split()


def single_modules():
    """nemotron_h, each of whose layers is one module: some of each kind, experts that see latents, and none."""
    for model, pattern in (("nemotron-3-nano-30b", "MEM*E"), ("nemotron-3-super-120b", "ME*"), ("nemotron-h-56b", "M-*-")):
        few = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
        one = functools.partial(job, "families", model, attention=None, change=few)
        yield one(1024, 1)
        yield one(500, 3, checkpoint="full", name="full")
        yield one(1777, 1, model_init="host", name="host")
        if model == "nemotron-3-super-120b":  # 512 experts.
            continue
        yield one(512, 2, world=8, rank=3, deepspeed=engine(2), name="zero2")
        yield one(512, 2, world=8, runtime="fsdp2", name="fsdp2")
        if "E" in pattern:  # DeepSpeed prints its parameters, and of these PyTorch reads a count that the device has not.
            continue
        yield one(512, 2, world=8, rank=3, deepspeed=engine(3), model_init="host", name="zero3")
        yield one(512, 2, world=8, rank=3, deepspeed=engine(3), model_init="host", checkpoint="full", name="zero3-full")


def families():
    """Encoders whole, and decoders that the other tables lack: attention as PyTorch chooses it, at real widths."""
    for model in DECODERS:
        config = model_config.config({"model": model})
        layers = config[model_config.layers_key(config)]
        few = model_config.with_layers(config, min(layers, 2 if model.startswith(("llama-4", "minimax")) else 4))
        yield job("families", model, 1024, 1, attention=None, change=few)
        yield job("families", model, 500, 3, attention=None, change=few, checkpoint="full", name="full")
        yield job("families", model, 1777, 1, attention=None, change=few, model_init="host", name="host")
    for model in LATEST:
        config = model_config.config({"model": model})
        few = model_config.with_layers(config, 4)
        one = functools.partial(job, "families", model, 512, 2, attention=None, change=few, world=8)
        yield one(rank=3, deepspeed=engine(2), name="zero2")
        yield one(rank=3, deepspeed=engine(3), model_init="host", name="zero3")
        yield one(rank=3, deepspeed=engine(3), model_init="host", checkpoint="full", name="zero3-full")
        yield one(runtime="fsdp2", name="fsdp2")
    for model in ("phi-3.5-mini", "phi-4-mini"):  # Rows for which LongRoPE makes other tables.
        one = functools.partial(job, "families", model, 4500, 1, attention=None, change={"num_hidden_layers": 4})
        yield one()
        yield one(checkpoint="full", model_init="host", dtype="fp32", autocast="bf16", name="full-autocast")
        yield one(world=8, rank=3, name="ddp")
        yield one(world=8, rank=3, deepspeed=engine(3), model_init="host", checkpoint="full", name="zero3-full")
    yield from single_modules()
    for model in ("gemma-3n-e2b-text", "gemma-3n-e4b-text"):  # Likewise whole.
        one = functools.partial(job, "families", model, attention=None, whole=True)
        yield one(1024, 1)
        yield one(500, 3, checkpoint="full", name="full")
        yield one(777, 2, checkpoint="full", lora={"r": 16, "targets": ["q_proj", "v_proj", "gate_proj"]}, model_init="host", name="lora")
        yield one(512, 2, world=8, rank=3, deepspeed=engine(2), name="zero2")
        yield one(512, 2, world=8, rank=3, deepspeed=engine(3), model_init="host", name="zero3")
        yield one(512, 2, world=8, rank=3, deepspeed=engine(3), model_init="host", checkpoint="full", name="zero3-full")
        yield one(512, 2, world=8, rank=3, runtime="fsdp2", name="fsdp2")
    for model in ("gemma-4-e2b-text", "gemma-4-e4b-text"):  # Whose last layers read what others keep: whole.
        yield job("families", model, 1024, 1, attention=None, whole=True)
        yield job("families", model, 500, 3, attention=None, whole=True, checkpoint="full", name="full")
    for model in ("paligemma-3b-224", "paligemma-3b-448", "paligemma2-3b-224"):  # With a picture in each row.
        one = functools.partial(job, "families", model, attention=None, change=FEW, images=1)
        yield one(1300, 1)
        yield one(1100, 2, checkpoint="full", name="full")
        yield one(1777, 1, model_init="host", name="host")
    for model in ("smolvlm-256m", "smolvlm2-500m", "idefics3-8b"):  # Of idefics3's processor, several parts of a picture.
        one = functools.partial(job, "families", model, attention=None, change=FEW, images=2)
        yield one(1300, 1)
        yield one(1100, 2, checkpoint="full", name="full")
        yield one(777, 1, model_init="host", name="host")
    one = functools.partial(job, "families", "llava-1.5-7b", attention=None, change=FEW, images=1)
    yield one(700, 2)  # As it comes from the hub: its tower's last layer is trained, and no loss reaches it.
    yield one(1100, 3, checkpoint="full", name="full")
    yield one(777, 2, grad_accum=2, max_grad_norm=1.0, model_init="host", name="accum2")
    for model in ENCODERS:
        yield job("families", model, 512, 8, attention=None, whole=True)
        yield job("families", model, 333, 3, attention=None, whole=True, checkpoint="full", name="full")
        yield job("families", model, 77, 16, attention=None, whole=True, model_init="host", name="host")
    for model in PICTURED:
        seq = 1370 if "small" in model else 257  # Its own size, and 224 pixels a side.
        one = functools.partial(job, "families", model, seq, attention=None, whole=True)
        yield one(2)
        yield one(3, checkpoint="full", name="full")
        yield one(2, model_init="host", dtype="fp32", autocast="bf16", name="host-autocast")
        frozen = {"freeze": ["*mask_token"]}
        yield one(2, world=8, rank=3, deepspeed=engine(2), name="zero2", **frozen)
        yield one(2, world=8, runtime="fsdp2", name="fsdp2", **frozen)
        yield one(2, world=8, rank=3, deepspeed=engine(3), model_init="host", name="zero3", **frozen)
        yield one(3, world=8, rank=3, deepspeed=engine(3, accum=2), model_init="host", checkpoint="full", name="zero3-full-accum2", **frozen)
    for model in SHARED:
        yield from shared_layers(functools.partial(job, "families", model, attention=None, whole=True))
    yield from translators(functools.partial(job, "families", attention=None, whole=True))
    yield from learned_biases(functools.partial(job, "families", attention=None, whole=True))


def shared_layers(one):
    """Without checkpoints, which transformers does not give these classes."""
    yield one(512, 8)
    yield one(333, 3, model_init="host", dtype="fp32", autocast="bf16", name="host-autocast")
    yield one(512, 4, grad_accum=2, max_grad_norm=1.0, name="accum2")
    yield one(512, 4, world=8, rank=3, deepspeed=engine(2), name="zero2")
    yield one(512, 4, world=8, name="ddp")


def translators(one):
    """Two stacks, whole, whose rows are of two lengths."""
    for model in TRANSLATORS:
        yield one(model, 512, 4, target_seq=128)
        yield one(model, 333, 3, target_seq=200, checkpoint="full", name="full")
        yield one(model, 77, 8, target_seq=40, model_init="host", name="host")


def learned_biases(one):
    """As sdpa takes them by default: math where biases are learned, a fused kernel between the stacks."""
    for model in ("t5-base", "flan-t5-base", "mt5-small"):
        yield one(model, 512, 4, target_seq=128, name="sdpa")
        yield one(model, 500, 3, target_seq=100, device="a100-sxm-80", name="sdpa-a100")
        yield one(model, 333, 3, target_seq=200, checkpoint="full", name="sdpa-full")
        yield one(model, 256, 2, target_seq=77, dtype="fp32", autocast="bf16", name="sdpa-autocast")
    yield one("umt5-small", 512, 4, target_seq=128, name="sdpa")
    yield one("umt5-small", 333, 3, target_seq=200, checkpoint="full", name="sdpa-full")
    yield one("umt5-small", 77, 8, target_seq=40, model_init="host", name="sdpa-host")
    yield one("t5-base", 256, 2, target_seq=64, dtype="fp32", name="sdpa-fp32")
    for stage, model in ((2, "t5-base"), (3, "flan-t5-base")):
        yield one(model, 512, 2, target_seq=128, name=f"sdpa-zero{stage}", world=8, rank=3, deepspeed=engine(stage))


def mixtures():
    """Experts one by one, as the routing gives them tokens, and copies of their weights."""
    models = {"mixtral-8x7b": 2, "qwen3-30b-a3b": 2, "qwen1.5-moe-a2.7b": 2, "deepseek-v2-lite": 3, "gpt-oss-20b": 2}
    for model, layers in models.items():
        few = {"num_hidden_layers": layers}
        if model == "gpt-oss-20b":
            few["layer_types"] = ["sliding_attention", "full_attention"]
        one = functools.partial(job, "mixtures", model, attention=None, change=few)
        for routing in ("balanced", "worst", "capacity:1.5"):
            name = "loop-" + routing.replace(":", "-")
            yield one(1024, 1, experts="eager", routing=routing, name=name)
        yield one(500, 3, experts="eager", routing="balanced", checkpoint="full", name="loop-full")
        yield one(777, 1, experts="eager", routing="capacity:1.25", dtype="fp32", autocast="bf16", name="loop-autocast")
        if model != "gpt-oss-20b":
            yield one(32, 1, experts="batched_mm", name="batched")
            yield one(17, 3, experts="batched_mm", checkpoint="full", name="batched-full")
        for stage in (2, 3):
            yield one(512, 1, world=8, deepspeed=engine(stage), experts="eager", routing="balanced", name=f"loop-zero{stage}")
        yield one(512, 1, world=8, runtime="fsdp2", experts="eager", routing="worst", name="loop-fsdp2")


# Whose way to hang layers together, to store experts or to write a product is of their own.
ZERO3_FAMILIES = """mixtral-8x7b qwen1.5-moe-a2.7b qwen3-30b-a3b moonlight-16b-a3b falcon-7b falcon-40b falcon-rw-1b
pythia-1b phi-1.5 starcoder2-3b""".split()
# Whose padded tables transformers' own initialization does not find under zero.Init.
ZERO3_HOST = """gpt-oss-20b glm-4-32b aya-23-8b olmo-2-1b gemma-3-1b bert-base modernbert-base
opt-1.3b""".split()


def zero3_families():
    for model in ZERO3_FAMILIES + ZERO3_HOST:
        config = model_config.config({"model": model})
        few = model_config.with_layers(config, 3 if model.startswith("moonlight") else 2)
        beside = {"model_init": "host"} if model in ZERO3_HOST else {}
        one = functools.partial(job, "zero3-families", model, attention=None, change=few, deepspeed=engine(3), **beside)
        yield one(512, 2, world=8, rank=3)
        yield one(500, 3, world=2, checkpoint="full", name="full")
        if model in ("falcon-7b", "gpt-oss-20b", "phi-1.5"):
            yield one(512, 2, world=64, rank=63, checkpoint="full", checkpoint_impl="reentrant", name="reentrant")


def init():
    """The model is made on the host and moved: nothing of its making lies on the device."""
    for model, seq, batch in (
        ("gpt2", 500, 2),
        ("llama-3.2-1b", 1024, 1),
        ("qwen2-0.5b", 1000, 2),
        ("qwen3-0.6b", 128, 3),
        ("tinyllama-1.1b", 512, 2),
        ("gpt2-medium", 1024, 1),
        ("qwen2.5-1.5b", 2048, 1),
    ):
        for way in ({}, {"checkpoint": "full"}):
            yield job(
                "init",
                model,
                seq,
                batch,
                model_init="host",
                **way,
                name="host" + "".join("-" + v for v in way.values()),
            )
    tied = [
        "gpt2",
        "gpt2-medium",
        "gpt2-large",
        "llama-3.2-1b",
        "qwen2-0.5b",
        "qwen2.5-1.5b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "gemma-2-2b",
    ]
    for model in tied:
        eager = {"attention": "eager"} if model.startswith("gemma") else {}
        for at, seq in enumerate(lengths(model)):
            if seq <= (2048 if eager else 4096):
                yield job("init", model, seq, 1 + (at + 1) % 3, model_init="host", **eager, name="grid")
    ways = {
        "foreach": {"optimizer": {"name": "adamw", "implementation": "foreach"}},
        "loop": {"optimizer": {"name": "adamw", "implementation": "for-loop"}},
        "autocast": {"dtype": "fp32", "autocast": "bf16"},
        "lora": {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}},
        "frozen": {"freeze": ["*mlp*"]},
        "native": {"loss": "native"},
        "accum3": {"grad_accum": 3},
        "reentrant": {"checkpoint": "full", "checkpoint_impl": "reentrant"},
        "expandable": {"allocator_conf": "expandable_segments:True"},
        "split": {"allocator_conf": "max_split_size_mb:64"},
        "default": {"attention": None},
    }
    for model, seq, batch in (("llama-3.2-1b", 1024, 2), ("qwen3-0.6b", 1000, 2), ("gpt2", 1024, 2)):
        for name, way in ways.items():
            if name == "lora" and model == "gpt2":
                way = {"lora": {"r": 8, "targets": ["c_attn"]}}
            yield job("init", model, seq, batch, model_init="host", **way, name="host-" + name)
    for model in ("gpt2", "qwen2-0.5b", "llama-3.2-1b"):
        yield job("init", model, 1000, 1, model_init="host", world=4, name="host-ddp")


def attention():
    for kind in (None, "cudnn", "flash", "mem-efficient", "math", "eager"):
        for model, seq, batch in (
            ("gpt2", 1024, 2),
            ("llama-3.2-1b", 2048, 1),
            ("qwen2-0.5b", 1000, 2),
            ("qwen3-0.6b", 512, 3),
            ("mistral-7b", 4096, 1),
            ("llama-2-13b", 2048, 1),
            ("gemma-2-2b", 1024, 2),
            ("tinyllama-1.1b", 128, 1),
        ):
            if kind == "mem-efficient" and model not in ("gpt2", "mistral-7b", "llama-2-13b"):  # No grouped heads.
                continue
            if kind == "flash" and model == "mistral-7b":
                continue
            if model.startswith("gemma") and kind not in (None, "eager"):
                continue
            for device in ("h100-sxm", "a100-sxm-80") if kind is not None or model != "mistral-7b" else ("h100-sxm",):
                if kind == "cudnn" and device != "h100-sxm":
                    continue
                yield job(
                    "attention",
                    model,
                    seq,
                    batch,
                    attention=kind,
                    device=device,
                    name=f"{kind or 'default'}-{device[:4]}",
                )
    for model, seq in (("llama-3.2-1b", 500), ("llama-3-8b", 1000), ("qwen2.5-1.5b", 8192), ("gpt2-large", 777)):
        for checkpoint in ("none", "full"):
            yield job("attention", model, seq, 2, attention=None, checkpoint=checkpoint, name=f"default-{checkpoint}")


def dtype():
    for model in ("gpt2", "llama-3.2-1b", "qwen2-0.5b", "qwen3-0.6b", "tinyllama-1.1b"):
        for seq, batch in ((500, 2), (1024, 1)):
            yield job("dtype", model, seq, batch, dtype="fp32", attention=None, name="fp32")
            if model == "gpt2":
                yield job("dtype", model, seq, batch, dtype="fp32", attention="mem-efficient", name="fp32-efficient")
            yield job("dtype", model, seq, batch, dtype="fp32", autocast="bf16", name="autocast")
            yield job("dtype", model, seq, batch, dtype="fp16", name="fp16")
        yield job("dtype", model, 1024, 2, dtype="fp32", autocast="bf16", checkpoint="full", name="autocast-full")
        yield job("dtype", model, 1024, 2, dtype="fp32", autocast="bf16", attention=None, name="autocast-default")
        yield job("dtype", model, 1024, 2, dtype="bf16", autocast="bf16", name="bf16-autocast")


def checkpoint():
    ways = [
        {"checkpoint": "full"},
        {"checkpoint": "full", "checkpoint_impl": "reentrant"},
        {"checkpoint": "every:2"},
        {"checkpoint": "nth:3"},
        {"checkpoint": "segments:4"},
        {"checkpoint": "keep:linear"},
        {"checkpoint": "keep:scaled_dot_product_attention"},
        {"checkpoint": "modules:mlp"},
    ]
    for model, seq, batch in (
        ("gpt2", 1024, 2),
        ("llama-3.2-1b", 2048, 1),
        ("llama-3-8b", 4096, 1),
        ("qwen2.5-1.5b", 1000, 2),
        ("qwen3-0.6b", 500, 4),
    ):
        for way in ways:
            yield job("checkpoint", model, seq, batch, **way, name="-".join(way.values()).replace(":", ""))
    for model in ("mistral-7b", "mixtral-8x7b", "gpt2-large", "qwen2.5-7b"):
        for way in ways[:2]:
            yield job("checkpoint", model, 2048 if "gpt2" not in model else 1024, 2, **way, name="-".join(way.values()))
            yield job("checkpoint", model, 500, 1, **way, name="-".join(way.values()))
    yield job("checkpoint", "llama-3-8b", 8192, 1, whole=True, checkpoint="full", name="whole")


def lora():
    for model, seq, batch in (
        ("llama-3.2-1b", 1024, 2),
        ("llama-3-8b", 2048, 1),
        ("qwen2.5-1.5b", 1000, 1),
        ("mistral-7b", 500, 4),
        ("qwen3-0.6b", 512, 2),
    ):
        for r, targets in ((8, ["q_proj", "v_proj"]), (16, ALL_LINEARS)):
            for way in ({}, {"checkpoint": "full"}, {"checkpoint": "full", "checkpoint_impl": "reentrant"}):
                adapters = {"r": r, "targets": targets}
                yield job(
                    "lora",
                    model,
                    seq,
                    batch,
                    lora=adapters,
                    **way,
                    name=f"r{r}-{len(targets)}" + "-".join(way.values()),
                )
        yield job(
            "lora", model, seq, batch, lora={"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "bf16"}, name="bf16"
        )
        yield job(
            "lora", model, seq, batch, lora={"r": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.05}, name="dropout"
        )
        yield job(
            "lora", model, seq, batch, lora={"r": 8, "targets": ["q_proj", "v_proj"]}, attention=None, name="default"
        )
    yield job("lora", "gpt2", 1024, 2, lora={"r": 8, "targets": ["c_attn"]}, name="r8")
    for model in ("llama-3.2-1b", "qwen2-0.5b"):
        yield job("lora", model, 1024, 2, freeze=["model.embed_tokens.*"], name="frozen-embedding")
        yield job("lora", model, 1024, 2, freeze=["model.layers.1*", "model.embed_tokens.*"], name="frozen-layers")
        yield job("lora", model, 1024, 2, freeze=["*mlp*"], name="frozen-mlp")
    yield job("lora", "gpt2", 1024, 2, freeze=["transformer.h.1*", "transformer.w*"], name="frozen-half")


def packed():
    """Adapters over packed weights: prepared by peft (fp32 beside them, reentrant checkpoints), or as programs leave them."""
    int8, nf4 = {"quantization": "int8"}, {"quantization": "nf4", "double_quant": True, "quant_compute_dtype": "bf16"}
    every, some = {"r": 16, "targets": ALL_LINEARS}, {"r": 8, "targets": ["q_proj", "v_proj"]}
    left = {"kbit_prepare": False, "autocast": "bf16", "checkpoint": "full"}
    ways = {
        "prepared": {"lora": every},
        "autocast": {"lora": every, "autocast": "bf16"},
        "non-reentrant": {"lora": every, "autocast": "bf16", "checkpoint": "full", "checkpoint_impl": "non_reentrant"},
        "whole-graph": {"lora": {**some, "dropout": 0.05}, "autocast": "bf16", "checkpoint": "none"},
        "trl": {**left, "lora": {**every, "dtype": "bf16"}, "checkpoint_impl": "non_reentrant"},
        "llama-factory": {**left, "lora": {**every, "dropout": 0.05}, "checkpoint_impl": "reentrant"},
    }
    models = (("tinyllama-1.1b", 2048, 1), ("qwen2-0.5b", 1000, 2), ("llama-3-8b", 2048, 1))
    for at, (name, way) in enumerate(ways.items()):
        for kind, packing in (("int8", int8), ("nf4", nf4)):
            for model, seq, batch in models[: 3 if kind == "int8" else 1]:
                if at in (1, 2) and model == "llama-3-8b":
                    continue
                yield job("packed", model, seq, batch, attention=None, needs="bitsandbytes", **packing, **way,
                          name=f"{kind}-{name}")
    # Few rows, of large weights.
    for seq, name in ((600, "trl"), (1024, "prepared")):
        yield job("packed", "llama-3-8b", seq, 1, attention=None, needs="bitsandbytes", **nf4, **ways[name], name=f"nf4-{name}")
    # Several GPUs: DDP as it is; DeepSpeed casts what is not packed to its own dtype and trains the adapters in it.
    for kind, packing in (("int8", int8), ("nf4", nf4)):
        for name in ("prepared", "autocast", "llama-factory", "trl"):
            yield job("packed", "tinyllama-1.1b", 2048, 1, attention=None, needs="bitsandbytes", world=2, **packing,
                      **ways[name], name=f"{kind}-ddp-{name}")
        for stage in (0, 1, 2):
            for name, world in (("prepared", 2), ("trl", 8)):
                way = {key: value for key, value in ways[name].items() if key != "autocast"}
                yield job("packed", "tinyllama-1.1b", 2048, 1, attention=None, needs="bitsandbytes", world=world, **packing,
                          **way, deepspeed=engine(stage, torch_adam=True), name=f"{kind}-z{stage}-{name}")


def packed_mixtures():
    """4-bit weights of attention beside experts, which are parameters of their own and stay as they are."""
    nf4 = {"quantization": "nf4", "double_quant": True, "quant_compute_dtype": "bf16", "quant_storage": "bf16", "kbit_prepare": False}
    adapters = {"r": 16, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    for model, seq, batch in (("mixtral-8x7b", 2048, 1), ("granite-3.1-1b-a400m", 1024, 2)):
        for name, more in (("whole", {"checkpoint": "none"}), ("full", {"checkpoint": "full"})):
            yield job("packed", model, seq, batch, attention=None, needs="bitsandbytes", lora={**adapters, "dtype": "fp32"},
                      autocast="bf16", **nf4, **more, name=f"nf4-mixture-{name}")
    yield job("mixtures", "mixtral-8x7b", 1024, 1, lora=adapters, dtype="bf16", autocast="bf16", name="lora-autocast-narrow")


def adapted_mixtures():
    """Adapters on all of a mixture: on the parameters of its experts and router, where peft finds them by their old
    names or is told their new ones; and weights in fp32 under autocast, in whose dtype experts compute."""
    every = {"r": 8, "alpha": 16, "targets": "all-linear"}
    experts = {**every, "parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    full = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    for model, layers, lora in (("qwen3-30b-a3b", 4, every), ("mixtral-8x7b", 2, every), ("gpt-oss-20b", 2, experts)):
        few = {"num_hidden_layers": layers}
        if model == "gpt-oss-20b":
            few["layer_types"] = ["sliding_attention", "full_attention"]
        one = functools.partial(job, "adapted-mixtures", model, attention=None, change=few)
        yield one(2048, 1, lora=lora, name="whole")
        yield one(1024, 2, lora=lora, **full, name="full")
        yield one(777, 1, dtype="fp32", autocast="bf16", name="autocast")
    one = functools.partial(job, "adapted-mixtures", "qwen3-30b-a3b", attention=None, change={"num_hidden_layers": 2})
    yield one(512, 1, world=8, lora=every, name="ddp")
    yield one(512, 2, lora={**every, "alpha": 8}, experts="eager", routing="balanced", name="loop")
    yield job("adapted-mixtures", "deepseek-v2-lite", 777, 1, attention=None, change={"num_hidden_layers": 3}, dtype="fp32", autocast="bf16", name="autocast")
    yield job("adapted-mixtures", "deepseek-v2-lite", 777, 1, attention=None, change={"num_hidden_layers": 3}, lora=every, name="whole")


def packed_zero3():
    """Packed weights that DeepSpeed's stage 3 cuts like others; what unpacks them stays whole on each rank."""
    nf4 = {"quantization": "nf4", "quant_compute_dtype": "bf16"}
    left = {"kbit_prepare": False, "checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    every, some = {"r": 16, "targets": ALL_LINEARS}, {"r": 8, "targets": ["q_proj", "v_proj"]}
    ways = {
        "prepared": ({**nf4, "lora": every}, {}),
        "trl": ({**nf4, **left, "lora": {**every, "dtype": "bf16"}}, {}),
        "nested": ({**nf4, **left, "double_quant": True, "lora": every}, {}),
        "stored-bf16": ({**nf4, **left, "quant_storage": "bf16", "lora": every}, {}),
        "whole-graph": ({**nf4, "checkpoint": "none", "lora": some}, {}),
        "offload": ({**nf4, **left, "lora": every}, {"offload_optimizer": {"device": "cpu", "pin_memory": True}}),
        "int8": ({"quantization": "int8", "lora": every}, {}),
        "held": ({**nf4, **left, "lora": every}, {}),
    }
    for name, (way, zero) in ways.items():
        more = (("tinyllama-1.1b", 1600, 4, 3), ("llama-3-8b", 2048, 8, 0)) if name == "prepared" else ()
        if name in ("prepared", "trl", "whole-graph"):  # Biases, which bitsandbytes' products take along; tied words.
            more = (*more, ("qwen2.5-0.5b", 2048, 2, 0), ("starcoder2-3b", 1600, 4, 1))
        for model, seq, world, rank in (("tinyllama-1.1b", 2048, 2, 0), *more):
            yield job("packed", model, seq, 1, attention=None, needs="bitsandbytes", world=world, rank=rank, **way,
                      deepspeed=engine(3, torch_adam="offload" not in name, zero=zero), name=f"z3-{name}-w{world}",
                      **({"holds_outputs": True} if name == "held" else {}))


def adapters():
    """What else peft trains, where DeepSpeed or fully_shard part it among ranks."""
    saves = {
        "save-head": {"r": 8, "targets": ["q_proj", "v_proj"], "save": ["lm_head"]},
        "save-ends": {"r": 16, "targets": ALL_LINEARS, "save": ["lm_head", "embed_tokens"]},
        "save-norms": {"r": 8, "targets": ["q_proj", "v_proj"], "save": ["input_layernorm", "norm"]},
    }
    for stage in (1, 2, 3):
        # DeepSpeed's defragment asserts one dtype of all that is trained: peft's own adapters in fp32 end there.
        narrow = {"dtype": "bf16"} if stage == 3 else {}
        for name, lora in ((name, {**lora, **narrow}) for name, lora in saves.items()):
            for at, (model, seq, batch) in enumerate((("tinyllama-1.1b", 1024, 1), ("qwen3-1.7b", 500, 2))):
                yield job("adapters", model, seq, batch, world=8 if at == 0 else 4, rank=at, lora=lora,
                          deepspeed=engine(stage, torch_adam=True), change={"tie_word_embeddings": False},
                          name=f"z{stage}-{name}")
        yield job("adapters", "tinyllama-1.1b", 1024, 1, world=8, lora={**saves["save-head"], **narrow}, checkpoint="full",
                  deepspeed=engine(stage, torch_adam=True), name=f"z{stage}-save-head-full")
    mixed = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    for name, lora in saves.items():
        for policy, dtype in (({}, "bf16"), (mixed, "fp32"), ({**mixed, "wrap": "root"}, "fp32")):
            kind = policy.get("wrap", "mixed" if policy else "plain")
            if name == "save-norms" and kind == "plain":  # A group of fully_shard trains one dtype.
                continue
            for world, rank in ((2, 0), (8, 7)):
                yield job("adapters", "tinyllama-1.1b", 1024, 1, world=world, rank=rank, lora=lora, dtype=dtype,
                          runtime="fsdp2", fsdp=policy, name=f"fsdp-{kind}-{name}-w{world}")


def optimizer():
    rows = [
        ("adamw", "foreach"),
        ("adamw", "for-loop"),
        ("adam", "fused"),
        ("adam", "foreach"),
        ("sgd", "foreach"),
        ("sgd", "fused"),
        ("sgd", "for-loop"),
        ("adagrad", "foreach"),
        ("rmsprop", "foreach"),
        ("adam8bit", None),
    ]
    for model in ("gpt2", "llama-3.2-1b", "qwen2-0.5b", "qwen3-1.7b"):
        for name, how in rows:
            wished = {"name": name, **({"implementation": how} if how else {})}
            if name == "sgd":
                wished["momentum"] = 0.9
            needs = {"needs": "bitsandbytes"} if name == "adam8bit" else {}
            yield job("optimizer", model, 500, 2, optimizer=wished, **needs, name=f"{name}-{how or '8bit'}")
        for name in ("ao_adamw_8bit", "ao_adamw_4bit", "ao_adamw_fp8"):
            yield job("optimizer", model, 500, 2, optimizer={"name": name}, needs="torchao", name=name)
        yield job("optimizer", model, 500, 2, max_grad_norm=1.0, name="clip")
        yield job(
            "optimizer",
            model,
            1024,
            1,
            dtype="fp32",
            autocast="bf16",
            optimizer={"name": "adamw", "implementation": "foreach"},
            name="autocast-foreach",
        )


def loss():
    for model, seq, batch in (
        ("llama-3.2-1b", 1024, 2),
        ("gpt2", 500, 4),
        ("qwen2-0.5b", 2048, 1),
        ("gemma-2-2b", 1024, 1),
        ("mistral-7b", 1000, 2),
    ):
        eager = {"attention": "eager"} if model.startswith("gemma") else {}
        yield job("loss", model, seq, batch, loss="native", **eager, name="native")
        yield job("loss", model, seq, batch, loss="native", checkpoint="full", **eager, name="native-full")
        yield job("loss", model, seq, batch, holds_outputs=True, **eager, name="holds-outputs")
        if model != "gpt2":
            yield job("loss", model, seq, batch, use_cache=True, **eager, name="cache")
            yield job("loss", model, seq, batch, use_cache=True, holds_outputs=True, **eager, name="cache-held")
        yield job("loss", model, seq, batch, grad_accum=3, **eager, name="accum3")
        yield job("loss", model, seq, batch, loop="trainer", grad_accum=2, **eager, name="trainer-accum2")
    for model, seq, batch in (("bloom-560m", 500, 2), ("falcon-7b", 1000, 1), ("falcon-rw-1b", 512, 2), ("falcon-40b", 512, 1),
                              ("gpt2", 500, 2), ("opt-350m", 512, 2)):
        for name, more in (("", {}), ("-autocast", {"dtype": "fp32", "autocast": "bf16"}), ("-eager", {"attention": "eager"})):
            if model.startswith("falcon") and name == "-eager":  # Its own eager attention is not modelled.
                continue
            yield job("loss", model, seq, batch, use_cache=True, holds_outputs=True, **{"attention": None, **more},
                      name="cache-held" + name)
    yield from held_checkpoints()


def held_checkpoints():
    """With the outputs a loop's variable holds the graph: what is bound to reentrant checkpoints, and leaves with gradients."""
    again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    lora = {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}
    for model, seq, batch in (("llama-3.2-1b", 1024, 2), ("qwen2-0.5b", 1000, 1), ("gemma-2-2b", 512, 2)):
        how = {"attention": "eager"} if model.startswith("gemma") else {"attention": None}
        for name, more in (("reentrant", again), ("reentrant-eager", {**again, "attention": "eager"}), ("reentrant-lora", {**again, **lora}),
                           ("full-lora", {"checkpoint": "full", **lora}), ("reentrant-accum2", {**again, "grad_accum": 2})):
            yield job("loss", model, seq, batch, holds_outputs=True, **{**how, **more}, name="held-" + name)



def liger():
    """Liger's releases, one of each way in which its loss holds what it makes: each wants that release installed."""
    for release in ("0.6.1", "0.8.0", "0.8.2", "0.8.5"):
        for model, seq, batch in (("llama-3.2-1b", 1024, 2), ("qwen2-0.5b", 2000, 1), ("mistral-7b", 1000, 2)):
            yield job("liger", model, seq, batch, loss="liger", liger_version=release, name=release)


def cut():
    """cut_cross_entropy's loss, as axolotl's plugin puts it into a model: its fork on PYTHONPATH, at 5f0c7a7."""
    lora = {"r": 16, "targets": ALL_LINEARS}
    packed = {"quantization": "nf4", "double_quant": True, "quant_compute_dtype": "bf16", "quant_storage": "bf16", "kbit_prepare": False}
    for model, seq, batch in (
        ("llama-3.2-1b", 1024, 2),
        ("qwen3-0.6b", 1000, 1),
        ("mistral-7b", 2048, 2),
        ("smollm3-3b", 777, 3),
    ):
        yield job("cut", model, seq, batch, loss="cut")
        yield job("cut", model, seq, batch, loss="cut", lora=lora, checkpoint="full", name="lora-full")
    yield job("cut", "granite-3.3-2b", 1024, 2, loss="cut", name="scaled")
    yield job("cut", "llama-3.2-1b", 1024, 2, device="a100-sxm-80", loss="cut", grad_accum=2, name="a100-accum2")
    yield job("cut", "llama-3.2-1b", 1500, 2, loss="cut", lora={**lora, "dtype": "fp32"}, dtype="bf16", autocast="bf16", checkpoint="full", name="autocast")
    yield job("cut", "qwen2-7b", 2048, 1, loss="cut", lora={**lora, "dtype": "fp32"}, autocast="bf16", checkpoint="full", **packed, name="qlora")
    yield job("cut", "llama-3.2-1b", 1024, 2, loss="cut", ddp={}, world=8, rank=0, name="ddp")
    yield job("cut", "llama-3.2-1b", 1024, 2, loss="cut", deepspeed=engine(2, torch_adam=True), world=8, rank=0, name="z2")
    full = {"checkpoint": "full"}
    for model, seq, batch, world, rank in (("llama-3.2-1b", 1024, 2, 8, 7), ("qwen3-0.6b", 1000, 1, 24, 0), ("mistral-7b", 2048, 2, 64, 40)):
        for name, stage, more, settings in (
            ("z0", 0, {}, {}),
            ("z1", 1, {}, full),
            ("z2", 2, {}, {}),
            ("z2-accum2", 2, {"accum": 2, "clip": 1.0}, full),
        ):
            yield job("cut", model, seq, batch, loss="cut", deepspeed=engine(stage, torch_adam=True, **more), world=world, rank=rank, name=f"{name}-w{world}-r{rank}", **settings)
    shards = {"runtime": "fsdp2", "axolotl": {"fsdp_version": 2}, "mixed_precision": "bf16", "dtype": "bf16", "max_grad_norm": 1.0}
    inside = {"axolotl": {"fsdp_version": 2, "activation_checkpointing": True}, "checkpoint": "nested"}
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("llama-3-8b", 2048, 1, 64, 40)):
        for name, settings in (
            ("fsdp", {"model_init": "device"}),
            ("fsdp-sent", {"model_init": "rank0", **full}),
            ("fsdp-parts", {"model_init": "device", **inside}),
            ("fsdp-accum2", {"model_init": "device", "grad_accum": 2}),
        ):
            policy = {"wrap": "layers+axolotl", "reshard_after_forward": True, "reshard_root": "true"}
            yield job("cut", model, seq, batch, loss="cut", fsdp=policy, world=world, rank=rank, name=f"{name}-w{world}-r{rank}", **{**shards, **settings})
    mixed = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    for model, world, rank, name, policy in (
        ("llama-3.2-1b", 8, 0, "layers", mixed),
        ("llama-3.2-1b", 8, 7, "offload", {**mixed, "cpu_offload": True}),
        ("tinyllama-1.1b", 16, 3, "replicas", {**mixed, "replicate": 2}),
        ("tinyllama-1.1b", 8, 3, "root", {**mixed, "wrap": "root"}),
    ):
        loop = {"optimizer": {"name": "adamw", "implementation": "for-loop"}} if name == "offload" else {}
        yield job("cut", model, 1024, 2, loss="cut", runtime="hsdp" if name == "replicas" else "fsdp2", fsdp=policy, dtype="fp32", world=world, rank=rank, name=f"{name}-w{world}-r{rank}", **loop)
    yield from cut_packed()
    yield from cut_flat()
    yield from cut_pictures()


def cut_packed():
    """cut_cross_entropy over packed weights, as axolotl trains adapters: with its kernels, and without."""
    every = {"r": 16, "targets": ALL_LINEARS, "dropout": 0.05, "dtype": "fp32"}
    nf4 = {"quantization": "nf4", "double_quant": True, "quant_compute_dtype": "bf16", "quant_storage": "bf16"}
    left = {"kbit_prepare": False, "autocast": "bf16", "dtype": "bf16", "checkpoint": "full", "checkpoint_impl": "reentrant", "attention": None, "loss": "cut", "needs": "bitsandbytes"}
    kernels = {"lora_kernels": "qkv,o,mlp"}
    yield job("cut", "mistral-7b", 2048, 1, **nf4, **left, **kernels, lora=every, name="qlora-kernels")
    yield job("cut", "mistral-small-24b", 2048, 1, change={"num_hidden_layers": 3}, **nf4, **left, **kernels, lora=every, name="qlora-kernels")
    yield job("cut", "tinyllama-1.1b", 2048, 2, **nf4, **left, **kernels, lora=every, world=8, rank=3, ddp={}, grad_accum=2, name="qlora-ddp-accum2")
    yield job("cut", "tinyllama-1.1b", 2048, 1, quantization="int8", **left, lora=every, name="int8")
    yield job("cut", "tinyllama-1.1b", 2048, 1, **nf4, **{**left, "checkpoint_impl": "non_reentrant", "autocast": None}, lora={**every, "dtype": "bf16"}, runtime="fsdp2", fsdp={"param_dtype": "bf16", "reduce_dtype": "bf16"}, world=8, rank=0, name="qlora-fsdp")


def cut_flat():
    """FSDP1, whose root has the head and gathers it for the whole forward."""
    orig, again = {"use_orig_params": "true"}, {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    full = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    lora = {"lora": {"r": 16, "targets": ALL_LINEARS}}
    nf4 = {"quantization": "nf4", "double_quant": True, "quant_compute_dtype": "bf16", "quant_storage": "bf16", "kbit_prepare": False, "attention": None, "needs": "bitsandbytes"}
    adapters = {"wrap": "adapters+layers"}
    bf16 = {"param_dtype": "bf16", "reduce_dtype": "bf16", "buffer_dtype": "bf16"}
    for name, model, world, rank, policy, more in (
        ("flat", "tinyllama-1.1b", 8, 0, {}, again),
        ("flat-orig", "qwen3-0.6b", 24, 23, orig, full),
        ("flat-lora", "tinyllama-1.1b", 8, 3, {**orig, **adapters}, {**lora, **again}),
        ("flat-qlora", "tinyllama-1.1b", 8, 0, {**adapters, **bf16}, {**nf4, **lora, **full}),
        ("flat-qlora-again", "tinyllama-1.1b", 64, 40, {**adapters, **bf16}, {**nf4, **lora, **again, "grad_accum": 2}),
    ):
        policy = {"sync_module_states": "true", "backward_prefetch": "none", **policy}
        settings = {"mixed_precision": "bf16", "dtype": "bf16", "model_init": "device", "max_grad_norm": 1.0, **more}
        if "quantization" in settings:
            del settings["model_init"]
        yield job("cut", model, 2048, 1, loss="cut", runtime="fsdp1", fsdp=policy, world=world, rank=rank, accelerate={"fsdp_version": 1}, name=f"{name}-w{world}-r{rank}", **settings)


def cut_pictures():
    """Models that see pictures, of which outputs hold what the tower made."""
    few = {"text_config": {"num_hidden_layers": 3}, "vision_config": {"num_hidden_layers": 3}}
    mixed = {"text_config": {"num_hidden_layers": 4}, "vision_config": {"depth": 3}}
    linears = [f"{part}_proj" for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")]
    adapters = lambda layers: {"r": 16, "targets": [f"language_model.layers.{at}.{one}" for at in layers for one in linears], "dtype": "fp32"}
    trained = {"autocast": "bf16", "dtype": "bf16", "lora_kernels": "qkv,o,mlp", "needs": "bitsandbytes"}
    for model, change, layers, size in (("ministral-3-3b", few, (0, 1, 2), [448, 560]), ("qwen3.5-9b", mixed, (3,), [448, 576])):
        shown = functools.partial(job, "cut", model, 1024, 1, change=change, attention=None, images=1, image_size=size, loss="cut")
        yield shown(name="shown")
        yield shown(name="shown-lora", lora=adapters(layers), checkpoint="full", checkpoint_impl="non_reentrant", **trained)
        yield shown(name="shown-ddp", lora=adapters(layers), **trained, world=8, rank=0, ddp={}, grad_accum=2)


def kernels():
    """What use_liger_kernel puts in place of a model's own operators, all of it and beside other losses."""
    every = {"liger_kernels": "rope,rms_norm,swiglu", "liger_version": "0.8.5"}
    lora = {"r": 16, "targets": ALL_LINEARS}
    for model, seq, batch in (
        ("llama-3.2-1b", 2048, 2),
        ("qwen3-0.6b", 1000, 1),
        ("qwen2-0.5b", 2000, 1),
        ("mistral-7b", 1000, 2),
    ):
        yield job("kernels", model, seq, batch, loss="liger", **every)
        yield job("kernels", model, seq, batch, loss="liger", checkpoint="full", **every, name="full")
        yield job("kernels", model, seq, batch, **every, name="hf-loss")
        yield job("kernels", model, seq, batch, loss="liger", use_cache=True, holds_outputs=True, **every, name="cache-held")
        yield job("kernels", model, seq, batch, loss="liger", lora=lora, checkpoint="full", **every, name="lora-full")
        yield job("kernels", model, seq, batch, loss="liger", lora=lora, dtype="bf16", autocast="bf16", **every, name="lora-autocast")
    for kind in ("rope", "rms_norm", "swiglu"):
        yield job("kernels", "llama-3.2-1b", 1024, 2, **{**every, "liger_kernels": kind}, name=kind)
    yield job("kernels", "llama-3.2-1b", 1024, 2, device="a100-sxm-80", loss="liger", **every, name="a100")
    yield job("kernels", "tinyllama-1.1b", 500, 3, device="rtx4090", loss="liger", **every, name="rtx4090")
    yield job("kernels", "llama-3.2-1b", 1024, 2, attention="eager", **every, name="eager")
    yield job("kernels", "llama-3.2-1b", 1024, 2, attention="flash", loss="liger", grad_accum=2, **every, name="flash-accum2")


def allocator():
    confs = [
        "expandable_segments:True",
        "max_split_size_mb:64",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.8",
        "expandable_segments:True,roundup_power2_divisions:8",
        "max_split_size_mb:200,max_non_split_rounding_mb:200",
    ]
    for model, seq, batch, way in (
        ("gpt2", 1024, 2, {}),
        ("llama-3.2-1b", 2048, 2, {}),
        ("qwen2.5-1.5b", 1000, 3, {"checkpoint": "full"}),
        ("llama-3-8b", 2048, 1, {"checkpoint": "full"}),
        ("qwen3-0.6b", 500, 4, {}),
    ):
        for conf in confs:
            yield job(
                "allocator", model, seq, batch, **way, allocator_conf=conf, name=conf.replace(":", "").replace(",", "-")
            )


def capacity():
    """Of what the plain job reserves, some are enough, some take retries, some are too little."""
    needs = (
        ("llama-3.2-1b", 2048, 2, {}, (23, 22, 21, 20, 19, 17, 12)),
        ("gpt2-large", 1024, 4, {}, (34, 30, 28, 26, 24, 20)),
        ("qwen2.5-1.5b", 2048, 2, {"checkpoint": "full"}, (28, 26, 24, 22, 20, 18)),
        ("llama-3-8b", 2048, 1, {"checkpoint": "full"}, (40, 36, 32, 28, 24)),
    )
    for model, seq, batch, way, sizes in needs:
        for gib in sizes:
            for conf in ({}, {"allocator_conf": "expandable_segments:True"}):
                yield job(
                    "capacity",
                    model,
                    seq,
                    batch,
                    **way,
                    **conf,
                    capacity=gib << 30,
                    name=f"{gib}g" + ("-expandable" if conf else ""),
                )


def device():
    for name in ("a100-sxm-80", "a100-sxm-40", "h200-sxm", "rtx4090"):
        for model, seq, batch in (
            ("gpt2", 500, 1),
            ("llama-3.2-1b", 1024, 2),
            ("qwen2-0.5b", 4096, 1),
            ("mistral-7b", 1000, 1),
            ("qwen3-0.6b", 128, 4),
            ("gpt2-medium", 1024, 2),
        ):
            yield job("device", model, seq, batch, device=name, attention=None, name=name)
        yield job(
            "device",
            "llama-3.2-1b",
            2048,
            1,
            device=name,
            dtype="fp32",
            autocast="bf16",
            attention=None,
            name=name + "-autocast",
        )


def ddp():
    for world in (2, 8, 64):
        yield job("ddp", "gpt2", 500, 2, world=world, name=f"w{world}")
        yield job("ddp", "llama-3.2-1b", 1024, 1, world=world, rank=world - 1, name=f"w{world}")
    for model in ("qwen2-0.5b", "tinyllama-1.1b", "gpt2-medium", "qwen3-0.6b"):
        yield job("ddp", model, 500, 2, world=4, name="w4")
        yield job("ddp", model, 500, 2, world=4, grad_accum=2, name="w4-accum2")
        yield job("ddp", model, 1000, 2, world=4, checkpoint="full", name="w4-full")
        yield job("ddp", model, 500, 1, world=4, dtype="fp32", autocast="bf16", name="w4-autocast")
    # As transformers' Trainer wraps a model that it does not checkpoint, and with each other argument.
    for model in ("gpt2", "qwen2-0.5b", "tinyllama-1.1b"):
        yield job("ddp", model, 500, 2, world=4, ddp={"find_unused_parameters": True}, name="w4-unused")
        yield job("ddp", model, 500, 2, world=4, ddp={"find_unused_parameters": True}, grad_accum=2, name="w4-unused-accum2")
        yield job("ddp", model, 500, 2, world=4, ddp={"bucket_cap_mb": 100}, name="w4-cap100")
    yield job("ddp", "gpt2-medium", 500, 2, world=4, ddp={"broadcast_buffers": False}, name="w4-own-buffers")
    yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, ddp={"find_unused_parameters": True, "bucket_cap_mb": 5}, dtype="fp32", autocast="bf16", name="w8-unused-cap5-autocast")
    yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, lora={"r": 8, "targets": ["q_proj", "v_proj"]}, name="w8-lora")
    yield from ddp_copies()
    yield from ddp_views()
    yield from ddp_static()
    yield from ddp_hooks()
    yield from ddp_redundant()


def ddp_copies():
    """Adapters in fp32 beside trained copies in bf16: each dtype has buckets of its own."""
    ends = {"r": 16, "targets": ALL_LINEARS, "save": ["embed_tokens", "lm_head"]}
    some = {"r": 8, "targets": ["q_proj", "v_proj"], "save": ["lm_head"]}
    norms = {"r": 8, "targets": ["q_proj", "v_proj"], "save": ["input_layernorm", "norm"]}
    views = {"gradient_as_bucket_view": True}
    again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    for name, model, lora, ddp, more in (
        ("ends", "tinyllama-1.1b", ends, {}, {}),
        ("ends-full-accum2", "tinyllama-1.1b", ends, {}, {"checkpoint": "full", "grad_accum": 2}),
        ("head-views", "tinyllama-1.1b", some, views, {}),
        ("head-unused", "tinyllama-1.1b", some, {"find_unused_parameters": True}, {}),
        ("head-cap5", "tinyllama-1.1b", some, {"bucket_cap_mb": 5}, {"max_grad_norm": 1.0}),
        ("norms", "qwen2-0.5b", norms, {}, {}),
    ):
        yield job("ddp", model, 1000, 1, world=8, rank=0, lora=lora, ddp=ddp, autocast="bf16", dtype="bf16", name=f"w8-two-dtypes-{name}", **more)
    yield job("ddp", "tinyllama-1.1b", 2048, 1, world=8, rank=0, ddp={}, quantization="int8", kbit_prepare=False, lora=ends, autocast="bf16", dtype="bf16", attention=None, needs="bitsandbytes", name="w8-two-dtypes-int8", **again)


def ddp_views():
    views = {"gradient_as_bucket_view": True}
    for model in ("gpt2", "qwen2-0.5b", "tinyllama-1.1b"):
        yield job("ddp", model, 500, 2, world=4, ddp=views, name="w4-views")
        yield job("ddp", model, 500, 2, world=4, ddp=views, grad_accum=2, name="w4-views-accum2")
        yield job("ddp", model, 500, 2, world=4, ddp=views, zero_grad_set_to_none=False, name="w4-views-zeros")
    yield job("ddp", "qwen3-0.6b", 500, 2, world=4, ddp=views, zero_grad_set_to_none=False, grad_accum=2, name="w4-views-zeros-accum2")
    yield job("ddp", "qwen3-0.6b", 500, 2, world=4, ddp=views, max_grad_norm=1.0, name="w4-views-clip")
    yield job("ddp", "gpt2-medium", 500, 2, world=4, ddp={**views, "find_unused_parameters": True}, name="w4-views-unused")
    yield job("ddp", "gpt2-medium", 500, 2, world=4, zero_grad_set_to_none=False, name="w4-zeros")
    yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, ddp={**views, "bucket_cap_mb": 100}, dtype="fp32", autocast="bf16", name="w8-views-cap100-autocast")
    yield job("ddp", "llama-3.2-1b", 1024, 1, world=8, ddp=views, optimizer={"name": "adamw", "implementation": "foreach"}, max_grad_norm=1.0, checkpoint="full", name="w8-views-foreach-full")
    yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, ddp=views, lora={"r": 8, "targets": ["q_proj", "v_proj"]}, name="w8-views-lora")


def ddp_static():
    """Buckets are made anew before the third step, which is the settled one."""
    static = {"static_graph": True}
    for model in ("gpt2", "qwen2-0.5b", "tinyllama-1.1b"):
        yield job("ddp", model, 500, 2, world=4, ddp=static, steps=3, name="w4-static")
        yield job("ddp", model, 1000, 2, world=4, ddp=static, steps=3, checkpoint="full", checkpoint_impl="reentrant", name="w4-static-reentrant")
    yield job("ddp", "gpt2-medium", 500, 2, world=4, ddp={**static, "gradient_as_bucket_view": True}, steps=3, name="w4-static-views")
    yield job("ddp", "gpt2-medium", 500, 2, world=4, ddp={**static, "find_unused_parameters": True}, steps=3, name="w4-static-unused")
    yield job("ddp", "qwen3-0.6b", 500, 2, world=4, ddp={**static, "bucket_cap_mb": 100}, steps=3, dtype="fp32", autocast="bf16", name="w4-static-cap100-autocast")
    yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, ddp=static, steps=3, holds_outputs=True, name="w8-static-holds")
    for extra, name in ((static, "static-cache"), ({}, "cache")):
        yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, ddp=extra, steps=3, holds_outputs=True, use_cache=True, name="w8-" + name)


def ddp_hooks():
    """Nobody waits for what a hook sends: it is let go of once NCCL's watchdog, which looks every 100 ms, has seen it
    arrive. Pending work is seen when a phase ends: that is a device a backward behind its host. The step behind the one
    that makes buckets anew is the settled one. Buckets are fewer than the 32 streams on which hooks go on: of more, one
    shares NCCL's, and what it used waits for the buffers' broadcast."""

    def hooked(model, hook, name, dtype="fp32", **ddp):
        cast = {"dtype": "fp32", "autocast": "bf16"} if dtype == "fp32" else {}
        steps = 4 if ddp.get("static_graph") else 3
        if model != "gpt2":
            ddp["bucket_cap_mb"] = 200
        return job("ddp", model, 500, 2, world=4, ddp={"comm_hook": hook, **ddp}, events="pending", steps=steps, name=name, **cast)

    for model in ("gpt2", "qwen2-0.5b", "tinyllama-1.1b"):
        for hook in ("bf16", "fp16"):
            yield hooked(model, hook, f"w4-hook-{hook}-static", static_graph=True)
            yield hooked(model, hook, f"w4-hook-{hook}")
    views = {"gradient_as_bucket_view": True}
    yield hooked("gpt2-medium", "bf16", "w4-hook-bf16-of-bf16", dtype="bf16")
    yield hooked("gpt2-medium", "fp16", "w4-hook-fp16-of-bf16-static", dtype="bf16", static_graph=True)
    yield hooked("gpt2-medium", "bf16", "w4-hook-bf16-views-static", static_graph=True, **views)
    yield hooked("gpt2-medium", "bf16", "w4-hook-bf16-views", **views)
    yield hooked("qwen3-0.6b", "bf16", "w4-hook-bf16-static", static_graph=True)
    yield hooked("qwen3-0.6b", "bf16", "w4-hook-bf16-unused", find_unused_parameters=True)
    yield hooked("gpt2", "bf16", "w4-hook-bf16-no-buffers", broadcast_buffers=False, bucket_cap_mb=100)


def ddp_redundant():
    """ZeroRedundancyOptimizer: rank 0 has the largest weight, others have more of the small ones."""
    shares = {"zero_redundancy": True}
    for model, world in (("gpt2", 4), ("qwen2-0.5b", 8), ("tinyllama-1.1b", 32), ("llama-3.2-1b", 256)):
        for rank in (0, world // 2, world - 1):
            yield job("ddp", model, 500, 2, world=world, rank=rank, ddp=shares, name=f"w{world}-r{rank}-redundant")
    views = {**shares, "gradient_as_bucket_view": True}
    yield job("ddp", "gpt2-medium", 500, 2, world=4, rank=3, ddp=views, optimizer={"name": "adamw", "implementation": "foreach"}, max_grad_norm=1.0, name="w4-r3-redundant-views-foreach")
    yield job("ddp", "qwen3-0.6b", 500, 2, world=8, rank=5, ddp=shares, optimizer={"name": "sgd", "momentum": 0.9}, grad_accum=2, name="w8-r5-redundant-sgd")
    yield job("ddp", "llama-3.2-1b", 1024, 2, world=8, rank=2, ddp=shares, lora={"r": 8, "targets": ["q_proj", "v_proj"]}, name="w8-r2-redundant-lora")
    yield job("ddp", "gpt2", 500, 2, world=8, rank=1, ddp=shares, optimizer={"name": "adagrad", "implementation": "foreach"}, name="w8-r1-redundant-adagrad")


def engine(stage, *, torch_adam=False, dtype="bf16", accum=None, clip=None, zero=None, **more):
    made = {
        "zero_optimization": {"stage": stage, **(zero or {})},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, **({"torch_adam": True} if torch_adam else {})}},
        **more,
    }
    if dtype != "fp32":
        made[dtype] = {"enabled": True, **({"initial_scale_power": 8} if dtype == "fp16" else {})}
    if accum:
        made["gradient_accumulation_steps"] = accum
    if clip:
        made["gradient_clipping"] = clip
    return made


def zero_rows(stage):
    """name, world, zero_optimization's keys, engine's keys"""
    yield "plain", 8, {}, {}
    yield "torch-adam", 8, {}, {"torch_adam": True}
    yield "w2", 2, {}, {}
    yield "w64", 64, {}, {}
    yield "accum2", 4, {}, {"accum": 2}
    yield "clip", 8, {}, {"clip": 1.0}
    yield "fp16", 4, {}, {"dtype": "fp16"}
    if stage == 0:
        return
    yield "overlap", 8, {"overlap_comm": True}, {}
    yield "no-overlap", 8, {"overlap_comm": False}, {}
    yield "no-overlap-torch-adam", 4, {"overlap_comm": False}, {"torch_adam": True}
    yield "bucket-5e7", 8, {"reduce_bucket_size": 50_000_000}, {}
    yield "bucket-12345677", 4, {"reduce_bucket_size": 12_345_677}, {}
    yield "fp32", 4, {}, {"dtype": "fp32"}
    yield "accum3-fp32", 4, {}, {"accum": 3, "data_types": {"grad_accum_dtype": "fp32"}}
    if stage == 3:
        yield "persist-0", 8, {"stage3_param_persistence_threshold": 0}, {}
        yield "persist-1e7", 8, {"stage3_param_persistence_threshold": 10_000_000}, {}
        yield "prefetch-0", 8, {"stage3_prefetch_bucket_size": 0}, {}
        yield "prefetch-2e8", 8, {"stage3_prefetch_bucket_size": 200_000_000}, {}
        yield "live-1e8", 8, {"stage3_max_live_parameters": 100_000_000, "stage3_max_reuse_distance": 100_000_000}, {}
        yield "hpz", 16, {"zero_hpz_partition_size": 8}, {}
        yield "qwz", 8, {"zero_quantized_weights": True}, {}
        yield "groups-1e8", 4, {"sub_group_size": 100_000_000}, {}
        yield "round-robin", 4, {"reduce_scatter": False}, {}
    else:
        yield "round-robin", 4, {"round_robin_gradients": True}, {}
        yield "all-reduce", 4, {"reduce_scatter": False}, {}
        yield "separate", 4, {"contiguous_gradients": False}, {}


def zero(stage):
    stratum = f"zero{stage}"
    models = (("llama-3.2-1b", 1024, 1), ("qwen2-0.5b", 1000, 2), ("gpt2-medium", 500, 2))
    for name, world, keys, more in zero_rows(stage):
        for at, (model, seq, batch) in enumerate(models):
            if at and name in ("w64", "clip", "bucket-5e7", "groups-1e8", "live-1e8"):
                continue
            made = engine(stage, zero=keys, **more)
            attention = (
                {"attention": "mem-efficient" if "gpt2" not in model else "flash"}
                if more.get("dtype") == "fp32"
                else {}
            )
            if more.get("dtype") == "fp32":
                attention = {"attention": None}
            ends = ("done", "pending") if stage else ("done",)
            for events in ends if at == 0 else ("done",):
                yield job(
                    stratum,
                    model,
                    seq,
                    batch,
                    world=world,
                    rank=at % world,
                    deepspeed=made,
                    events=events,
                    **attention,
                    name=name + ("" if events == "done" else "-pending"),
                )
    for way in (
        {"checkpoint": "full"},
        {"checkpoint": "full", "checkpoint_impl": "reentrant"},
        {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}},
        {"lora": {"r": 16, "targets": ALL_LINEARS}, "checkpoint": "full"},
    ):
        name = "-".join("lora" if k == "lora" else v for k, v in way.items())
        yield job(stratum, "llama-3.2-1b", 2048, 1, world=8, deepspeed=engine(stage), **way, name=name)
        yield job(stratum, "qwen3-0.6b", 500, 2, world=4, rank=3, deepspeed=engine(stage), **way, name=name)
    yield job(stratum, "llama-3-8b", 2048, 1, world=8, deepspeed=engine(stage), checkpoint="full", name="8-layers")
    for model, seq, world, rank in (("llama-3.2-1b", 1024, 8, 0), ("gpt2-medium", 500, 4, 3)):
        for name, accum, held in (("cache", None, False), ("cache-held", None, True), ("cache-held-accum2", 2, True)):
            yield job(stratum, model, seq, 2, world=world, rank=rank, deepspeed=engine(stage, accum=accum), use_cache=True,
                      holds_outputs=held, name=name)
    if stage == 3:
        for events in ("done", "pending"):
            yield job(
                stratum,
                "llama-3-8b",
                2048,
                1,
                whole=True,
                world=8,
                events=events,
                deepspeed=engine(stage),
                name="whole-" + events,
            )
        yield job(stratum, "mixtral-8x7b", 512, 1, world=8, deepspeed=engine(stage), name="experts")
        yield job(
            stratum, "llama-3.2-1b", 1024, 1, world=8, deepspeed=engine(stage), attention=None, name="default-attention"
        )


def timed():
    """Between the two ends: frees are over when their events would be, on the dry device's own clock."""
    for stage in (1, 2, 3):
        for model, seq, batch in (("llama-3.2-1b", 1024, 1), ("qwen2-0.5b", 1000, 2), ("gpt2-medium", 500, 2)):
            overlap = {"overlap_comm": True} if stage < 3 else {}
            made = engine(stage, zero=overlap)
            yield job("timed", model, seq, batch, world=8, deepspeed=made, events="timed", name=f"z{stage}")
    more = {"world": 8, "events": "timed"}
    yield job("timed", "llama-3.2-1b", 4096, 2, deepspeed=engine(3), checkpoint="full", name="z3-full", **more)
    prefetch = engine(3, zero={"stage3_prefetch_bucket_size": 0})
    yield job("timed", "llama-3.2-1b", 1024, 1, deepspeed=prefetch, name="z3-prefetch-0", **more)
    yield job("timed", "llama-3-8b", 2048, 1, whole=True, deepspeed=engine(3), name="z3-whole", **more)


def heldout():
    """Measured once the rules were there: nothing in these was looked at before."""
    J, E = functools.partial(job, "heldout"), engine
    yield from (
        J("gemma-3-1b",1536,2,attention=None),
        J("gemma-2b",900,1,attention=None),
        J("phi-3-mini",700,1,attention=None,checkpoint="full"),
        J("opt-1.3b",640,2,attention=None),
        J("pythia-1b",777,2,attention=None),
        J("phi-2",600,1,attention=None),
        J("qwen2.5-0.5b",1800,2,world=6,rank=5,deepspeed=E(2)),
        J("qwen2.5-3b",640,2,world=12,rank=7,deepspeed=E(3)),
        J("qwen3-0.6b",1333,1,world=3,rank=1,deepspeed=E(1,clip=0.5)),
        J("tinyllama-1.1b",1500,2,world=32,rank=31,deepspeed=E(3,accum=4),checkpoint="full"),
        J("gpt2-large",700,2,world=4,rank=2,deepspeed=E(2,dtype="fp16")),
        J("qwen2.5-0.5b",444,5,world=2,rank=1),
        J("llama-3.2-1b",3000,1,optimizer={"name":"sgd","implementation":"foreach","momentum":0.9},checkpoint="full"),
        J("qwen3-0.6b", 2222, 1, lora={"r":64,"targets":["q_proj","o_proj","down_proj"]},world=4,rank=3,deepspeed=E(2)),
        J("pythia-1b",512,2,attention=None,world=8,rank=3,deepspeed=E(3)),
        J("qwen2-0.5b",1111,2,world=5,rank=4,deepspeed=E(1,accum=2)),
    )


def offload():
    host = {"device": "cpu", "pin_memory": True}
    rows = [
        (1, {"offload_optimizer": host}),
        (2, {"offload_optimizer": host}),
        (2, {"offload_optimizer": {"device": "cpu"}}),
        (3, {"offload_optimizer": host}),
        (3, {"offload_param": host}),
        (3, {"offload_optimizer": host, "offload_param": host}),
        (2, {"offload_optimizer": host, "overlap_comm": True}),
        (3, {"offload_optimizer": {**host, "ratio": 0.5}}),
    ]
    for at, (stage, keys) in enumerate(rows):
        for model, seq in (("qwen2-0.5b", 1000), ("gpt2", 500)):
            for world, accum in ((1, None), (4, 2)):
                yield job(
                    "offload",
                    model,
                    seq,
                    1,
                    world=world,
                    deepspeed=engine(stage, zero=keys, accum=accum),
                    name=f"z{stage}-{at}-w{world}" + (f"-accum{accum}" if accum else ""),
                )


FLAT_MODELS = (
    ("gpt2", 1024, 1),
    ("llama-3.2-1b", 1024, 2),
    ("tinyllama-1.1b", 1000, 1),
    ("qwen3-0.6b", 512, 3),
    ("llama-3-8b", 2048, 1),
    ("qwen2-0.5b", 500, 2),
)
FLAT_RANKS = ((8, 0), (24, 11), (256, 255))


def fsdp1():
    """FullyShardedDataParallel."""
    mixed = {"param_dtype": "bf16", "reduce_dtype": "bf16"}

    def one(model, seq, batch, world, rank, policy, name, **more):
        settings = {"dtype": "fp32" if "param_dtype" in policy else "bf16", **more}
        return job("fsdp1", model, seq, batch, runtime="fsdp1", fsdp=policy, world=world, rank=rank,
                   name=f"{name}-w{world}-r{rank}", **settings)

    orig = {"use_orig_params": "true"}
    for model, seq, batch in FLAT_MODELS:
        for world, rank in FLAT_RANKS:
            yield one(model, seq, batch, world, rank, {}, "plain")
            yield one(model, seq, batch, world, rank, {**mixed, **orig}, "mixed-orig")
    kept = {"reshard_after_forward": False}
    ways = {
        "orig": (orig, {}),
        "mixed": (mixed, {}),
        "fp32-reduce": ({"param_dtype": "bf16", "reduce_dtype": "fp32"}, {}),
        "fp32-reduce-orig": ({"param_dtype": "bf16", "reduce_dtype": "fp32", **orig}, {}),
        "kept": (kept, {}),
        "mixed-kept-orig": ({**mixed, **kept, **orig}, {}),
        "root": ({"wrap": "root"}, {}),
        "mixed-root-orig": ({"wrap": "root", **mixed, **orig}, {}),
        "post": ({**mixed, "backward_prefetch": "post"}, {}),
        "no-prefetch": ({**mixed, "backward_prefetch": "none"}, {}),
        "forward-prefetch": ({**mixed, **orig, "forward_prefetch": "true"}, {}),
        "unlimited": ({**mixed, **orig, "limit_all_gathers": "false"}, {}),
        "accum3": ({}, {"grad_accum": 3}),
        "mixed-accum3-orig": ({**mixed, **orig}, {"grad_accum": 3}),
        "mixed-accum3-kept": ({**mixed, **kept}, {"grad_accum": 3}),
        "mixed-accum3-every": ({**mixed, "gradient_sync": "every"}, {"grad_accum": 3}),
        "full": ({**mixed, **orig}, {"checkpoint": "full"}),
        "replicas": ({"replicate": 2}, {}),
        "mixed-replicas-orig": ({**mixed, **orig, "replicate": 2}, {}),
        "mixed-replicas-kept": ({**mixed, **kept, "replicate": 2}, {}),
        "foreach": ({**mixed, **orig}, {"optimizer": {"name": "adamw", "implementation": "foreach"}}),
        "loop": (mixed, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "sgd": ({**mixed, **orig}, {"optimizer": {"name": "sgd", "momentum": 0.9, "implementation": "foreach"}}),
        "device": (mixed, {"model_init": "device"}),
        "mlps": ({**mixed, "wrap": "LlamaMLP+LlamaDecoderLayer"}, {}),
    }
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23)):
        for name, (policy, more) in ways.items():
            if name == "mlps" and model == "qwen3-0.6b":
                policy = {**mixed, "wrap": "Qwen3MLP+Qwen3DecoderLayer"}
            yield one(model, seq, batch, world, rank, policy, name, **more)
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23),
                                           ("llama-3-8b", 2048, 1, 8, 7), ("gpt2", 500, 2, 64, 40)):
        for name, policy, more in (("size-20m", {**mixed, **orig, "wrap": "size:20000000"}, {"checkpoint": "full"}),
                                   ("size-100m", {**mixed, "wrap": "size:100000000"}, {}),
                                   ("size-1m", {"wrap": "size:1000000"}, {"grad_accum": 2})):
            yield one(model, seq, batch, world, rank, policy, name, **more)
    for name, more in (("mlps-full", {"checkpoint": "full"}), ("mlps-frozen", {"freeze": ["*self_attn*", "*layernorm*"]}),
                       ("mlps-again", {"checkpoint": "full", "checkpoint_impl": "reentrant"})):
        classes = {**mixed, **orig, "wrap": "LlamaMLP+LlamaDecoderLayer"}
        yield one("tinyllama-1.1b", 512, 2, 8, 0, classes, name, **more)
    # Few tokens: the peak is where the root's gradient is reduced.
    wide = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    for name, policy, more in (("wide-accum2-orig", {**wide, **orig}, {"grad_accum": 2}), ("wide-accum3", wide, {"grad_accum": 3}),
                               ("ahead", {**mixed, **orig, "forward_prefetch": "true"}, {})):
        yield one("llama-3-8b", 128, 1, 8, 5, policy, name, **more)


def accelerated():
    """What accelerate's prepare makes of a model under version 1 of FSDP: autocast, fp32 outputs, shards in fp32."""

    def one(model, seq, batch, world, rank, policy, name, accelerate=None, **more):
        policy = {"sync_module_states": "true", "backward_prefetch": "none", **policy}
        settings = {"mixed_precision": "bf16", "dtype": "bf16", **more}
        return job("fsdp1-accelerate", model, seq, batch, runtime="fsdp1", fsdp=policy, world=world, rank=rank,
                   accelerate=accelerate or {"fsdp_version": 1}, name=f"{name}-w{world}-r{rank}", **settings)

    orig = {"use_orig_params": "true"}
    for model, seq, batch in (*FLAT_MODELS, ("gemma-2b", 512, 1)):
        attention = {"attention": "eager"} if model.startswith("gemma") else {}
        for world, rank in FLAT_RANKS:
            yield one(model, seq, batch, world, rank, orig, "usual", max_grad_norm=1.0, **attention)
            yield one(model, seq, batch, world, rank, {}, "flat-fp32", dtype="fp32", **attention)
    kept = {"reshard_after_forward": False}
    full = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    offload = {"cpu_offload": True}
    inside = {"fsdp_version": 1, "activation_checkpointing": True}
    clips = {"max_grad_norm": 1.0}
    ways = {
        "flat": ({}, {}),
        "fp32": (orig, {"dtype": "fp32"}),
        "clip": ({}, clips),
        "fp32-clip": (orig, {"dtype": "fp32", **clips}),
        "no-sync": ({**orig, "sync_module_states": "false"}, {}),
        "pre": ({**orig, "backward_prefetch": "pre"}, {}),
        "post": ({"backward_prefetch": "post"}, {}),
        "forward-prefetch": ({**orig, "forward_prefetch": "true", "backward_prefetch": "pre"}, {}),
        "unlimited": ({**orig, "limit_all_gathers": "false"}, {}),
        "kept": (kept, {}),
        "kept-orig": ({**kept, **orig}, {}),
        "no-wrap": ({**orig, "wrap": "root"}, {}),
        "accum3": (orig, {"grad_accum": 3, **clips}),
        "accum3-flat": ({}, {"grad_accum": 3}),
        "accum2-kept": ({**kept, **orig}, {"grad_accum": 2}),
        "inside": (orig, {"accelerate": inside, **full, **clips}),
        "inside-flat": ({"backward_prefetch": "pre"}, {"accelerate": inside, **full}),
        "full": (orig, full),
        "reentrant": (orig, again),
        "reentrant-flat": ({"backward_prefetch": "pre"}, {**again, **clips}),
        "reentrant-kept": ({**kept, **orig}, again),
        "reentrant-accum2": (orig, {**again, "grad_accum": 2}),
        "foreach": (orig, {"optimizer": {"name": "adamw", "implementation": "foreach"}, **clips}),
        "loop": ({}, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "sgd": (orig, {"optimizer": {"name": "sgd", "momentum": 0.9, "implementation": "foreach"}}),
        "decay": (orig, {"param_groups": "decay", "optimizer": {"name": "adamw", "weight_decay": 0.1}}),
        "no-precision": (orig, {"mixed_precision": None, **clips}),
        "no-precision-flat": ({}, {"mixed_precision": None}),
        "held-outputs": (orig, {"holds_outputs": True}),
        "cache": (orig, {"use_cache": True}),
        "cache-held": ({}, {"use_cache": True, "holds_outputs": True}),
        "cache-held-accum2": (orig, {"use_cache": True, "holds_outputs": True, "grad_accum": 2}),
        "default-attention": (orig, {"attention": None}),
        "offload": ({**orig, **offload}, {}),
        "offload-flat": (offload, clips),
        "offload-clip": ({**orig, **offload}, {"dtype": "fp32", **clips}),
        "offload-full": ({**orig, **offload, "backward_prefetch": "pre"}, {"accelerate": inside, **full}),
        "offload-accum2": ({**orig, **offload}, {"grad_accum": 2}),
        "offload-kept": ({**orig, **offload, **kept}, {}),
        "offload-no-precision": ({**orig, **offload}, {"mixed_precision": None}),
        "offload-no-precision-flat": (offload, {"mixed_precision": None}),
        "frozen": (orig, {"freeze": ["*mlp*"]}),
        "frozen-root": (orig, {"freeze": {"gpt2": ["*wte*", "*wpe*", "*ln_f*"], "qwen3-0.6b": ["*embed*", "model.norm*"],
                                          "tinyllama-1.1b": ["*embed*", "model.norm*", "lm_head*"]}}),
        "lora": (orig, {"dtype": "fp32", "lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}),
        "lora-clip": (orig, {"dtype": "fp32", "lora": {"r": 16, "targets": ALL_LINEARS}, **full, **clips}),
        "lora-bf16": (orig, {"lora": {"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "bf16"}}),
    }
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23),
                                           ("gpt2", 500, 2, 64, 40)):
        for name, (policy, more) in ways.items():
            if model == "gpt2" and "lora" in more:
                continue
            more = {k: v for k, v in more.items() if v is not None or k == "attention"}
            if isinstance(more.get("freeze"), dict):
                more["freeze"] = more["freeze"][model]
            settled = one(model, seq, batch, world, rank, policy, name, **more)
            if "no-precision" in name:
                del settled["training"]["mixed_precision"]
            yield settled


def prepared_by_axolotl():
    """What axolotl's own preparation makes of a model under version 2 of FSDP: shards in the dtype that was loaded."""

    def one(model, seq, batch, world, rank, policy, name, **more):
        policy = {"wrap": "layers+axolotl", "reshard_after_forward": True, "reshard_root": "true", **policy}
        settings = {"mixed_precision": "bf16", "dtype": "bf16", "model_init": "device", **more}
        settings.setdefault("axolotl", {"fsdp_version": 2})
        if "lora" in more:  # loaders/adapter.py, load_adapter
            settings["input_require_grads"] = True
        return job("axolotl", model, seq, batch, runtime="fsdp2", fsdp=policy, world=world, rank=rank,
                   name=f"{name}-w{world}-r{rank}", **settings)

    clips = {"max_grad_norm": 1.0}
    full = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    sent = {"model_init": "rank0"}
    ways = {
        "usual": ({}, clips),
        "sent": ({}, {**sent, **clips}),
        "reentrant": ({}, {**again, **clips}),
        "full-sent": ({}, {**full, **sent}),
        "kept": ({"reshard_after_forward": False, "reshard_root": "false"}, {}),
        "accum2": ({}, {"grad_accum": 2, **clips}),
        "offload": ({"cpu_offload": True}, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "offload-sent": ({"cpu_offload": True}, {**sent, "optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "fused": ({}, {"optimizer": {"name": "adamw", "implementation": "fused"}, **clips}),
    }
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("llama-3-8b", 2048, 1, 64, 40)):
        for name, (policy, more) in ways.items():
            yield one(model, seq, batch, world, rank, policy, name, **more)

    inside = {"axolotl": {"fsdp_version": 2, "activation_checkpointing": True}, "checkpoint": "nested"}
    ways = {
        "parts": ({}, {**inside, **clips}),
        "parts-sent": ({}, {**inside, **sent, **clips}),
        "parts-kept": ({"reshard_after_forward": False, "reshard_root": "false"}, inside),
        "parts-accum2": ({}, {**inside, "grad_accum": 2}),
    }
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("llama-3-8b", 2048, 1, 64, 40)):
        for name, (policy, more) in ways.items():
            yield one(model, seq, batch, world, rank, policy, name, **more)

    for model, more in (
        ("qwen2-0.5b", {}),
        ("mistral-7b", {}),
        ("gemma-2b", {}),
        ("gemma-2-2b", {"attention": "eager"}),
        ("gemma-3-1b", {"attention": "eager"}),
        ("granite-3.3-2b", {}),
    ):
        yield one(model, 1024, 1, 8, 3, {}, "parts", **inside, **clips, **more)
    liger = {"loss": "liger", "liger_kernels": "rope,rms_norm,swiglu", "liger_version": "0.8.5"}
    yield one("qwen2-0.5b", 1024, 1, 8, 3, {}, "parts-liger", **inside, **clips, **liger)

    # Each factor has a group of its own.
    each = {"wrap": "adapters+layers+axolotl"}
    every, some = {"lora": {"r": 16, "targets": ALL_LINEARS}}, {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}
    ways = {
        "lora": (each, {**every, **clips}),
        "lora-some": (each, {**some, **clips}),
        "lora-sent": (each, {**every, **sent, **clips}),
        "lora-reentrant": (each, {**every, **again, **clips}),
        "lora-full": (each, {**every, **full}),
        "lora-full-some": (each, {**some, **full, **sent}),
        "lora-kept": ({**each, "reshard_after_forward": False, "reshard_root": "false"}, every),
        "lora-accum2": (each, {**every, "grad_accum": 2, **clips}),
        "lora-dropout": (each, {"lora": {**every["lora"], "dropout": 0.05}, **full}),
        "lora-bf16": (each, {"lora": {**every["lora"], "dtype": "bf16"}, **full}),
        "lora-offload": ({**each, "cpu_offload": True}, {**every, "optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "lora-fused": (each, {**every, "optimizer": {"name": "adamw", "implementation": "fused"}, **clips}),
    }
    kernels = {"lora_kernels": "qkv,o,mlp", "needs": "bitsandbytes"}
    ways["lora-kernels"] = each, {**every, **kernels, **clips}
    ways["lora-kernels-reentrant"] = each, {**every, **kernels, **again, **clips}
    ways["lora-kernels-full-sent"] = each, {**every, **kernels, **full, **sent}
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("llama-3-8b", 2048, 1, 64, 40)):
        for name, (policy, more) in ways.items():
            yield one(model, seq, batch, world, rank, policy, name, **more)

    def flat(model, seq, batch, world, rank, policy, name, **more):
        """Version 1: accelerate's prepare, of a model that is on the device before."""
        policy = {"sync_module_states": "true", "backward_prefetch": "none", **policy}
        settings = {"mixed_precision": "bf16", "dtype": "bf16", "model_init": "device", **clips, **more}
        return job("axolotl", model, seq, batch, runtime="fsdp1", fsdp=policy, world=world, rank=rank,
                   accelerate={"fsdp_version": 1}, name=f"flat-{name}-w{world}-r{rank}", **settings)

    orig = {"use_orig_params": "true"}
    adapters = {"wrap": "adapters+layers"}
    lora = {"lora": {"r": 16, "targets": ALL_LINEARS}}
    ways = {
        "usual": (orig, {}),
        "flat": ({}, again),
        "offload": ({"cpu_offload": True}, {**again, "optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "lora": ({**orig, **adapters}, {**lora, **again}),
        "lora-flat": (adapters, lora),
    }
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("llama-3-8b", 2048, 1, 64, 40)):
        for name, (policy, more) in ways.items():
            yield flat(model, seq, batch, world, rank, policy, name, **more)


def adapted_by_peft():
    """As transformers' Trainer prepares adapters under FSDP1: peft chooses the units. Packed weights are flattened too."""

    def one(model, seq, batch, world, rank, policy, name, **more):
        policy = {"wrap": "adapters+layers", "sync_module_states": "true", "backward_prefetch": "none", **policy}
        settings = {"mixed_precision": "bf16", "dtype": "bf16", "max_grad_norm": 1.0, **more}
        return job("fsdp1-accelerate", model, seq, batch, runtime="fsdp1", fsdp=policy, world=world, rank=rank,
                   accelerate={"fsdp_version": 1}, name=f"peft-{name}-w{world}-r{rank}", **settings)

    orig, pre = {"use_orig_params": "true"}, {"backward_prefetch": "pre"}
    some, every = {"r": 8, "targets": ["q_proj", "v_proj"]}, {"r": 16, "targets": ALL_LINEARS}
    full = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    ways = {
        "orig": (orig, {"lora": every}),
        "flat": ({}, {"lora": some}),
        "flat-fp32": (pre, {"lora": every, "dtype": "fp32"}),
        "orig-full": (orig, {"lora": every, **full}),
        "orig-again": (orig, {"lora": some, **again}),
        "orig-accum": (orig, {"lora": some, **full, "grad_accum": 2}),
        "orig-save": (orig, {"lora": {**some, "save": ["lm_head"]}, "change": {"tie_word_embeddings": False}}),
    }
    for name, (policy, more) in ways.items():
        for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23),
                                               ("llama-3-8b", 2048, 1, 64, 40)):
            yield one(model, seq, batch, world, rank, policy, name, **more)
    bf16 = {"param_dtype": "bf16", "reduce_dtype": "bf16", "buffer_dtype": "bf16"}
    nf4 = {"quantization": "nf4", "quant_compute_dtype": "bf16", "quant_storage": "bf16", "kbit_prepare": False,
           "lora": every, "attention": None, "needs": "bitsandbytes"}
    ways = {
        "packed": (bf16, full),
        "packed-again": ({**bf16, **pre}, again),
        "packed-orig": ({**bf16, **orig}, {**full, "double_quant": True}),
        "packed-accum": (bf16, {**full, "grad_accum": 2}),
    }
    for name, (policy, more) in ways.items():
        for model, seq, world, rank in (("tinyllama-1.1b", 2048, 8, 0), ("llama-3-8b", 2048, 2, 1), ("llama-3-8b", 1600, 64, 63)):
            yield one(model, seq, 1, world, rank, policy, name, **nf4, **more)


def whole_flats():
    """NO_SHARD, one rank, mixtures, fp16 and other optimizers under FullyShardedDataParallel."""
    orig, clips = {"use_orig_params": "true"}, {"max_grad_norm": 1.0}
    given = {"sync_module_states": "true", "backward_prefetch": "none"}
    full = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    mixed = {"param_dtype": "bf16", "reduce_dtype": "bf16"}

    def one(stratum, model, seq, batch, world, rank, policy, name, **more):
        told = {"accelerate": {"fsdp_version": 1}} if stratum == "fsdp1-accelerate" else {}
        policy = {**(given if told else {}), **policy, **({"shard": 1} if name.startswith("whole") and world > 1 else {})}
        settings = {"dtype": "fp32" if "param_dtype" in policy else "bf16", **({"mixed_precision": "bf16"} if told else {}), **more}
        return job(stratum, model, seq, batch, runtime="fsdp1", fsdp=policy, world=world, rank=rank,
                   name=f"{name}-w{world}-r{rank}", **told, **settings)

    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 1, 0), ("qwen3-0.6b", 1000, 2, 1, 0), ("gpt2", 500, 2, 8, 5),
                                           ("llama-3.2-1b", 1024, 1, 1, 0)):
        again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
        for name, policy, more in (("", orig, clips), ("-flat", {}, {}), ("-full", orig, {**full, **clips}), ("-again", {}, again),
                                   ("-fp32", orig, {"dtype": "fp32", **clips}), ("-accum", {}, {"grad_accum": 3, **clips}),
                                   ("-offload", {**orig, "cpu_offload": True}, clips),
                                   ("-foreach", orig, {"optimizer": {"name": "adamw", "implementation": "foreach"}, **clips})):
            yield one("fsdp1-accelerate", model, seq, batch, world, rank, policy, "whole" + name, **more)
        for name, policy, more in (("", {}, {}), ("-mixed", mixed, clips), ("-mixed-orig", {**mixed, **orig}, full),
                                   ("-every", {**mixed, "gradient_sync": "every"}, {"grad_accum": 2}),
                                   ("-root", {**mixed, "wrap": "root"}, {})):
            yield one("fsdp1", model, seq, batch, world, rank, policy, "whole" + name, **more)
    lora = {"lora": {"r": 16, "targets": ALL_LINEARS}}
    for model, seq in (("tinyllama-1.1b", 512), ("llama-3-8b", 1024)):
        yield one("fsdp1-accelerate", model, seq, 1, 1, 0, {**orig, "wrap": "adapters+layers"}, "whole-peft", **lora, **full, **clips)
    for model, layers in (("qwen3-30b-a3b", 4), ("mixtral-8x7b", 2), ("qwen1.5-moe-a2.7b", 3)):
        few = {"change": {"num_hidden_layers": layers}, "attention": None}
        for world, rank in ((8, 0), (24, 23), (64, 40)):
            for name, policy, more in (("", orig, clips), ("-full", orig, {**full, "seq": 2048}), ("-flat", {}, {"grad_accum": 2})):
                seq = more.pop("seq", 1024)
                yield one("fsdp1-accelerate", model, seq, 1, world, rank, policy, "experts" + name, **more, **few)
            yield one("fsdp1", model, 512, 2, world, rank, mixed, "experts", **few)
        yield one("fsdp1-accelerate", model, 512, 1, 8, 3, orig, "experts-loop", experts="eager", **few)
    for kind in ("adam8bit", "adafactor", "lion", "lion8bit"):
        optimizer = {"optimizer": {"name": kind}, "needs": "bitsandbytes"} if kind != "adafactor" else {"optimizer": {"name": kind}}
        for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("gpt2", 500, 2, 1, 0)):
            for name, policy in (("", orig), ("-flat", {})):
                yield one("fsdp1-accelerate", model, seq, batch, world, rank, policy, kind + name, **clips, **optimizer)
    liger = {"loss": "liger", "liger_version": "0.8.5"}
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("llama-3.2-1b", 2048, 2, 24, 23), ("llama-3-8b", 1024, 1, 64, 40),
                                           ("llama-3.2-1b", 1024, 1, 1, 0)):
        for name, policy, more in (("", orig, clips), ("-full", {}, {**full, "grad_accum": 2})):
            yield one("fsdp1-accelerate", model, seq, batch, world, rank, policy, "liger" + name, **liger, **more)
    fp16 = {"mixed_precision": "fp16", "dtype": "fp32"}
    foreach = {"optimizer": {"name": "adamw", "implementation": "foreach"}}
    for model, seq, batch, world, rank in (("tinyllama-1.1b", 512, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 23), ("gpt2", 500, 2, 1, 0)):
        for name, policy, more in (("", orig, {**foreach, **clips}), ("-flat", {}, {}), ("-loaded", orig, {**full, "dtype": "fp16"}),
                                   ("-accum", {}, {"grad_accum": 2, **foreach, **clips})):
            yield one("fsdp1-accelerate", model, seq, batch, world, rank, policy, "fp16" + name, **{**fp16, **more})


def fsdp():
    """fully_shard. Models of odd widths leave uneven shards; the last ranks of a large world may have none at all."""
    mixed = {"param_dtype": "bf16", "reduce_dtype": "fp32"}

    def one(model, seq, batch, world, rank, policy, name, **more):
        dtype = "fp32" if "param_dtype" in policy else "bf16"
        settings = {"dtype": dtype, **more}
        return job(
            "fsdp",
            model,
            seq,
            batch,
            runtime="fsdp2",
            fsdp=policy,
            world=world,
            rank=rank,
            name=f"{name}-w{world}-r{rank}",
            **settings,
        )

    for model, seq, batch in (
        ("llama-3.2-1b", 1024, 2),
        ("tinyllama-1.1b", 1000, 1),
        ("qwen3-0.6b", 512, 3),
        ("gpt2", 1024, 1),
        ("llama-3-8b", 2048, 1),
        ("qwen2-0.5b", 500, 2),
    ):
        for world, rank in ((2, 0), (8, 7), (24, 11), (256, 255)):
            yield one(model, seq, batch, world, rank, {}, "plain")
            yield one(model, seq, batch, world, rank, mixed, "mixed")
    ways = {
        "kept": ({"reshard_after_forward": False}, {}),
        "resharded-root": ({"reshard_after_forward": True, "reshard_root": True}, {}),
        "mixed-resharded-root": ({**mixed, "reshard_root": True}, {}),
        "mixed-kept": ({**mixed, "reshard_after_forward": False}, {}),
        "root": ({"wrap": "root"}, {}),
        "mixed-root": ({"wrap": "root", **mixed}, {}),
        "bf16-reduce": ({"param_dtype": "bf16"}, {}),
        "fp32-reduce": ({"reduce_dtype": "fp32"}, {}),
        "full": ({}, {"checkpoint": "full"}),
        "mixed-full": (mixed, {"checkpoint": "full"}),
        "accum3": ({}, {"grad_accum": 3}),
        "mixed-accum3": (mixed, {"grad_accum": 3}),
        "mixed-accum3-every": ({**mixed, "gradient_sync": "every"}, {"grad_accum": 3}),
        "foreach": (mixed, {"optimizer": {"name": "adamw", "implementation": "foreach"}}),
        "loop": (mixed, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "sgd": (mixed, {"optimizer": {"name": "sgd", "momentum": 0.9, "implementation": "foreach"}}),
        "device": ({}, {"model_init": "device"}),
        "mixed-device": (mixed, {"model_init": "device"}),
        "mixed-host": (mixed, {"model_init": "host"}),
        "default-attention": (mixed, {"attention": None}),
        "expandable": (mixed, {"allocator_conf": "expandable_segments:True"}),
        "mlps": ({**mixed, "wrap": "LlamaMLP+LlamaDecoderLayer"}, {}),
        "lora": ({}, {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}),
        "mixed-lora": (mixed, {"lora": {"r": 16, "targets": ALL_LINEARS}}),
        "lora-bf16": ({}, {"lora": {"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "bf16"}}),
        "frozen": (mixed, {"freeze": ["*mlp*"]}),
        "clip": (mixed, {"max_grad_norm": 1.0}),
        "clip-bf16": ({}, {"max_grad_norm": 1.0}),
    }
    for model, seq, batch, world, rank in (
        ("llama-3.2-1b", 1024, 2, 8, 0),
        ("qwen3-0.6b", 1000, 2, 24, 23),
        ("tinyllama-1.1b", 512, 2, 4, 2),
    ):
        for name, (policy, more) in ways.items():
            if name == "mlps" and model == "qwen3-0.6b":
                policy = {**mixed, "wrap": "Qwen3MLP+Qwen3DecoderLayer"}
            yield one(model, seq, batch, world, rank, policy, name, **more)
    for world, rank in ((4, 0), (24, 23)):
        for policy in ({"wrap": "ends"}, {"wrap": "ends", **mixed}, {"wrap": "ends", "reshard_after_forward": False}):
            name = "-".join(("ends", *policy.keys() - {"wrap", "reduce_dtype"}))
            yield one("tinyllama-1.1b", 1000, 2, world, rank, policy, name)
            yield one("llama-3-8b", 1024, 1, world, rank, policy, name)
    titan = {"wrap": "ends", "gradient_sync": "every", **mixed}
    for world, rank, replicate in ((8, 0, 1), (24, 23, 1), (64, 9, 2)):
        for name, policy in (("always", {"reshard_tail": True}), ("never", {"reshard_after_forward": False})):
            policy = {**titan, **policy, **({"replicate": replicate} if replicate > 1 else {})}
            yield one("llama-3-8b", 2048, 1, world, rank, policy, f"titan-{name}", checkpoint="full", max_grad_norm=1.0)
            yield one("tinyllama-1.1b", 1000, 2, world, rank, policy, f"titan-{name}", grad_accum=2)
    older = {"wrap": "layers", "gradient_sync": "every", "reshard_root": True, "reshard_last": False, **mixed}
    for world, rank, replicate in ((8, 0, 1), (24, 23, 1), (64, 9, 2)):
        policy = {**older, **({"replicate": replicate} if replicate > 1 else {})}
        yield one("llama-3-8b", 2048, 1, world, rank, policy, "titan-0.1", checkpoint="full", max_grad_norm=1.0)
        yield one("tinyllama-1.1b", 1000, 2, world, rank, policy, "titan-0.1", grad_accum=2)
    offload = {
        "offload": ({}, {}),
        "mixed-offload": (mixed, {}),
        "mixed-offload-full": (mixed, {"checkpoint": "full"}),
        "mixed-offload-kept": ({**mixed, "reshard_after_forward": False}, {}),
        "mixed-offload-root": ({**mixed, "wrap": "root"}, {}),
        "mixed-offload-accum2": (mixed, {"grad_accum": 2}),
        "mixed-offload-accum2-every": ({**mixed, "gradient_sync": "every"}, {"grad_accum": 2}),
        "mixed-offload-loop": (mixed, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "mixed-offload-sgd": (mixed, {"optimizer": {"name": "sgd", "momentum": 0.9, "implementation": "for-loop"}}),
        "mixed-offload-lora": (mixed, {"lora": {"r": 16, "targets": ALL_LINEARS}}),
        "mixed-offload-host": (mixed, {"model_init": "host"}),
        "offload-device": ({}, {"model_init": "device"}),
        "mixed-offload-replicas": ({**mixed, "replicate": 2}, {}),
    }
    for model, seq, batch, world, rank in (("qwen3-0.6b", 1000, 2, 24, 23), ("gpt2", 500, 2, 8, 0)):
        for name, (policy, more) in offload.items():
            if model == "gpt2" and "lora" in more:
                continue
            yield one(model, seq, batch, world, rank, {**policy, "cpu_offload": True}, name, **more)
    for name in ("offload", "mixed-offload", "mixed-offload-full", "mixed-offload-kept"):
        policy, more = offload[name]
        yield one("llama-3.2-1b", 1024, 2, 8, 0, {**policy, "cpu_offload": True}, name, **more)
    sent = {"wrap": "layers+ends", "cpu_offload": True}
    for world, rank in ((8, 0), (8, 7), (24, 5)):
        for model in ("qwen3-0.6b", "gpt2"):
            yield one(model, 500, 2, world, rank, sent, "rank0-offload", model_init="rank0")
            yield one(model, 500, 2, world, rank, {**sent, **mixed}, "mixed-rank0-offload", model_init="rank0")
            yield one(model, 500, 2, world, rank, {**mixed, "cpu_offload": True}, "mixed-offload-clip", max_grad_norm=1.0)
        replicas = {**sent, **mixed, "replicate": 2}
        yield one("qwen3-0.6b", 500, 2, world, rank, replicas, "mixed-rank0-offload-replicas", model_init="rank0")
    for replicate, (world, rank) in itertools.product((1, 2), ((8, 0), (8, 7), (24, 5))):
        policy = {"wrap": "layers+ends", "replicate": replicate}
        name = "rank0-replicas" if replicate > 1 else "rank0"
        yield one("qwen3-0.6b", 500, 2, world, rank, policy, name, model_init="rank0")
        yield one("gpt2", 500, 2, world, rank, policy, name, model_init="rank0")
    held = {"wrap": "layers+ends+held"}
    for model, seq, batch in (("llama-3-8b", 1024, 1), ("tinyllama-1.1b", 512, 2), ("qwen3-0.6b", 500, 2), ("gpt2", 500, 2)):
        for world, rank in ((8, 0), (24, 11), (256, 255)):
            yield one(model, seq, batch, world, rank, {**held, **mixed}, "mixed-held-ends", model_init="host")
        yield one(model, seq, batch, 8, 7, held, "held-ends", model_init="host")
        yield one(model, seq, batch, 64, 9, {**held, **mixed, "replicate": 2}, "mixed-held-ends-replicas", model_init="host")
    both, by_operator = {"forward_prefetch": "2", "backward_prefetch": "2"}, "keep:linear/2+scaled_dot_product_attention"
    q_v = {"r": 8, "targets": ["q_proj", "v_proj"], "dora": True}
    asked = {
        "forward-prefetch": ({**mixed, "forward_prefetch": "2"}, {}),
        "backward-prefetch": ({**mixed, "backward_prefetch": "2"}, {}),
        "prefetch-ends-full": ({**mixed, **both, "wrap": "ends"}, {"checkpoint": "full"}),
        "prefetch-kept-accum2": ({**both, "reshard_after_forward": False}, {"grad_accum": 2}),
        "ignored-mlp": ({"ignored": "*mlp*"}, {"freeze": ["*mlp*"]}),
        "ignored-device": ({"ignored": "*embed*"}, {"freeze": ["*embed*"], "model_init": "device"}),
        "by-operator": (mixed, {"checkpoint": by_operator}),
        "by-operator-ends": ({**mixed, "wrap": "ends"}, {"checkpoint": by_operator, "preserve_rng_state": False}),
        "dora": ({}, {"lora": q_v}),
        "dora-bf16": ({}, {"lora": {**q_v, "dtype": "bf16"}}),
        "dora-mixed": (mixed, {"lora": q_v}),
        "dora-bf16-full": ({}, {"lora": {**q_v, "dtype": "bf16"}, "checkpoint": "full"}),
    }
    for name, (policy, more) in asked.items():
        for model, seq, batch, world, rank in (("llama-3.2-1b", 1024, 2, 8, 0), ("tinyllama-1.1b", 1000, 1, 64, 63),
                                               ("qwen3-0.6b", 500, 3, 24, 11)):
            if name == "ignored-device" and model != "tinyllama-1.1b":
                continue
            yield one(model, seq, batch, world, rank, policy, name, **more)
    yield from reentrant_shards(one, mixed, both)
    yield from encoder_decoders(one, mixed)
    yield from wide_tables(one, mixed)
    for model, seq, world, rank in (("qwen3-0.6b", 1000, 24, 23), ("gpt2", 500, 8, 0)):
        for optimizer, how in (("adagrad", "foreach"), ("adagrad", "for-loop"), ("rmsprop", "foreach"), ("rmsprop", "for-loop"),
                               ("adafactor", None), ("adam8bit", None), ("lion", None)):
            wished = {"name": optimizer, **({"implementation": how} if how else {})}
            needs = {"needs": "bitsandbytes"} if optimizer in ("adam8bit", "lion") else {}
            yield one(model, seq, 2, world, rank, mixed, f"mixed-{optimizer}-{how or 'own'}", optimizer=wished, **needs)
    for model, seq, world, rank in (("llama-3.2-1b", 1024, 8, 0), ("qwen3-0.6b", 1000, 24, 23)):
        for name, policy, more in (("cache", {}, {}), ("mixed-cache-held", mixed, {"holds_outputs": True}),
                                   ("mixed-cache-accum2", mixed, {"holds_outputs": True, "grad_accum": 2})):
            yield one(model, seq, 2, world, rank, policy, name, use_cache=True, **more)


def reentrant_shards(one, mixed, both):
    """Checkpoints whose recomputation runs the groups' forward hooks again, as transformers 4's Trainer makes them."""
    again = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
    q_v, every = {"r": 8, "targets": ["q_proj", "v_proj"]}, {"r": 16, "targets": ALL_LINEARS}
    accelerate = {"wrap": "layers+ends", "param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"}
    ways = {
        "plain": ({}, {}),
        "mixed": (mixed, {}),
        "kept": ({**mixed, "reshard_after_forward": False}, {}),
        "to-two": ({"reshard_after_forward": 2}, {}),
        "ends": ({"wrap": "ends", **mixed}, {}),
        "accelerate": (accelerate, {"model_init": "host", "max_grad_norm": 1.0}),
        "accum3": ({}, {"grad_accum": 3}),
        "mixed-accum2-every": ({**mixed, "gradient_sync": "every"}, {"grad_accum": 2}),
        "forward-prefetch": ({**mixed, "forward_prefetch": "2"}, {}),
        "backward-prefetch": ({"backward_prefetch": "2"}, {}),
        "prefetch-ends-accum2": ({**both, "wrap": "ends"}, {"grad_accum": 2}),
        "prefetch-kept": ({**mixed, **both, "reshard_after_forward": False}, {}),
        "replicas": ({**mixed, "replicate": 2}, {}),
        "offload": ({**mixed, "cpu_offload": True}, {}),
        "lora": ({}, {"lora": q_v}),
        "mixed-lora": (mixed, {"lora": every}),
    }
    for name, (policy, more) in ways.items():
        for model, seq, batch, world, rank in (("llama-3.2-1b", 1024, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 24, 11),
                                               ("gpt2", 1024, 1, 256, 255), ("tinyllama-1.1b", 512, 2, 2, 1)):
            if model == "gpt2" and "lora" in more or policy.get("replicate") == world:
                continue
            yield one(model, seq, batch, world, rank, policy, f"reentrant-{name}", **again, **more)


def wide_tables(one, mixed):
    """Families whose rotary tables are in fp32: fully_shard casts what each layer is given."""
    ways = {
        "mixed": (mixed, {}),
        "mixed-full": (mixed, {"checkpoint": "full"}),
        "mixed-again": (mixed, {"checkpoint": "full", "checkpoint_impl": "reentrant"}),
        "mixed-eager": (mixed, {"attention": "eager"}),
        "mixed-root": ({**mixed, "wrap": "root"}, {}),
    }
    for name, (policy, more) in ways.items():
        for model, seq, world, rank in (("olmo-2-1b", 500, 8, 0), ("ernie-4.5-0.3b", 1000, 24, 11)):
            yield one(model, seq, 2, world, rank, policy, f"wide-{name}", **more)


def encoder_decoders(one, mixed):
    """Two stacks, the second of which is given what the first has made."""
    ways = {
        "plain": ({}, {}),
        "mixed": (mixed, {}),
        "mixed-full": (mixed, {"checkpoint": "full"}),
        "mixed-kept-accum2": ({**mixed, "reshard_after_forward": False}, {"grad_accum": 2}),
        "reentrant": ({}, {"checkpoint": "full", "checkpoint_impl": "reentrant"}),
    }
    for name, (policy, more) in ways.items():
        for model, seq, target, world, rank in (("t5-small", 512, 128, 8, 0), ("t5-base", 512, 200, 64, 63),
                                                ("whisper-tiny", 1500, 100, 24, 11), ("whisper-small", 1500, 448, 8, 7)):
            how = {"attention": "eager"} if model.startswith("t5") else {}
            yield one(model, seq, 2, world, rank, policy, f"two-stacks-{name}", target_seq=target, **how, **more)


def trl_heads():
    """TRL's own head, which reads the weight of a module that nobody calls."""
    mixed = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    accelerate = {"wrap": "layers+ends", "param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"}
    ways = {
        "plain": ({}, {}),
        "mixed": (mixed, {}),
        "accelerate": (accelerate, {"model_init": "rank0", "max_grad_norm": 1.0, "checkpoint": "full"}),
        "ends-accum2": ({**mixed, "wrap": "layers+ends"}, {"grad_accum": 2}),
        "kept": ({**mixed, "reshard_after_forward": False}, {}),
        "lora": ({}, {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}, "checkpoint": "full"}),
        "replicas": ({**accelerate, "replicate": 2}, {"model_init": "host"}),
    }
    for name, (policy, more) in ways.items():
        for model, seq, batch, world, rank in (("llama-3-8b", 1024, 2, 8, 0), ("qwen3-0.6b", 1000, 2, 64, 31), ("tinyllama-1.1b", 512, 4, 256, 255)):
            settings = {"dtype": "fp32" if "param_dtype" in policy else "bf16", **more}
            yield job("trl", model, seq, batch, runtime="fsdp2", fsdp=policy, world=world, rank=rank, loss="trl",
                      name=f"{name}-w{world}-r{rank}", **settings)


def offloaded_activations():
    """TRL's activation_offloading around checkpointed layers: what else is saved goes to the host and comes back."""
    mixed = {"dtype": "fp32", "autocast": "bf16"}
    ways = {
        "again": {},
        "autocast-again": mixed,
        "lora-again": {"lora": {"r": 16, "targets": ALL_LINEARS}},
        "trl-again": {"loss": "trl"},
        "trl-autocast-again": {"loss": "trl", **mixed},
        "fp32-again": {"dtype": "fp32", "attention": "mem-efficient"},
        "accum-again": {"grad_accum": 2},
        "ddp-again": {"world": 4},
    }
    shapes = {"llama-3.2-1b": (1024, 2), "gpt2": (1024, 2), "qwen3-0.6b": (1000, 1), "qwen2-0.5b": (512, 3), "tinyllama-1.1b": (512, 4)}
    for (at, (name, more)), (model, (seq, batch)) in itertools.product(enumerate(ways.items()), shapes.items()):
        both = model in ("llama-3.2-1b", "gpt2")
        if name == "fp32-again" and model != "gpt2":  # No kernel takes grouped heads in fp32.
            continue
        if model == "gpt2":
            if "loss" in more:  # TRL's head has no gpt2.
                continue
            more = {**more, **({"lora": {"r": 16, "targets": ["c_attn", "c_proj", "c_fc"]}} if "lora" in more else {})}
        for how in ("streams", "single-stream") if both else ("streams",) if at < 4 else ():
            yield job("activations", model, seq, batch, name=f"{name}-{how}", activation_offloading=how,
                      **{"checkpoint": "full", "checkpoint_impl": "non_reentrant", **more})


FEW = {"text_config": {"num_hidden_layers": 4}, "vision_config": {"num_hidden_layers": 4}}
FEW_BLOCKS = {"num_hidden_layers": 4, "vision_config": {"depth": 4}}
CROSSING = {"text_config": {"num_hidden_layers": 6, "cross_attention_layers": [1, 4]},
            "vision_config": {"num_hidden_layers": 6, "num_global_layers": 2, "intermediate_layers_indices": [1, 3, 4], "vision_output_dim": 5120}}
LABELS = {"id2label": {str(i): str(i) for i in range(10)}}
TOWERS = {  # A model, a length that its picture fits into, what is changed of its config, what is said besides.
    "llava-1.5-7b": (700, FEW, {"freeze": ["model.vision_tower.encoder.layers.3.*", "model.vision_tower.post_layernorm.*"]}),
    "gemma-3-4b": (400, FEW, {}),
    "internvl3-1b": (400, FEW, {}),
    "llama-4-scout": (300, FEW, {}),
    "qwen2-vl-2b": (300, FEW_BLOCKS, {"image_size": [280, 448]}),
    "qwen2.5-vl-3b": (300, {**FEW_BLOCKS, "vision_config": {"depth": 4, "fullatt_block_indexes": [1, 3]}}, {"image_size": [280, 448]}),
    "qwen3-vl-2b": (300, {"text_config": {"num_hidden_layers": 4}, "vision_config": {"depth": 6, "deepstack_visual_indexes": [1, 3, 5]}},
                    {"image_size": [320, 448]}),
    "mistral-small-3.1-24b": (300, FEW, {"image_size": [280, 448]}),
}
CLASSIFIERS = {
    "vit-base": (197, {"num_hidden_layers": 4}, {}),
    "clip-vit-large": (257, {"model_type": "clip", "architectures": ["CLIPForImageClassification"], "text_config": {"model_type": "clip_text_model"},
                             "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                                               "num_hidden_layers": 4, "num_attention_heads": 16, "image_size": 224, "patch_size": 14}, **LABELS},
                       {"freeze": ["vision_model.post_layernorm.*"]}),
    "siglip-so400m": (729, {"model_type": "siglip", "architectures": ["SiglipForImageClassification"],
                            "text_config": {"model_type": "siglip_text_model"},
                            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                                              "num_hidden_layers": 4, "num_attention_heads": 16, "image_size": 384, "patch_size": 14,
                                              "vision_use_head": False}, **LABELS}, {}),
}


def tower_of(model):
    """Beginnings of names: the tower's, the projector's."""
    if model.startswith("qwen"):
        places = ["model.visual.pos_embed.*"] if model.startswith("qwen3") else []
        return ["model.visual.*"], ["model.visual.patch_embed.*", "model.visual.blocks.*", *places]
    if model.startswith("llama-4"):
        return ["vision_model.*", "multi_modal_projector.*"], ["vision_model.*"]
    return ["model.vision_tower.*", "model.multi_modal_projector.*"], ["model.vision_tower.*"]


def pictures():
    """Models with towers, and classifiers of pictures, under fully_shard."""
    mixed = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    accelerate = {"wrap": "layers+ends", "param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "bf16"}
    lora = {"lora": {"r": 8, "targets": "text"}, "freeze": []}
    ways = {
        "plain": ({}, {}),
        "mixed": (mixed, {}),
        "mixed-full": (mixed, {"checkpoint": "full"}),
        "kept-accum2": ({**mixed, "reshard_after_forward": False}, {"grad_accum": 2}),
        "root": ({**mixed, "wrap": "root"}, {}),
        "ends": ({**mixed, "wrap": "layers+ends"}, {}),
        "accelerate": (accelerate, {"model_init": "rank0", "max_grad_norm": 1.0}),
        "frozen-tower": (mixed, {"freeze": 0}),
        "frozen-tower-full": ({}, {"freeze": 1, "checkpoint": "full"}),
        "lora": ({}, lora),
        "replicas": ({**mixed, "replicate": 2}, {}),
        "device": ({}, {"model_init": "device"}),
    }
    ranks = itertools.cycle(((8, 0), (64, 31), (256, 255), (24, 11)))
    for model, (seq, change, said) in {**TOWERS, **CLASSIFIERS}.items():
        for name, (policy, more) in ways.items():
            alone = model in CLASSIFIERS
            if alone and ("ends" in policy.get("wrap", "") or "freeze" in more):
                continue
            if model in ("llava-1.5-7b", "gemma-3-4b") and name == "accelerate":  # It stops at a class that is not there.
                continue
            world, rank = next(ranks)
            more = {**said, **more}
            if isinstance(more.get("freeze"), int):
                more["freeze"] = tower_of(model)[more["freeze"]]
            if "lora" in more:
                text = "language_model.model" if model.startswith("llama-4") else "language_model"
                more["lora"] = {"r": 8, "targets": [f"{text}.layers.{layer}.self_attn.{one}_proj" for layer in range(4) for one in "qv"]}
            if "param_dtype" in policy:
                more["dtype"] = "fp32"
            if not alone:
                more["images"] = 1
            yield job("pictures", model, seq, 2, change=change, attention=None, runtime="fsdp2", fsdp=policy, world=world, rank=rank,
                      name=f"{name}-w{world}-r{rank}", **more)


def factory_pictures():
    """Beside a tower LLaMA-Factory checkpoints layers of which something is trained, which make what they are given a leaf."""
    for model in ("llava-1.5-7b", "gemma-3-4b", "internvl3-1b", "qwen2.5-vl-3b", "qwen3-vl-2b"):
        seq, change, said = TOWERS[model]
        seen = change["vision_config"].get("depth") or change["vision_config"]["num_hidden_layers"]
        text = {"checkpoint": "groups:" + ",".join(str(seen + layer) for layer in range(4)), "layers_require_grads": True}
        one = functools.partial(job, "factory-pictures", model, seq, 2, change=change, attention=None, images=1)
        lora = {"r": 8, "targets": [f"language_model.layers.{layer}.self_attn.{one}_proj" for layer in range(4) for one in "qv"]}
        for form in ("reentrant", "non_reentrant"):
            more = {**said, **text, "checkpoint_impl": form}
            yield one(name=f"lora-{form}", **{**more, "lora": lora, "freeze": []})
            yield one(name=f"full-{form}", **{**more, "freeze": tower_of(model)[0]})
            yield one(name=f"full-{form}-accum2", grad_accum=2, max_grad_norm=1.0, **{**more, "freeze": tower_of(model)[0]})
        yield one(name="lora-autocast", autocast="bf16", dtype="bf16", checkpoint_impl="reentrant", **{**said, **text, "lora": lora, "freeze": []})


def factory():
    """The same without a tower: what stands between words and layers has no gradient, and ZeRO-3 fetches no words for backward."""
    text = {"checkpoint": "groups:0,1,2,3", "layers_require_grads": True, "max_grad_norm": 1.0}
    for model, targets in (("qwen2.5-0.5b", ["q_proj", "v_proj"]), ("gpt2", ["c_attn"]), ("granite-3.1-2b", ["q_proj", "v_proj"])):
        change = {"n_layer" if model == "gpt2" else "num_hidden_layers": 4}
        one = functools.partial(job, "factory", model, 500, 2, change=change, attention=None, lora={"r": 8, "targets": targets}, **text)
        for form in ("reentrant", "non_reentrant"):
            yield one(name=f"lora-{form}", checkpoint_impl=form)
            yield one(name=f"lora-{form}-zero3", checkpoint_impl=form, world=8, rank=3, deepspeed=engine(3), model_init="host")
            yield one(name=f"lora-{form}-zero2", checkpoint_impl=form, world=8, rank=3, deepspeed=engine(2))


def single_pictures():
    """One picture at a time, whose class token takes its gradient as a part of another."""
    for model in ("vit-base", "internvl3-1b"):
        seq, change, said = {**TOWERS, **CLASSIFIERS}[model]
        one = functools.partial(job, "pictures", model, seq, 1, change=change, attention=None, **said, **({} if model in CLASSIFIERS else {"images": 1}))
        for stage in range(4):
            yield one(world=8, rank=3, deepspeed=engine(stage), name=f"single-zero{stage}")
        yield one(world=8, rank=3, deepspeed=engine(2, accum=2), name="single-zero2-accum2")
        yield one(world=8, rank=3, deepspeed=engine(3, accum=2), name="single-zero3-accum2")
        yield one(world=8, rank=3, runtime="fsdp2", name="single-fsdp2")
        yield one(world=8, rank=3, runtime="fsdp2", dtype="fp32", fsdp={"param_dtype": "bf16", "reduce_dtype": "fp32"}, grad_accum=2, name="single-fsdp2-mixed")
    seq, change, _ = CLASSIFIERS["vit-base"]
    for name, policy in {"": {}, "-orig": {"use_orig_params": "true"}}.items():
        yield job("pictures", "vit-base", seq, 1, change=change, attention=None, world=8, rank=3, runtime="fsdp1", fsdp=policy, grad_accum=2,
                  name=f"single-fsdp1{name}")


def padded_pictures():
    """gemma4 with its towers on one GPU, and under data parallelism: no sound in the batch."""
    sound = ["model.audio_tower.*", "model.embed_audio.*"]
    few = lambda slide, layers, **more: {  # noqa: E731
        "text_config": {"num_hidden_layers": layers, **more,
                        "layer_types": [f"{'sliding' if (at + 1) % (slide + 1) else 'full'}_attention" for at in range(layers)]},
        "vision_config": {"num_hidden_layers": 4}}
    tower = ["model.vision_tower.*"]
    ways = {
        "all": {},
        "full": {"checkpoint": "full"},
        "frozen-tower": {"freeze": tower},
        "frozen-full": {"freeze": tower, "checkpoint": "full", "micro_batch": 2},
        "lora": {"lora": {"r": 8, "targets": [f"language_model.layers.{at}.self_attn.q_proj" for at in range(6)]}, "micro_batch": 2},
        "accum2": {"freeze": tower, "grad_accum": 2},
    }
    for model, change in (("gemma-4-e2b", few(4, 10, num_kv_shared_layers=4)), ("gemma-4-e4b", few(5, 12, num_kv_shared_layers=4)),
                          ("gemma-4-31b", few(5, 6)), ("gemma-4-26b-a4b", few(5, 6))):
        heard = sound if "-e" in model else []
        for name, more in ways.items():
            batch = more.get("micro_batch", 1)
            said = {key: value for key, value in more.items() if key != "micro_batch"}
            frozen = [] if "lora" in said else [*said.pop("freeze", []), *heard]
            size = [672, 960] if name == "accum2" else [768, 768]  # Of as many patches as may be, and of fewer.
            yield job("pictures", model, 600, batch, change=change, attention=None, dtype="bf16", images=1, image_size=size,
                      name=f"padded-{name}", **({"freeze": frozen} if frozen else {}), **said)


def convolved():
    """deberta-v2 with a convolution beside its first layer."""
    for model, seq, batch in (("deberta-v2-large-japanese", 512, 4), ("deberta-v3-small", 333, 3)):
        convolution = {"change": {"conv_kernel_size": 5, "conv_groups": 4}} if "v3" in model else {}
        one = functools.partial(job, "families", model, seq, batch, attention=None, whole=True, **convolution)
        yield one(name="convolved")
        yield one(checkpoint="full", name="convolved-full")
        yield one(model_init="host", dtype="fp32", autocast="bf16", name="convolved-host-autocast")
        yield one(world=8, rank=3, deepspeed=engine(2), name="convolved-zero2")
        yield one(world=8, rank=3, deepspeed=engine(3), model_init="host", name="convolved-zero3")


def contrasted():
    """clip and siglip, whose loss compares all texts of a batch with all pictures."""
    for model, seq, batch in (("clip-vit-base-patch32", 77, 128), ("clip-vit-large-patch14", 77, 16),
                              ("siglip-base-patch16-224", 64, 32), ("siglip-so400m-patch14-384", 64, 6)):
        one = functools.partial(job, "pictures", model, seq, batch, attention=None)
        yield one(name="contrasted")
        yield one(checkpoint="full", name="contrasted-full")
        yield one(freeze=["vision_model.*"], grad_accum=2, name="contrasted-texts-accum2")
        yield one(lora={"r": 8, "targets": ["q_proj", "v_proj"]}, checkpoint="full", name="contrasted-lora-full")
        yield one(holds_outputs=True, name="contrasted-held")
        yield one(device="a100-sxm-80", dtype="fp32", name="contrasted-fp32-a100")
        if model.startswith("clip"):
            yield one(dtype="fp32", autocast="bf16", name="contrasted-autocast")
        yield one(ddp={}, world=8, rank=3, name="contrasted-ddp")
        if model.startswith("siglip"):  # DeepSpeed stops at clip's scalar.
            yield one(world=8, rank=3, deepspeed=engine(1), name="contrasted-zero1")
            yield one(world=8, rank=3, deepspeed=engine(2, accum=2), name="contrasted-zero2-accum2")


def crossing_pictures():
    """mllama, of which some layers of the text look at tiles of pictures."""
    model, tower = "llama-3.2-11b-vision", ["model.vision_model.*"]
    change = CROSSING
    text = [f"language_model.layers.{at}.self_attn.{one}_proj" for at in (0, 2, 3, 5) for one in "qv"]
    one = functools.partial(job, "pictures", model, change=change, attention=None, images=1)
    yield one(1024, 1, name="crossing")
    yield one(777, 2, checkpoint="full", name="crossing-full")
    yield one(1024, 2, freeze=tower, name="crossing-frozen")
    yield one(2048, 1, freeze=tower, checkpoint="full", grad_accum=2, name="crossing-frozen-full-accum2")
    yield one(1024, 1, lora={"r": 8, "targets": text}, checkpoint="full", name="crossing-lora-full")
    yield one(600, 2, lora={"r": 16, "targets": ALL_LINEARS}, name="crossing-lora-all")
    yield one(512, 1, device="a100-sxm-80", holds_outputs=True, name="crossing-held-a100")
    yield one(512, 1, device="a100-sxm-80", dtype="fp32", name="crossing-fp32-a100")
    yield one(640, 1, dtype="fp32", autocast="bf16", name="crossing-autocast")
    yield one(512, 1, world=8, rank=3, ddp={}, name="crossing-ddp")
    yield one(512, 1, world=8, rank=3, deepspeed=engine(1), name="crossing-zero1")
    yield one(512, 1, world=8, rank=3, deepspeed=engine(2, accum=2), freeze=tower, name="crossing-zero2-accum2")
    yield job("pictures", model, 512, 2, change=change, attention=None, images=2, name="crossing-two")


def mixing_convolutions():
    """lfm2_moe, whose layers have experts behind a short convolution or attention."""
    change = {"num_hidden_layers": 6, "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention"]}
    one = functools.partial(job, "families", "lfm2-8b-a1b", attention=None, change=change)
    yield one(1024, 2)
    yield one(2048, 1, checkpoint="full", name="full")
    yield one(500, 2, grad_accum=2, name="accum2")
    yield one(1024, 1, lora={"r": 8, "targets": ["q_proj", "v_proj"]}, name="lora")
    yield one(1024, 1, device="a100-sxm-80", name="a100")
    yield one(1024, 1, experts="batched_mm", name="batched")
    yield one(1024, 1, world=8, rank=3, deepspeed=engine(2), name="zero2")
    yield one(1024, 1, world=8, rank=3, deepspeed=engine(1, accum=2), name="zero1-accum2")
    yield one(1024, 1, world=8, rank=3, runtime="fsdp2", name="fsdp2")


def later_families():
    """exaone_moe, youtu, and glm46v of either kind."""
    exaone = {"num_hidden_layers": 4, "num_experts": 16, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
              "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    flash = {"text_config": {"num_hidden_layers": 6}, "vision_config": {"depth": 4}}
    mixed = {"text_config": {"num_hidden_layers": 3, "n_routed_experts": 16}, "vision_config": {"depth": 4}}
    for model, change, more in (("k-exaone-236b-a23b", exaone, {}), ("youtu-llm-2b", {}, {}),
                                ("glm-4.6v-flash", flash, {"images": 1, "image_size": [448, 672]}),
                                ("glm-4.6v", mixed, {"images": 1, "image_size": [336, 336]})):
        one = functools.partial(job, "pictures" if more else "families", model, attention=None, change=change, whole=True, **more)
        yield one(1024, 2, name="later")
        yield one(2048, 1, checkpoint="full", grad_accum=2, name="later-full-accum2")
        yield one(777, 1, device="a100-sxm-80", name="later-a100")
        yield one(1024, 1, world=8, rank=3, deepspeed=engine(2), name="later-zero2")
        # Others' constructors stop under zero.Init: they set the padding's row of a table that is not there.
        init = {} if model.startswith("youtu") else {"model_init": "host"}
        yield one(1024, 1, world=8, rank=3, deepspeed=engine(3), name="later-zero3", **init)
        yield one(1024, 1, world=8, rank=3, runtime="fsdp2", name="later-fsdp2")


# Published sizes of classes of which no bundled model is, with few layers and experts.
UNBUNDLED = {
    "mistral-small-4": {
        "model_type": "mistral4", "architectures": ["Mistral4ForCausalLM"], "vocab_size": 131072, "hidden_size": 4096,
        "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 32,
        "num_key_value_heads": 32, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "q_lora_rank": 1024,
        "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 131072},
    "granite-swash-2b": {
        "model_type": "granite_swa", "architectures": ["GraniteSWAForCausalLM"], "vocab_size": 100352, "hidden_size": 2560,
        "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 20, "num_key_value_heads": 4,
        "max_position_embeddings": 8192, "sliding_window": 128, "layer_rope_theta": [0, 10000.0, 10000.0, 500000.0],
        "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.015625},
    "granite-swash-moe": {
        "model_type": "granitemoe_swa", "architectures": ["GraniteMoeSWAForCausalLM"], "vocab_size": 49155, "hidden_size": 1536,
        "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 24, "num_key_value_heads": 8,
        "max_position_embeddings": 4096, "num_local_experts": 40, "num_experts_per_tok": 8, "shared_intermediate_size": 1024,
        "tie_word_embeddings": True, "sliding_window": 128, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
        "logits_scaling": 6.0, "attention_multiplier": 0.015625},
    "north-mini-code": {
        "model_type": "cohere2_moe", "architectures": ["Cohere2MoeForCausalLM"], "vocab_size": 262144, "hidden_size": 2048,
        "head_dim": 128, "num_hidden_layers": 4, "intermediate_size": 768, "prefix_dense_intermediate_size": 3072,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 32, "num_experts_per_tok": 8, "num_shared_experts": 0,
        "first_k_dense_replace": 1, "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "sliding_window": 4096,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"],
        "max_position_embeddings": 500000, "rms_norm_eps": 1e-06},
}


def composed_families():
    """mistral4, hy_v3, granite_swa and granitemoe_swa, cohere2_moe; ernie and data2vec-text; plbart."""
    few = {
        **UNBUNDLED,
        "hy3-preview-base": {"num_hidden_layers": 3, "num_experts": 16, "output_router_logits": False},
    }
    for model, change in few.items():
        # Scores that a learned number scales have no kernel.
        attention = "eager" if "swash" in model else None
        one = functools.partial(job, "families", model, attention=attention, change=change, whole=True)
        yield one(1024, 2, name="composed")
        yield one(777, 1, checkpoint="full", grad_accum=2, device="a100-sxm-80", name="composed-full-accum2-a100")
        yield one(1024, 1, world=8, rank=3, deepspeed=engine(2), name="composed-zero2")
        yield one(1024, 1, world=8, rank=3, deepspeed=engine(3), model_init="host", name="composed-zero3")
    for model, seq, more in (("ernie-3.0-base-zh", 512, {}), ("data2vec-text-base-cola", 384, {}),
                             ("plbart-base", 512, {"target_seq": 128})):
        one = functools.partial(job, "families", model, seq, attention=None, **more)
        yield one(4, name="composed")
        yield one(3, checkpoint="full", device="a100-sxm-80", name="composed-full-a100")
        yield one(4, world=8, rank=3, deepspeed=engine(2), name="composed-zero2")
        yield one(4, world=8, rank=3, deepspeed=engine(3), model_init="host", name="composed-zero3")


def gathered_albert():
    """albert, whose layers are one, where each of their calls gathers its weights."""
    for model, seq, batch in (("albert-base", 512, 4), ("albert-xxlarge", 384, 2)):
        one = functools.partial(job, "families", model, seq, batch, attention=None, world=8, rank=3)
        yield one(deepspeed=engine(3), model_init="host", name="zero3")
        yield one(deepspeed=engine(3), model_init="host", max_grad_norm=1.0, name="zero3-clipped")
        if model == "albert-base":
            yield one(deepspeed=engine(3, accum=2), model_init="host", name="zero3-accum2")


def gathered_towers():
    """Towers that are trained under ZeRO-3: gemma4's and idefics3's."""
    def few(slide, layers, **more):
        kinds = [f"{'sliding' if (at + 1) % (slide + 1) else 'full'}_attention" for at in range(layers)]
        return {"text_config": {"num_hidden_layers": layers, **more, "layer_types": kinds}, "vision_config": {"num_hidden_layers": 4}}

    shown = functools.partial(job, "pictures", attention=None, world=8, rank=3, model_init="host", deepspeed=engine(3), images=1)
    for model, change in (("gemma-4-31b", few(5, 6)), ("gemma-4-26b-a4b", few(5, 6)), ("gemma-4-e2b", few(4, 10, num_kv_shared_layers=4))):
        sound = {"freeze": ["model.audio_tower.*", "model.embed_audio.*"]} if "-e" in model else {}
        yield shown(model, 600, 1, change=change, image_size=[768, 768], **sound, name="padded-zero3-all")
        yield shown(model, 600, 2, change=change, image_size=[672, 960], **sound, checkpoint="full", name="padded-zero3-all-full")
    scout = {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 4}}
    yield shown("llama-4-scout", 300, 2, change=scout, name="adapted-zero3-all")
    yield shown("llama-4-scout", 400, 1, change=scout, checkpoint="full", name="adapted-zero3-all-full")
    yield shown("llama-4-scout", 300, 2, change=scout, freeze=["vision_model.*"], name="adapted-zero3-frozen")
    for model in ("smolvlm-256m", "smolvlm2-500m"):
        yield shown(model, 700, 2, name="connected-zero3-all")
        yield shown(model, 500, 1, checkpoint="full", name="connected-zero3-all-full")
        yield shown(model, 600, 2, freeze=["model.vision_model.*"], name="connected-zero3-frozen")


def gathered_llava():
    """llava and llava_next under ZeRO-3 with gradients in their towers: trained, adapted, or behind what a checkpoint makes require one."""
    tower = ["model.vision_tower.*"]
    unread = {"llava-1.5-7b": TOWERS["llava-1.5-7b"][2]["freeze"]}
    text = [f"language_model.layers.{at}.self_attn.{one}_proj" for at in range(4) for one in "qv"]
    seen = [f"vision_tower.encoder.layers.{at}.self_attn.{one}_proj" for at in range(3) for one in "qv"]
    ways = {
        "frozen-full": {"freeze": tower, "checkpoint": "full"},
        "frozen-full-accum2": {"freeze": tower, "checkpoint": "full", "deepspeed": engine(3, accum=2)},
        "frozen-reentrant": {"freeze": tower, "checkpoint": "full", "checkpoint_impl": "reentrant"},
        "projector-full": {"freeze": [*tower, "model.language_model.*", "lm_head.*"], "checkpoint": "full"},
        "all": {},
        "all-full": {"checkpoint": "full"},
        "all-full-clipped": {"checkpoint": "full", "deepspeed": engine(3, clip=1.0)},
        "lora": {"lora": {"r": 8, "targets": text}},
        "lora-full": {"lora": {"r": 8, "targets": text}, "checkpoint": "full"},
        "lora-all": {"lora": {"r": 8, "targets": [*text, *seen]}},
        "lora-all-full": {"lora": {"r": 8, "targets": [*text, *seen]}, "checkpoint": "full"},
    }
    for name, more in ways.items():
        frozen = [] if "lora" in more else [*more.get("freeze", []), *(unread["llava-1.5-7b"] if "freeze" not in more else [])]
        said = {"deepspeed": engine(3), **{key: value for key, value in more.items() if key != "freeze"}}
        yield job("pictures", "llava-1.5-7b", 700, 2, change=FEW, attention=None, images=1, model_init="host", world=8, rank=3,
                  name=f"gathered-{name}", **({"freeze": frozen} if frozen else {}), **said)


def gathered_crossing():
    """mllama under ZeRO-3, whose text looks at its pictures in layers of its own."""
    model, tower, change = "llama-3.2-11b-vision", ["model.vision_model.*"], CROSSING
    text = [f"language_model.layers.{at}.self_attn.{one}_proj" for at in (0, 2, 3, 5) for one in "qv"]
    one = functools.partial(job, "pictures", model, change=change, attention=None, images=1, world=8, rank=3, model_init="host",
                            deepspeed=engine(3))
    yield one(512, 1, name="crossing-zero3")
    yield one(777, 2, checkpoint="full", name="crossing-zero3-full")
    yield one(600, 2, freeze=tower, name="crossing-zero3-frozen")
    yield one(600, 2, freeze=tower, checkpoint="full", name="crossing-zero3-frozen-full")
    yield one(640, 1, freeze=tower, checkpoint="full", deepspeed=engine(3, accum=2), name="crossing-zero3-frozen-full-accum2")
    yield one(512, 1, deepspeed=engine(3, clip=1.0), world=64, rank=31, name="crossing-zero3-clipped")
    yield one(512, 1, lora={"r": 8, "targets": text}, name="crossing-zero3-lora")
    yield one(1024, 1, lora={"r": 8, "targets": text}, checkpoint="full", name="crossing-zero3-lora-full")
    yield one(600, 2, lora={"r": 16, "targets": ALL_LINEARS}, checkpoint="full", name="crossing-zero3-lora-all-full")


def gathered_contrasts():
    """siglip's two towers and their loss, and classifiers of pictures, under ZeRO-3."""
    q_v = {"lora": {"r": 8, "targets": ["q_proj", "v_proj"]}}
    shared = {"attention": None, "world": 8, "rank": 3, "model_init": "host", "deepspeed": engine(3)}
    one = functools.partial(job, "pictures", "siglip-base-patch16-224", 64, 32, **shared)
    yield one(name="contrasted-zero3")
    yield one(checkpoint="full", name="contrasted-zero3-full")
    yield one(freeze=["vision_model.*"], deepspeed=engine(3, accum=2), name="contrasted-zero3-texts-accum2")
    yield one(**q_v, checkpoint="full", name="contrasted-zero3-lora-full")
    yield job("pictures", "siglip-so400m-patch14-384", 64, 6, **shared, name="contrasted-zero3")
    for model in ("clip-vit-large", "siglip-so400m"):
        seq, change, said = CLASSIFIERS[model]
        one = functools.partial(job, "pictures", model, seq, 4, change=change, **shared)
        yield one(**said, name="classified-zero3")
        yield one(**said, checkpoint="full", name="classified-zero3-full")
        yield one(freeze=["vision_model.*"], name="classified-zero3-frozen")


def gathered_convolutions():
    """lfm2 and lfm2_moe under ZeRO-3."""
    few = {"num_hidden_layers": 6, "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention"]}
    mixed = {"num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"], "num_experts": 8}
    for model, change in (("lfm2-350m", few), ("lfm2-8b-a1b", mixed)):
        one = functools.partial(job, "families", model, attention=None, change=change, world=8, rank=3, model_init="host", deepspeed=engine(3))
        yield one(1024, 2, name="zero3")
        yield one(2048, 1, checkpoint="full", deepspeed=engine(3, accum=2), name="zero3-full-accum2")
        yield one(1024, 1, lora={"r": 8, "targets": ["q_proj", "v_proj"]}, name="zero3-lora")


def tiled_pictures():
    """llava_next, whose pictures are cut up: on one GPU, and under each runtime with the tower frozen."""
    tower = ["model.vision_tower.*"]
    text = [f"language_model.layers.{at}.self_attn.{one}_proj" for at in range(4) for one in "qv"]
    ways = {  # Rows cut off, columns, and none.
        "all": (2400, 1, {"image_size": [480, 672]}),
        "full": (3200, 2, {"image_size": [672, 640], "checkpoint": "full"}),
        "frozen-tower": (1700, 2, {"freeze": tower, "image_size": [640, 300]}),
        "lora": (2304, 2, {"lora": {"r": 8, "targets": text}, "image_size": [900, 320], "checkpoint": "full"}),
        "zero2": (2000, 1, {"freeze": tower, "image_size": [300, 640], "world": 8, "rank": 3, "deepspeed": engine(2)}),
        "zero3": (2400, 2, {"freeze": tower, "image_size": [480, 640], "model_init": "host", "world": 8, "rank": 3, "deepspeed": engine(3)}),
        "fsdp2": (2500, 1, {"freeze": tower, "image_size": [336, 1008], "world": 8, "rank": 3, "runtime": "fsdp2"}),
        "accum2": (3000, 1, {"image_size": [512, 512], "grad_accum": 2, "model_init": "host"}),
    }
    for model in ("llava-v1.6-mistral-7b", "llava-v1.6-vicuna-7b"):
        for name, (seq, batch, more) in ways.items():
            yield job("pictures", model, seq, batch, change=FEW, attention=None, images=1, name=f"tiled-{name}", **more)
    yield job("pictures", "llava-1.5-7b", 800, 2, change=FEW, attention=None, images=1, freeze=tower, model_init="host", world=8, rank=3,
              deepspeed=engine(3), name="untiled-zero3")


def sampled_pictures():
    """glm4v, whose tower samples its positions: on one GPU, and under each runtime."""
    tower = ["model.visual.*"]
    ways = {
        "all": (700, 1, {}),
        "full": (600, 2, {"checkpoint": "full"}),
        "frozen-tower": (700, 2, {"freeze": tower}),
        "lora": (600, 2, {"lora": {"r": 8, "targets": [f"language_model.layers.{at}.self_attn.{one}_proj" for at in range(4) for one in "qv"]},
                          "checkpoint": "full"}),
        "accum2": (700, 1, {"grad_accum": 2, "model_init": "host"}),
        "zero2": (700, 1, {"world": 8, "rank": 3, "deepspeed": engine(2)}),
        "zero3": (700, 2, {"freeze": tower, "model_init": "host", "world": 8, "rank": 3, "deepspeed": engine(3)}),
        "fsdp2": (700, 1, {"world": 8, "rank": 3, "runtime": "fsdp2"}),
    }
    for model, layers in (("glm-4.1v-9b", 4), ("glm-4.5v", 3)):
        change = {"text_config": {"num_hidden_layers": layers}, "vision_config": {"depth": 4}}
        for name, (seq, batch, more) in ways.items():
            if model == "glm-4.5v" and name == "fsdp2":
                continue
            yield job("pictures", model, seq, batch, change=change, attention=None, images=1, image_size=[448, 560], name=f"sampled-{name}", **more)


def packed_shards():
    """4-bit weights under fully_shard: kept in bf16 they are cut; in uint8 they are left whole, as accelerate leaves them."""
    nf4 = {"quantization": "nf4", "quant_compute_dtype": "bf16", "checkpoint": "full", "checkpoint_impl": "non_reentrant"}
    bf16 = {"param_dtype": "bf16", "reduce_dtype": "bf16"}
    every, some = {"r": 16, "targets": ALL_LINEARS}, {"r": 8, "targets": ["q_proj", "v_proj"]}
    left = {**nf4, "kbit_prepare": False, "quant_storage": "bf16"}
    ways = {
        "trl": (bf16, {**left, "lora": {**every, "dtype": "bf16"}}),
        "nested": (bf16, {**left, "double_quant": True, "lora": every}),
        "prepared": ({}, {**nf4, "quant_storage": "bf16", "lora": every}),
        "prepared-mixed": ({**bf16, "reduce_dtype": "fp32"}, {**nf4, "quant_storage": "bf16", "lora": some}),
        "ends": ({**bf16, "wrap": "layers+ends"}, {**left, "lora": {**some, "dtype": "bf16"}}),
        "left-out": ({**bf16, "ignored": "packed"}, {**nf4, "kbit_prepare": False, "lora": {**every, "dtype": "bf16"}}),
        "dora": (bf16, {**left, "lora": {**some, "dora": True}}),
        # As peft's prepare_model_for_kbit_training leaves checkpoints.
        "prepared-reentrant": (bf16, {**nf4, "checkpoint_impl": "reentrant", "quant_storage": "bf16", "lora": every}),
        "trl-reentrant": (bf16, {**left, "checkpoint_impl": "reentrant", "lora": {**every, "dtype": "bf16"}}),
    }
    for name, (policy, way) in ways.items():
        for model, seq, world, rank in (("tinyllama-1.1b", 2048, 8, 0), ("llama-3-8b", 2048, 64, 63),
                                        ("tinyllama-1.1b", 1600, 24, 11)):
            yield job("packed", model, seq, 1, attention=None, needs="bitsandbytes", runtime="fsdp2", fsdp=policy,
                      dtype="bf16", world=world, rank=rank, name=f"fsdp-{name}-w{world}", **way)


def jobs():
    made = [
        *pytorch(),
        *families(),
        *mixtures(),
        *zero3_families(),
        *init(),
        *attention(),
        *dtype(),
        *checkpoint(),
        *lora(),
        *packed(),
        *adapters(),
        *optimizer(),
        *loss(),
        *liger(),
        *cut(),
        *packed_mixtures(),
        *adapted_mixtures(),
        *kernels(),
        *allocator(),
        *capacity(),
        *device(),
        *ddp(),
        *(row for stage in (0, 1, 2, 3) for row in zero(stage)),
        *timed(),
        *heldout(),
        *offload(),
        *fsdp(),
        *fsdp1(),
        *prepared_by_axolotl(),
        *whole_flats(),
        *pictures(),
        *padded_pictures(),
        *convolved(),
        *contrasted(),
        *crossing_pictures(),
        *mixing_convolutions(),
        *later_families(),
        *composed_families(),
        *gathered_albert(),
        *gathered_towers(),
        *gathered_llava(),
        *gathered_crossing(),
        *gathered_contrasts(),
        *gathered_convolutions(),
        *tiled_pictures(),
        *sampled_pictures(),
        *single_pictures(),
        *factory_pictures(),
        *factory(),
        *trl_heads(),
        *offloaded_activations(),
        *accelerated(),
        *adapted_by_peft(),
        *packed_shards(),
        *packed_zero3(),
        *chance.jobs(job, "chance", 1, 100),
        *chance.jobs(job, "chance-2", 2, 30),
        *chance.shared_jobs(job, "chance-shared", 3, 30),
        *chance.wider_jobs(job, "chance-3", 4, 60),
        *chance.wider_jobs(job, "chance-4", 5, 40),
        *chance_launchers.jobs(job, "chance-5", 6, 80),
        *chance_others.jobs(job, "chance-6", 7, 70, TOWERS),
        *chance_outside.jobs(job, "chance-7", 8, 130),
        *chance_rare.jobs(job, "chance-8", 9, 120, TOWERS),
        *chance_rare.of_everything(job, "chance-9", 10, 80, TOWERS),
        *chance_rare.of_everything(job, "chance-10", 11, 100, TOWERS),
    ]
    names = [row["name"] for row in made]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, twice
    return made


def strata(made):
    found = {}
    for row in made:
        found.setdefault(row["stratum"], []).append(row)
    return found.values()
