"""The models of deepspeed_cases.py."""

import contextlib
import fnmatch

import torch

import deepspeed

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Tiny(torch.nn.Module):
    """Three parameters of 10, 7 and 5 elements in one module; gradients complete in the order c, b, a."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.ones(10))
        self.b = torch.nn.Parameter(torch.ones(7))
        self.c = torch.nn.Parameter(torch.ones(5))

    def forward(self, x, **_):
        y = x * self.a.sum()
        y = y * self.b.sum()
        y = y * self.c.sum()
        return (y.mean(),)


def dtype_of(case):
    return next((DTYPES[name] for name in ("bf16", "fp16") if name in case["deepspeed"]), torch.float32)


def recorded(case):
    """The module of module_graph_cases.py, its inputs and its loss."""
    from module_graph_cases import CASES
    module, inputs, *loss = CASES[case["model"]["module"]]()
    return module, inputs, loss[0] if loss else lambda out: out


def build(case, made):
    config = case["model"]
    torch.manual_seed(0)
    if config["model_type"] == "tiny":
        return Tiny().to(dtype_of(case))
    if config["model_type"] == "recorded":
        return made().to(dtype_of(case))
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    if "architectures" in config:
        made = getattr(transformers, config["architectures"][0])
        return made._from_config(AutoConfig.for_model(**config), dtype=dtype_of(case))
    kind = AutoModelForSeq2SeqLM if config["model_type"] == "t5" else AutoModelForCausalLM
    return kind.from_config(AutoConfig.for_model(**config), dtype=dtype_of(case))


def finite(model):
    """What transformers' own initialization does not find under zero.Init is as memory was: experts' weights without a
    number would make gradients without one, and DeepSpeed would skip each step."""
    for parameter in model.parameters():
        parameter.ds_tensor.data.normal_(std=0.02)


def model_of(case):
    stage3 = case["deepspeed"]["zero_optimization"].get("stage") == 3
    made = type(recorded(case)[0]) if case["model"]["model_type"] == "recorded" else None
    inside = stage3 and case.get("init") != "after" and case["model"]["model_type"] != "tiny"
    with deepspeed.zero.Init(config_dict_or_path=case["deepspeed"]) if inside else contextlib.nullcontext():
        model = build(case, made)
    if inside:
        finite(model)
    model.train()
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in case.get("freeze", [])):
            parameter.requires_grad_(False)
    if case.get("checkpoint"):
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": case["checkpoint"] == "reentrant"})
    return model


def loss_of(case, engine, batch):
    if case["model"]["model_type"] == "recorded":
        return recorded(case)[2](engine(*batch))
    return engine(**batch)[0]


def with_picture(case):
    """One row: a mark, a picture, and text; with what the model's own processor gives beside it."""
    model = case["model"]
    shown = model["vision_config"]
    patch = shown["patch_size"]
    high, wide = (pixels // patch for pixels in case.get("image_size", [shown.get("image_size", 0)] * 2))
    side = 1 if model["model_type"] == "paligemma" else {"gemma4_vision": 2, "pixtral": 2}.get(shown["model_type"], shown.get("spatial_merge_size", 2))
    tokens = model.get("mm_tokens_per_image", high * wide // side**2)
    types = torch.zeros(1, case["seq"], dtype=torch.int64)
    types[:, 1:1 + tokens] = 1
    ids = torch.where(types == 1, model.get("image_token_id", model.get("image_token_index")), 5)
    batch = {"input_ids": ids, "labels": ids, "use_cache": False}
    if "temporal_patch_size" in shown:
        return {**batch, "pixel_values": torch.ones(high * wide, 3 * shown["temporal_patch_size"] * patch**2),
                "image_grid_thw": torch.tensor([[1, high, wide]]), "mm_token_type_ids": types}
    if shown["model_type"] == "gemma4_vision":
        patches = model["vision_soft_tokens_per_image"] * side**2
        places = torch.full((1, patches, 2), -1)
        places[:, :high * wide, 0] = torch.arange(wide).repeat(high)
        places[:, :high * wide, 1] = torch.arange(high).repeat_interleave(wide)
        return {**batch, "pixel_values": torch.ones(1, patches, 3 * patch**2), "image_position_ids": places,
                "mm_token_type_ids": types}
    pixels = torch.ones(1, 3, high * patch, wide * patch)
    if model["model_type"] == "llama4":
        pixels = pixels.to(dtype_of(case))
    sizes = {"image_sizes": torch.tensor([[high * patch, wide * patch]])} if shown["model_type"] == "pixtral" else {}
    said = {"token_type_ids": types} if model["model_type"] in ("gemma3", "paligemma") else {}
    return {**batch, "pixel_values": pixels, **sizes, **said}


def batch_of(case, rank):
    if case["model"]["model_type"] == "tiny":
        return {"x": torch.ones(4, dtype=dtype_of(case))}
    if case["model"]["model_type"] == "recorded":
        return [one.fill_(0.5) if one.is_floating_point() else one for one in recorded(case)[1]]
    if "seq" in case and "images" not in case:
        return with_picture(case)
    tokens = torch.arange(8).unsqueeze(0) + rank
    shown = case["model"].get("vision_config")
    if shown and "images" not in case:
        tokens[:, :(shown["image_size"] // shown["patch_size"]) ** 2] = case["model"]["image_token_index"]
        pixels = torch.ones(1, 3, shown["image_size"], shown["image_size"])
        return {"input_ids": tokens, "labels": tokens, "use_cache": False, "pixel_values": pixels}
    return {"input_ids": tokens, "labels": tokens, "use_cache": False}
