"""Jobs that nobody chose, of models that are no plain decoders and of what is trained beside the usual: a seed gives the same
jobs for ever."""

from . import model_config
from .chance import DEVICES, MODELS, WIDER, Draw, fewer_layers, of_deepspeed, of_fsdp, of_pytorch, recomputed, shape, weights_of
from .chance_launchers import GATED, LINEARS

ENCODERS = """bert-base bert-large roberta-base distilbert-base deberta-v3-small modernbert-base xlm-roberta-base camembert-base
distilroberta-base vit-base vit-large""".split()
STACKS = "t5-small t5-base flan-t5-large mt5-small bart-base bart-large mbart-large-50 nllb-200-distilled-600m whisper-tiny whisper-base whisper-small".split()


def placed(draw, kinds):
    """How many ranks, of which one is measured, and what runs there."""
    kind = draw.one(kinds)
    world = 1 if kind == "pytorch" else draw.one([2, 4, 8, 12, 32, 64])
    made = {"fsdp": of_fsdp, "deepspeed": of_deepspeed}.get(kind, of_pytorch)(draw, world)
    told = {"world": world, "rank": draw.below(world)} if kind != "pytorch" else {}
    made.pop("loss", None)
    return kind, {**recomputed(draw), **made, **told}


def encoder(draw, number):
    model = draw.one(ENCODERS)
    kind, more = placed(draw, ["pytorch", "pytorch", "ddp", "ddp", "deepspeed", "deepspeed"] + ["fsdp"] * (model.startswith("vit")))
    seq = {"vit-base": 197, "vit-large": 197}.get(model) or draw.one([64, 128, 256, 384, 512, 77, 333])
    return (model, seq, 1 + draw.below(16)), {**more, "attention": None, "whole": True, "name": f"{number:02d}-encoder-{kind}"}


def stacks(draw, number):
    model = draw.one(STACKS)
    kind, more = placed(draw, ["pytorch", "ddp", "ddp", "deepspeed", "deepspeed"] + ["fsdp"] * model.startswith(("t5", "whisper")))
    sound = model.startswith("whisper")
    seq = 1500 if sound else draw.one([64, 128, 333, 512])
    more["target_seq"] = draw.one([32, 100, 128, 200])
    if sound or model.startswith("nllb"):
        more.pop("autocast", None)
    how = "eager" if model.startswith(("t5", "flan", "mt5")) else None
    return (model, seq, 1 + draw.below(6)), {**more, "attention": how, "whole": True, "name": f"{number:02d}-stacks-{kind}"}


def picture(draw, number, towers):
    model = draw.one(sorted(towers))
    seq, change, said = towers[model]
    kind, more = placed(draw, ["pytorch", "ddp", "ddp", "deepspeed", "deepspeed", "deepspeed"])
    more.pop("grad_accum", None)
    frozen = draw.one([True, False])
    more = {**{k: v for k, v in said.items() if k != "freeze"}, **more, "images": 1, "attention": None, "change": change}
    free = list(said.get("freeze", ()))
    if frozen:
        free.append({"llava-1.5-7b": "model.vision_tower.*", "gemma-3-4b": "model.vision_tower.*", "internvl3-1b": "model.vision_tower.*",
                     "llama-4-scout": "vision_model.*", "mistral-small-3.1-24b": "model.vision_tower.*"}.get(model, "model.visual.*"))
    if free:
        more["freeze"] = free
    return (model, seq, 1 + draw.below(2)), {**more, "name": f"{number:02d}-pictures-{kind}"}


def adapted(draw, number):
    """DoRA, saved modules, frozen parts, 8-bit Adam."""
    while True:
        model = draw.one(MODELS + WIDER)
        config = model_config.config({"model": model})
        if config["model_type"] in GATED:
            break
    change = fewer_layers(draw, config)
    seq, batch = shape(draw, config)
    kind, more = placed(draw, ["pytorch", "pytorch", "ddp", "fsdp", "deepspeed"])
    what = draw.one(["dora", "save", "freeze", "eight"])
    if what == "dora":
        more["lora"] = {"r": draw.one([8, 16]), "targets": draw.one([["q_proj", "v_proj"], LINEARS]), "dora": True}
    elif what == "save":
        more["lora"] = {"r": 8, "targets": ["q_proj", "v_proj"], "save": ["lm_head"]}
        change = {**change, "tie_word_embeddings": False}
    elif what == "freeze":
        more["freeze"] = draw.one([["*mlp*"], ["*self_attn*"], ["*embed_tokens*", "*norm*"], ["model.layers.0.*", "model.layers.1.*"]])
    elif kind in ("pytorch", "ddp"):
        more["optimizer"] = {"name": "adam8bit"}
        more["needs"] = "bitsandbytes"
    if "lora" in more and weights_of(more) == "bf16" and kind in ("fsdp", "deepspeed"):
        more["lora"]["dtype"] = "bf16"
    return (model, seq, batch), {**more, "attention": None, "change": change, "name": f"{number:02d}-{what}-{kind}"}


def jobs(make, stratum, seed, count, towers):
    draw = Draw(seed)
    for number in range(count):
        kind = draw.one([encoder, encoder, stacks, stacks, adapted, adapted, adapted, picture, picture])
        what, more = kind(draw, number, towers) if kind is picture else kind(draw, number)
        yield make(stratum, *what, **{**more, "device": draw.one(DEVICES)})
