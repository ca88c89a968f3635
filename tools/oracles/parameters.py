"""Outside oracle for dsplan's parameter lists: asks transformers itself.

    parameters.py full   OUT_DIR CONFIG.json...   one .txt witness per (small) config
    parameters.py counts OUT.csv CONFIG.json...   totals and a digest per (real) config
    parameters.py defaults OUT.txt                config defaults and key aliases per family

`full` builds the model twice: on the meta device (names, shapes, tying) and on the CPU (buffers and
their storages, the module calls of one training forward, the order in which gradients are completed).
`counts` uses the meta device only, so that 10^12 parameters cost nothing. See README.md for the format.
"""

import csv
import dataclasses
import hashlib
import itertools
import json
import os
import struct
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, CONFIG_MAPPING

FAMILIES = ("gpt2 opt bloom gpt_neox falcon llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 "
            "gemma3_text gemma3n_text gemma4_text phi phi3 deepseek_v2 deepseek_v3 glm4_moe_lite bert roberta xlm-roberta camembert deberta-v2 distilbert electra albert ernie data2vec-text t5 mt5 vit whisper bart mbart marian m2m_100 pegasus plbart blenderbot modernbert llama4_text glm4_moe granitemoe gpt_oss "
            "dinov2 apertus nanochat phimoe gptj gpt_neo "
            "arcee jais2 hyperclovax flex_olmo umt5 seed_oss olmo olmoe ministral ministral3 cwm glm helium dots1 solar_open hunyuan_v1_moe ernie4_5_moe minicpm3 minimax_m2 vaultgemma granitemoeshared lfm2 lfm2_moe exaone_moe youtu mistral4 hy_v3 granite_swa granitemoe_swa cohere2_moe mellum gpt_bigcode mamba2 granitemoehybrid qwen3_next qwen3_5_text qwen3_5_moe_text nemotron_h "
            "clip_vision_model siglip_vision_model clip_text_model siglip_text_model clip siglip llava llava_next gemma3 paligemma idefics3 smolvlm internvl llama4 mllama glm46v mistral3 gemma4 glm4v glm4v_moe qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe").split()

# Fields of every config class that move no byte of a training step.
INERT = {"transformers_version", "architectures", "id2label", "label2id", "problem_type", "return_dict",
         "output_hidden_states", "bos_token_id", "eos_token_id", "initializer_range", "initializer_factor",
         "decoder_start_token_id", "summary_type", "summary_use_proj", "summary_activation",
         "summary_proj_to_labels", "summary_first_dropout"}


def model_class(config):
    """What `architectures` names; without it the class a trainer takes, and of encoders the body."""
    kind = config.model_type
    if config.architectures and kind != "t5":
        return getattr(transformers, config.architectures[0])
    encoders = {"bert": "BertModel", "roberta": "RobertaModel", "distilbert": "DistilBertModel", "electra": "ElectraModel", "ernie": "ErnieModel", "data2vec-text": "Data2VecTextModel", "albert": "AlbertModel",
                "modernbert": "ModernBertModel", "vit": "ViTForImageClassification", "dinov2": "Dinov2ForImageClassification", "mt5": "MT5ForConditionalGeneration", "umt5": "UMT5ForConditionalGeneration", "t5": "T5ForConditionalGeneration",
                "clip_vision_model": "CLIPVisionModel", "siglip_vision_model": "SiglipVisionModel", "clip_text_model": "CLIPTextModel",
                "siglip_text_model": "SiglipTextModel",
                "llava": "LlavaForConditionalGeneration", "llava_next": "LlavaNextForConditionalGeneration", "gemma3": "Gemma3ForConditionalGeneration", "paligemma": "PaliGemmaForConditionalGeneration",
                "internvl": "InternVLForConditionalGeneration", "mllama": "MllamaForConditionalGeneration", "mistral3": "Mistral3ForConditionalGeneration",
                "gemma4": "Gemma4ForConditionalGeneration", "idefics3": "Idefics3ForConditionalGeneration",
                "smolvlm": "SmolVLMForConditionalGeneration",
                "glm46v": "Glm46VForConditionalGeneration", "glm4v": "Glm4vForConditionalGeneration", "glm4v_moe": "Glm4vMoeForConditionalGeneration",
                "qwen2_vl": "Qwen2VLForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
                "qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
                "qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}
    return getattr(transformers, encoders[kind]) if kind in encoders else None  # AutoModelForCausalLM decides


def build(path, device, dtype=None):
    config = AutoConfig.from_pretrained(path)
    cls = model_class(config)
    # from_config makes the parameters in config.dtype unless told otherwise.
    arguments = {"dtype": dtype} if dtype else {}
    with torch.device(device):
        model = (cls._from_config if cls else AutoModelForCausalLM.from_config)(config, **arguments)
    model.train()
    return model


def shape_text(tensor):
    return "x".join(map(str, tensor.shape)) or "scalar"


def dtype_text(tensor):
    """Complex numbers are pairs."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return str(tensor.dtype).removeprefix("torch.")


def parameter_rows(model):
    """Yields (name, tensor, class of the owning module, first name of the same Parameter or "")."""
    first, modules = {}, dict(model.named_modules(remove_duplicate=False))
    for name, tensor in model.named_parameters(remove_duplicate=False):
        owner = modules[name.rpartition(".")[0]]
        tied = first.setdefault(id(tensor), name)
        yield name, tensor, type(owner).__name__, "" if tied == name else tied


def buffer_rows(model):
    """Yields (name, tensor, persistent, first name with the same storage or "")."""
    first = {}
    for prefix, module in model.named_modules():
        for leaf, tensor in module._buffers.items():
            if tensor is None:
                continue
            if tensor.is_complex():
                tensor = torch.view_as_real(tensor)
            name = f"{prefix}.{leaf}" if prefix else leaf
            other = first.setdefault(tensor.untyped_storage().data_ptr(), name)
            yield name, tensor, leaf not in module._non_persistent_buffers_set, "" if other == name else other


def masked_pictures(config, seen):
    """Two rows, of which each begins with a picture."""
    tokens = (seen.image_size // seen.patch_size // config.scale_factor) ** 2
    ids = torch.arange(2 * (tokens + 8)).reshape(2, -1) % 100 + 4
    ids[:, :tokens] = config.image_token_id
    return {"input_ids": ids, "labels": ids, "use_cache": False,
            "pixel_values": torch.rand(2, 1, seen.num_channels, seen.image_size, seen.image_size),
            "pixel_attention_mask": torch.ones(2, 1, seen.image_size, seen.image_size)}


def inputs_for(model):
    config = model.config
    if config.model_type == "whisper":
        sound = torch.rand(2, config.num_mel_bins, 2 * config.max_source_positions)
        return {"input_features": sound, "labels": torch.arange(2 * 8).reshape(2, 8) % config.vocab_size,
                "use_cache": False}
    seen = getattr(config, "vision_config", config)
    if seen.model_type == "pixtral":
        return whole_pictures(config, seen)
    if config.model_type == "llava_next":
        return squares(config, seen)
    if config.model_type == "gemma4":
        return padded_pictures(config, seen)
    if hasattr(seen, "spatial_merge_size"):
        return sized_inputs(config, seen)
    if config.model_type in ("idefics3", "smolvlm"):
        return masked_pictures(config, seen)
    if config.model_type == "mllama":
        ids = torch.arange(2 * 8).reshape(2, 8) % 90 + 4
        return {"input_ids": ids, "labels": ids, "use_cache": False,
                "pixel_values": torch.rand(2, 1, seen.max_num_tiles, 3, seen.image_size, seen.image_size),
                "aspect_ratio_ids": torch.ones(2, 1, dtype=torch.long),
                "aspect_ratio_mask": torch.ones(2, 1, seen.max_num_tiles, dtype=torch.long),
                "cross_attention_mask": torch.ones(2, 8, 1, seen.max_num_tiles, dtype=torch.long)}
    if type(model).__name__ in ("CLIPModel", "SiglipModel"):
        read = config.text_config
        ids = torch.arange(2 * 6).reshape(2, 6) % (read.vocab_size - 4) + 2
        return {"input_ids": ids, "pixel_values": torch.rand(2, 3, seen.image_size, seen.image_size), "return_loss": True}
    if hasattr(seen, "patch_size"):
        side = seen.image_size if isinstance(seen.image_size, int) else seen.image_size[0]
        pixels = {"pixel_values": torch.rand(2, seen.num_channels, side, side)}
        if model.main_input_name == "pixel_values" or type(model).__name__.endswith("ForImageClassification"):
            labels = {} if type(model).__name__.endswith("Model") else {"labels": torch.tensor([0, 1])}
            return {**pixels, **labels}
        said = {} if config.model_type not in ("llava", "internvl") else {
            "vision_feature_layer": config.vision_feature_layer,
            "vision_feature_select_strategy": config.vision_feature_select_strategy}
        if config.model_type == "llama4":
            tokens = (side // seen.patch_size) ** 2 // 4
        else:
            tokens = model.get_image_features(**pixels, **said).pooler_output[0].shape[0]
        ids = torch.arange(2 * (tokens + 8)).reshape(2, -1) % 100 + 4
        ids[:, :tokens] = config.image_token_id
        return {"input_ids": ids, "labels": ids, "use_cache": False, **pixels}
    ids = torch.arange(2 * 8).reshape(2, 8) % (config.vocab_size - 8) + 4
    kind = type(model).__name__
    if kind in ("CLIPTextModel", "SiglipTextModel"):
        return {"input_ids": ids}
    if kind.endswith("ForSequenceClassification"):
        return {"input_ids": ids, "labels": torch.tensor([0, 1], dtype=torch.float if config.num_labels == 1 else torch.long)}
    if kind.endswith("ForTokenClassification"):
        return {"input_ids": ids, "labels": ids % config.num_labels}
    if config.model_type in ("bert", "roberta", "xlm-roberta", "camembert", "deberta-v2", "distilbert", "modernbert"):
        return {"input_ids": ids} if kind.endswith("Model") else {"input_ids": ids, "labels": ids}
    return {"input_ids": ids, "labels": ids, "use_cache": False}


def sized_inputs(config, seen):
    """One picture a row, of two by three tokens, behind a mark."""
    side, patch = seen.spatial_merge_size, seen.patch_size
    ids = torch.arange(2 * 14).reshape(2, -1) % 100 + 4
    ids[:, 1:7] = config.image_token_id
    return {"input_ids": ids, "labels": ids, "use_cache": False, "mm_token_type_ids": (ids == config.image_token_id).long(),
            "pixel_values": torch.rand(2 * 6 * side**2, seen.in_channels * seen.temporal_patch_size * patch**2),
            "image_grid_thw": torch.tensor([[1, 2 * side, 3 * side]] * 2)}


def squares(config, seen):
    """One picture a row, of two squares above each other that it fills: its places, and one more behind each line."""
    size, side = seen.image_size, seen.image_size // seen.patch_size
    tokens = side**2 + 2 * side * (side + 1)
    ids = torch.arange(2 * (tokens + 8)).reshape(2, -1) % 100 + 4
    ids[:, :tokens] = config.image_token_index
    return {"input_ids": ids, "labels": ids, "use_cache": False, "pixel_values": torch.rand(2, 3, seen.num_channels, size, size),
            "image_sizes": torch.tensor([[2 * size, size]] * 2)}


def whole_pictures(config, seen):
    """One picture a row, of two by three tokens, and its size."""
    height, width = (side * seen.patch_size * getattr(config, "spatial_merge_size", 1) for side in (2, 3))
    ids = torch.arange(2 * 14).reshape(2, -1) % 100 + 4
    ids[:, 1:7] = config.image_token_id
    return {"input_ids": ids, "labels": ids, "use_cache": False, "pixel_values": torch.rand(2, seen.num_channels, height, width),
            "image_sizes": torch.tensor([[height, width]] * 2)}


def padded_pictures(config, seen):
    """One picture a row, of two by three tokens, among as many patches as four by three have."""
    side = seen.pooling_kernel_size
    ids = torch.arange(2 * 14).reshape(2, -1) % 100 + 4
    ids[:, 1:7] = config.image_token_id
    places = torch.full((2, 12 * side**2, 2), -1)
    places[:, :6 * side**2, 0] = torch.arange(3 * side).repeat(2 * side)
    places[:, :6 * side**2, 1] = torch.arange(2 * side).repeat_interleave(3 * side)
    return {"input_ids": ids, "labels": ids, "use_cache": False, "mm_token_type_ids": (ids == config.image_token_id).long(),
            "pixel_values": torch.rand(2, 12 * side**2, 3 * seen.patch_size**2), "image_position_ids": places}


def calls(model):
    """The enter and exit events of one training forward, and the order of completed gradients."""
    events, ready, handles = [], [], []
    inputs = inputs_for(model)
    for path, module in model.named_modules():
        path = path or "."
        handles.append(module.register_forward_pre_hook(lambda m, a, path=path: events.append((">", path))))
        handles.append(module.register_forward_hook(lambda m, a, o, path=path: events.append(("<", path))))
    output = model(**inputs)
    for handle in handles:
        handle.remove()
    for name, tensor in model.named_parameters():
        if tensor.requires_grad:
            tensor.register_post_accumulate_grad_hook(lambda t, name=name: ready.append(name))
    loss = getattr(output, "loss", None)
    if loss is None:
        loss = sum(tensor.float().sum() for tensor in output.values())
    loss.backward()
    return events, ready


def saved_tensors(model):
    """The tensors of the safetensors file that save_pretrained writes, from its header."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return sorted((name, "x".join(map(str, row["shape"])) or "scalar", row["dtype"])
                  for name, row in header.items() if name != "__metadata__")


def short(value):
    """JSON, with a list of repeated strings counted run by run."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        runs = [(key, len(list(group))) for key, group in itertools.groupby(value)]
        return "[" + ", ".join(f"{key} x{count}" for key, count in runs) + "]"
    return json.dumps(value, default=str)


def write(path, text):
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def full(out_dir, paths):
    for path in paths:
        torch.manual_seed(0)
        meta, model = build(path, "meta"), build(path, "cpu", torch.float32)
        rows = list(parameter_rows(meta))
        on_cpu = list(parameter_rows(model))
        assert [(r[0], r[1].shape, r[3]) for r in rows] == [(r[0], r[1].shape, r[3]) for r in on_cpu], path
        unique = [r for r in rows if not r[3]]
        out = [f"# torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
               f"class {type(meta).__name__}",
               f"config {type(meta.config).__name__} attention={meta.config._attn_implementation} "
               f"experts={getattr(meta.config, '_experts_implementation', None)}",
               f"unique {len(unique)} tensors {sum(r[1].numel() for r in unique)} elements", ""]
        for name, tensor, owner, tied in rows:
            flags = (f" tied_to={tied}" if tied else "") + ("" if tensor.requires_grad else " requires_grad=0") \
                + ("" if tensor.dtype == (meta.config.dtype or torch.float32) else f" dtype={dtype_text(tensor)}")
            out.append(f"parameter {name} {shape_text(tensor)} {owner}{flags}")
        out.append("")
        for name, tensor, persistent, other in buffer_rows(model):
            same = f" storage_of={other}" if other else ""
            out.append(f"buffer {name} {shape_text(tensor)} {dtype_text(tensor)} "
                       f"{'persistent' if persistent else 'not_persistent'}{same}")
        half = build(path, "cpu", torch.bfloat16)
        out += [f"bf16_exception {kind} {name} {dtype_text(tensor)}" for kind, tensors in
                (("parameter", half.named_parameters()), ("buffer", half.named_buffers()))
                for name, tensor in tensors if tensor.dtype != torch.bfloat16]
        out.append("")
        out += [f"module {name or '.'} {type(module).__name__}"
                for name, module in model.named_modules(remove_duplicate=False)]
        out.append("")
        events, ready = calls(model)
        position = 0
        while position < len(events):
            mark, name = events[position]
            leaf = mark == ">" and events[position + 1:position + 2] == [("<", name)]
            out.append(f"{'call' if leaf else {'>': 'enter', '<': 'exit'}[mark]} {name}")
            position += 2 if leaf else 1
        out.append("")
        out += [f"gradient {name}" for name in ready]
        out += [f"no_gradient {name}" for name, tensor in model.named_parameters() if tensor.grad is None]
        out.append("")
        out += [f"checkpoint {name} {shape} {dtype}" for name, shape, dtype in saved_tensors(half)]
        write(os.path.join(out_dir, os.path.basename(path).removesuffix(".json") + ".txt"), "\n".join(out) + "\n")


def counts(out_path, paths):
    lines = ["name,total,tensors,sha256"]
    for path in paths:
        unique = [(name, tensor) for name, tensor, _, tied in parameter_rows(build(path, "meta")) if not tied]
        text = "\n".join(f"{name} {shape_text(tensor)}" for name, tensor in unique)
        lines.append(f"{os.path.basename(path).removesuffix('.json')},{sum(t.numel() for _, t in unique)},"
                     f"{len(unique)},{hashlib.sha256(text.encode()).hexdigest()}")
    write(out_path, "\n".join(lines) + "\n")


def defaults(out_path):
    out = [f"# transformers {transformers.__version__}: config class defaults, then (when different) what an "
           "otherwise empty config resolves them to"]
    for family in FAMILIES:
        cls = CONFIG_MAPPING[family]
        resolved = cls()
        out += ["", f"[{family}] {cls.__name__}"]
        own = {f.name: f.default for f in dataclasses.fields(cls)}
        for name in sorted(own):
            if name in INERT:
                continue
            value, later = own[name], getattr(resolved, name, None)
            value = None if value is dataclasses.MISSING else value
            change = "" if later == value else f" -> {short(later)}"
            out.append(f"{name} = {short(value)}{change}")
        out += [f"property {name} = {json.dumps(getattr(resolved, name, None), default=str)}"
                for name in ("head_dim", "rotary", "num_key_value_heads") if name not in own and hasattr(resolved, name)]
        out += [f"alias {standard} -> {own_name}" for standard, own_name in sorted(cls.attribute_map.items())]
    write(out_path, "\n".join(out) + "\n")


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    command, out, *paths = sys.argv[1:]
    {"full": full, "counts": counts, "defaults": lambda out, _: defaults(out)}[command](out, sorted(paths))


if __name__ == "__main__":
    main()
