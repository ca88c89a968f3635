"""Jobs that nobody chose, of what people seldom say: every family by turns, checkpoints that are offloaded or selective, heads that
classify, every key that moves a byte under DeepSpeed, confs of the allocator, worlds of 1 to 512. A seed gives the same jobs for ever."""

from . import chance, chance_launchers, chance_others, chance_outside, model_config
from .chance import Draw, implemented, of_fsdp, weights_of
from .chance_others import picture
from .chance_outside import CONFS, LIGER, REENTRANT, adapters, depth, tight

DECODERS = [line.split() for line in """afm-4.5b
aya-23-8b command-r command-r-plus
bloom-560m bloom-3b bloom-7b1
llama-2-13b llama-3.1-8b llama-3.2-3b codellama-34b smollm2-135m solar-10.7b deepseek-coder-6.7b
command-r7b
cwm
qwen2.5-0.5b qwen2.5-1.5b qwen2.5-7b qwen1.5-14b qwen2-72b deepseek-r1-distill-qwen-1.5b
deepseek-v2-lite deepseek-v2
moonlight-16b-a3b deepseek-v3
gpt2 gpt2-medium gpt2-xl distilgpt2
pythia-410m pythia-1.4b pythia-12b dolly-v2-7b gpt-neox-20b
dots-llm1
ernie-4.5-0.3b
ernie-4.5-21b-a3b
exaone-4.0-1.2b
falcon-7b falcon-rw-1b falcon-40b
gemma-2-2b gemma-2-9b gemma-2-27b
gemma-2b gemma-7b
gemma-3-270m gemma-3-1b gemma-3-4b-text gemma-3-12b-text
gemma-4-31b-text gemma-4-26b-a4b-text
glm-4-9b glm-4-32b
glm-4-9b-chat
glm-4.5-air
glm-4.7-flash
gpt-oss-20b
granite-3.1-3b-a800m
granite-3.1-2b granite-3.3-8b
granite-4.0-h-micro granite-4.0-h-small granite-4.0-micro
helium-1-2b
hunyuan-a13b
llama-4-scout-text
mamba2-130m mamba2-1.3b
minicpm3-4b
minimax-m2
ministral-8b mistral-7b mistral-nemo-12b mistral-small-22b
mixtral-8x7b mixtral-8x22b
olmo-1b olmo-7b
olmo-2-1b olmo-2-7b olmo-2-13b
olmoe-1b-7b
opt-125m opt-350m opt-2.7b opt-13b
phi-1.5 phi-2
phi-3-mini phi-3-medium phi-4
qwen1.5-moe-a2.7b qwen2-57b-a14b
qwen3-0.6b qwen3-4b qwen3-14b
qwen3-30b-a3b qwen3-235b-a22b
qwen3-next-80b-a3b
seed-oss-36b
smollm3-3b
solar-open-100b
stablelm-2-1.6b stablelm-3b-4e1t
starcoder2-3b starcoder2-7b""".splitlines()]
OTHERS = [line.split() for line in """bart-base distilbart-cnn-12-6
bert-base-cased bert-large
camembert-base
deberta-v3-xsmall deberta-v3-large
distilbert-base distilbert-multilingual
distilroberta-base roberta-large
electra-small electra-base
flan-t5-small t5-large
m2m100-418m nllb-200-distilled-600m
mbart-large-50
modernbert-base modernbert-large
mt5-small mt5-base
opus-mt-zh-en
pegasus-large
vit-small vit-base-patch32-384 vit-large
whisper-tiny.en whisper-small distil-whisper-large-v3
xlm-roberta-base""".splitlines()]
NEWER = [line.split() for line in """starcoderbase-1b tiny-starcoder-py gpt-bigcode-santacoder
lfm2-350m lfm2-1.2b lfm2-2.6b
vaultgemma-1b
gemma-4-e2b-text gemma-4-e4b-text""".splitlines()]
CLASSIFIED = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra", "modernbert": "ModernBert",
              "xlm-roberta": "XLMRoberta", "camembert": "Camembert", "deberta-v2": "DebertaV2",
              "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2", "phi3": "Phi3"}
EMBEDDED = {"gpt2": "*wte*", "bloom": "*word_embeddings.*", "falcon": "*word_embeddings*"}
WORLDS = [1, 2, 3, 4, 6, 8, 16, 32, 48, 128, 512]
DEVICES = ["h100-sxm", "h100-sxm", "a100-sxm-80", "a100-sxm-40", "h200-sxm", "rtx4090", "l40s", "b200-sxm"]
RARE_CONFS = [*CONFS, "expandable_segments:True,garbage_collection_threshold:0.6", "max_split_size_mb:32", "garbage_collection_threshold:0.5",
              "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "max_non_split_rounding_mb:64,max_split_size_mb:512"]


def shape(draw, config):
    most = min(8192, config.get("n_positions") or config.get("max_position_embeddings") or 8192)
    seq = draw.one([n for n in (128, 250, 500, 512, 777, 1000, 1023, 1024, 2000, 2048, 3333, 4096, 8192) if n <= most])
    return seq, min(1 + draw.below(4), max(1, 8192 // seq))


def recomputed(draw, config, of_engine):
    """`of_engine`: DeepSpeed's own checkpoints can be asked for."""
    ways = [{}, {}, {}, {"checkpoint": "full"}, {"checkpoint": "full"}, REENTRANT, REENTRANT, "selective", "selective"]
    way = draw.one(ways + ["deepspeed"] * (6 if of_engine else 0))
    if way == "selective":
        return {"checkpoint": draw.one(["every:3", "nth:2", "segments:3", "keep:linear", "keep:scaled_dot_product_attention",
                                        "keep:linear+scaled_dot_product_attention", "modules:mlp", "keep:linear/2+scaled_dot_product_attention"])}
    if way == "deepspeed":
        return {"checkpoint": "full", "checkpoint_impl": "deepspeed"}
    return way


def update(draw):
    name = draw.one(["adamw", "adamw", "adamw", "adam", "sgd", "adagrad", "rmsprop", "adam8bit", "lion", "lion8bit", "adafactor"])
    if name in ("adam8bit", "lion", "lion8bit"):
        return {"optimizer": {"name": name}, "needs": "bitsandbytes"}
    if name == "adafactor":
        return {"optimizer": {"name": name}}
    return implemented(draw, name)


def loss(draw, family, dtype):
    kind = draw.one(["hf", "hf", "hf", "native", "liger", "held", "cache"])
    if kind == "liger":
        if family not in LIGER or dtype == "fp32":
            return {}
        kernels = {"liger_kernels": draw.one(["rope,rms_norm,swiglu", "rms_norm", "swiglu"])} if draw.chance(0.5) else {}
        return {"loss": "liger", "liger_version": "0.8.5", **kernels}
    return {"hf": {}, "native": {"loss": "native"}, "held": {"holds_outputs": True}, "cache": {"holds_outputs": True, "use_cache": True}}[kind]


def buckets(draw):
    given = draw.one([{"static_graph": True}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True},
                      {"gradient_as_bucket_view": True, "static_graph": True}, {"bucket_cap_mb": 1 + draw.below(200)},
                      {"broadcast_buffers": False, "gradient_as_bucket_view": True}, {"comm_hook": draw.one(["bf16", "fp16"])}])
    return {"ddp": given, **({"steps": 3} if {"static_graph", "comm_hook"} & given.keys() else {})}


def alone(draw, config, world):
    more = {**draw.one([{}, {}, {}, {"dtype": "fp32"}, {"dtype": "fp32", "autocast": "bf16"}, {"dtype": "fp16"}]), **update(draw)}
    more.update(recomputed(draw, config, False))
    family = config["model_type"]
    more.update(loss(draw, family, more.get("dtype")))
    if draw.chance(0.4):
        more["allocator_conf"] = draw.one(RARE_CONFS)
    for key, value, share in (("max_grad_norm", 1.0, 0.3), ("model_init", "host", 0.4)):
        if draw.chance(share):
            more[key] = value
    if world > 1 and draw.chance(0.7):
        more.update(buckets(draw))
    if "steps" not in more and draw.chance(0.25):
        more["grad_accum"] = 2 + draw.below(3)
    return more


def rarely_said(draw, zero, world, dtype):
    """Keys of zero_optimization that move a byte, each with its own share."""
    stage = zero["stage"]
    ways = [("overlap_comm", draw.chance(0.5), 0.6), ("reduce_bucket_size", draw.one([1000, 999_983, 7_654_321, 123_456_789, 500_000_001]), 0.5),
            ("contiguous_gradients", False, 0.15), ("reduce_scatter", False, 0.15)]
    if stage in (1, 2):
        ways += [("round_robin_gradients", True, 0.3), ("use_multi_rank_bucket_allreduce", False, 0.3), ("allgather_bucket_size", 5_000_001, 0.3)]
    if stage == 3:
        shared = [n for n in (2, 4, 8) if world % n == 0 and world > n]
        ways += [("stage3_param_persistence_threshold", draw.one([0, 1, 4096, 300_001, 20_000_000]), 0.5),
                 ("stage3_prefetch_bucket_size", draw.one([0, 0, 1_234_567, 400_000_000]), 0.5),
                 ("stage3_max_live_parameters", draw.one([0, 30_000_000]), 0.15), ("stage3_max_reuse_distance", draw.one([0, 10_000_000]), 0.2),
                 ("stage3_model_persistence_threshold", 50_000, 0.1), ("sub_group_size", draw.one([1_000_003, 40_000_001]), 0.2),
                 ("zero_hpz_partition_size", draw.one(shared or [0]), 0.25 if shared else 0),
                 ("zero_quantized_weights", True, 0.2 if dtype != "fp32" else 0),
                 ("stage3_use_all_reduce_for_fetch_params", True, 0.1), ("stage3_module_granularity_threshold", 3_000_000, 0.1),
                 ("stage3_gather_16bit_weights_on_model_save", True, 0.1)]
    zero.update({key: value for key, value, share in ways if draw.chance(share)})


def of_stage(draw, config, world):
    zero, params = {"stage": draw.one([0, 1, 1, 2, 2, 3, 3, 3, 3])}, {"lr": 1e-4}
    kind = draw.one(["AdamW", "AdamW", "AdamW", "Adam"])
    made = {"zero_optimization": zero, "optimizer": {"type": kind, "params": params}}
    if draw.chance(0.3):
        params["torch_adam"] = True
    dtype = draw.one(["bf16", "bf16", "bf16", "fp16", "fp32"])
    if dtype != "fp32":
        made[dtype] = {"enabled": True, **({"initial_scale_power": 8} if dtype == "fp16" else {})}
    if draw.chance(0.45):
        made["gradient_accumulation_steps"] = 2 + draw.below(3)
    if draw.chance(0.4):
        made["gradient_clipping"] = 1.0
    scaled = 0.1 if zero["stage"] < 3 else 0  # Stage 3 refuses them.
    for key, value, share in (("prescale_gradients", True, scaled), ("gradient_predivide_factor", 2.0, scaled), ("communication_data_type", "fp32", 0.1)):
        if draw.chance(share):
            made[key] = value
    if dtype == "bf16" and draw.chance(0.15):
        made["data_types"] = {"grad_accum_dtype": "fp32"}
    more = {"deepspeed": made, **recomputed(draw, config, True)}
    if more.get("checkpoint_impl") == "deepspeed":
        made["activation_checkpointing"] = draw.one([{"cpu_checkpointing": True}, {"cpu_checkpointing": True}, {},
                                                     {"cpu_checkpointing": True, "partition_activations": True}, {"partition_activations": True},
                                                     {"partition_activations": True, "contiguous_memory_optimization": True, "number_checkpoints": 96}])
    if zero["stage"] == 3 and (config.get("pad_token_id") is not None or config["model_type"].startswith("gemma")):
        more["model_init"] = draw.one(["device", "host"])  # transformers' own initialization ends under zero.Init.
    if zero["stage"]:
        rarely_said(draw, zero, world, dtype)
    if zero["stage"] and dtype != "fp32" and draw.chance(0.25):
        params.pop("torch_adam", None)
        for key in ("zero_hpz_partition_size", "zero_quantized_weights"):
            zero.pop(key, None)
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": draw.chance(0.5)}
        if zero["stage"] == 3 and draw.chance(0.4):
            zero["offload_param"] = {"device": "cpu", "pin_memory": draw.chance(0.5)}
        elif zero["stage"] == 3 and draw.chance(0.3):
            zero["offload_optimizer"]["ratio"] = draw.one([0.3, 0.7])
    return more


def of_shards(draw, config, world):
    if draw.chance(0.5):
        return of_fsdp(draw, world)
    return chance_launchers.of_accelerate(draw, world, config["model_type"])


WAYS = {"pytorch": alone, "ddp": alone, "deepspeed": of_stage, "shards": of_shards, "qlora": lambda draw, config, world: chance_launchers.of_qlora(draw, world)}


def ranks(draw, kind):
    world = 1 if kind == "pytorch" else draw.one(WORLDS[1:] if kind in ("ddp", "shards") else WORLDS)
    return world, {"world": world, "rank": draw.one([0, draw.below(world), world - 1])} if world > 1 else {}


def beside(draw, config, more, kind):
    """What is trained of it, where the events end, and a device that is nearly too small."""
    family, small = config["model_type"], {}
    if kind == "qlora":
        return small
    if family not in ("mamba2", "glm4_moe_lite") and draw.chance(0.2):
        small = adapters(draw, config)
        if small and draw.chance(0.3) and kind != "shards":
            small["lora"]["dora"] = True
        if small and kind == "shards" and weights_of(more) == "bf16":
            small["lora"]["dtype"] = "bf16"
        if "lora" in more:
            return {}
    elif kind != "shards" and draw.chance(0.15):
        small = {"freeze": [draw.one([EMBEDDED.get(family, "*embed*"), "*mlp*", "*.0.*", "*norm*"])]}
    if family in CLASSIFIED and not small and not {"loss", "use_cache", "holds_outputs"} & more.keys() and draw.chance(0.25):
        small = headed(draw, family)
    if kind == "pytorch" and draw.chance(0.35) and not {"loss"} & more.keys() and not small and more.get("dtype", "bf16") == "bf16":
        small = {"capacity": tight(draw, config)}
    if kind in ("ddp", "deepspeed") and draw.chance(0.25):
        small["events"] = "pending"
    return small


def headed(draw, family):
    """A head over rows or over tokens, with so many labels."""
    over = draw.one(["Sequence", "Sequence", "Token"])
    labels = {"id2label": {str(at): str(at) for at in range(draw.one([2, 3, 17]))}}
    return {"change": {"architectures": [f"{CLASSIFIED[family]}For{over}Classification"], "pad_token_id": 0, **labels}}


def decoder(draw, number, turn, among=DECODERS):
    kind = draw.one(["pytorch"] * 4 + ["ddp"] * 2 + ["deepspeed"] * 6 + ["shards", "qlora"])
    while True:
        model = draw.one(among[turn % len(among)])
        config = model_config.config({"model": model})
        if kind != "qlora" or config["model_type"] in chance_launchers.GATED:
            break
        turn += 1
    change = {} if config.get("num_kv_shared_layers") else depth(draw, config)  # Whose last layers read what others keep: whole.
    config = {**config, **change}
    seq, batch = shape(draw, config)
    world, told = ranks(draw, kind)
    how = draw.one([None] * 6 + ["flash", "cudnn", "mem-efficient", "math", "eager", "eager"])
    more = {"attention": how, **WAYS[kind](draw, config, world)}
    extra = beside(draw, config, more, kind)
    change = {**change, **extra.pop("change", {})}
    return (model, seq, batch), {**more, **told, **extra, "change": change, "name": f"{number:03d}-{kind}"}


def other(draw, number, turn):
    """Encoders, two stacks, pictures as classes: whole."""
    model = draw.one(OTHERS[turn % len(OTHERS)])
    config = model_config.config({"model": model})
    family = config["model_type"]
    kind = draw.one(["pytorch", "pytorch", "ddp", "deepspeed", "deepspeed", "deepspeed"])
    world, told = ranks(draw, kind)
    more = WAYS[kind](draw, config, world)
    for key in ("loss", "liger_version", "liger_kernels", "use_cache", "holds_outputs"):
        more.pop(key, None)
    if not more.get("checkpoint", "full") == "full":
        more["checkpoint"] = "full"
    seq = {"vit-small": 197, "vit-large": 197, "vit-base-patch32-384": 145}.get(model) or (1500 if family == "whisper" else draw.one([128, 250, 500, 512]))
    if config.get("is_encoder_decoder") or family in ("t5", "mt5", "bart", "pegasus", "marian", "m2m_100", "mbart", "whisper"):
        more["target_seq"] = draw.one([64, 77, 128])
        more.pop("autocast", None)
    trained = {"electra": "ElectraForMaskedLM", "vit": "ViTForImageClassification"}.get(family)
    change = {"architectures": [trained]} if trained else {}
    if family in CLASSIFIED and draw.chance(0.6):
        change = headed(draw, family)["change"]
        if family != "roberta":
            del change["pad_token_id"]
        else:
            change["pad_token_id"] = 1
    how = "eager" if family in ("t5", "mt5") else draw.one([None, None, None, "eager"])
    return (model, seq, 1 + draw.below(4)), {**more, **told, "attention": how, "change": change, "name": f"{number:03d}-other-{kind}"}


def jobs(make, stratum, seed, count, towers):
    draw = Draw(seed)
    turns = [draw.below(len(DECODERS)), draw.below(len(OTHERS))]
    for number in range(count):
        kind = draw.one([decoder] * 14 + [other] * 5 + [picture])
        if kind is picture:
            what, more = picture(draw, number, towers)
        else:
            at = kind is other
            what, more = kind(draw, number, turns[at])
            turns[at] += 1
        yield make(stratum, *what, **{**more, "whole": True, "device": draw.one(DEVICES)})


def newer(draw, number):
    return decoder(draw, number, draw.below(len(NEWER)), NEWER)


# What every draw before drew, each with its share, and some of it on the PyTorch of last year.
SHARES = {decoder: 5, newer: 2, chance_outside.decoder: 5, other: 3, chance_launchers.one: 3, chance.one_shared: 2, chance_others.adapted: 1, picture: 1}


def of_everything(make, stratum, seed, count, towers):
    draw = Draw(seed)
    turns = {decoder: draw.below(len(DECODERS)), other: draw.below(len(OTHERS))}
    for number in range(count):
        kind = draw.one([kind for kind, share in SHARES.items() for _ in range(share)])
        told = {picture: (towers,), decoder: (turns[decoder],), other: (turns[other],)}.get(kind, ())
        what, more = kind(draw, number, *told)
        turns.update({kind: turns[kind] + 1} if kind in turns else {})
        older = draw.one([""] * 13 + ["torch-2.8", "torch-2.8", "torch-2.6"])  # The environment that measures it.
        name = "-".join(filter(None, [more["name"], older]))
        yield make(stratum, *what, **{**more, "whole": True, "device": draw.one(DEVICES), "name": name})
