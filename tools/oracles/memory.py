"""Outside oracle for dsplan's memory predictions: real torch and transformers under FakeTensorMode on cuda:0, with a
counter on every storage of the device.

    memory.py OUT_DIR [NAME...]     one NAME.json and NAME.log per configuration (all of them without NAME)

Nothing is computed and no GPU is needed: fake tensors have sizes, devices and storages, but no data. What is seen is
what the dispatcher sees: every storage that an operator returns. Temporaries inside kernels are not seen.

Needs the CUDA build of torch (fused optimizers, sdpa and autocast choose by build and device) and a C compiler for
no_accelerator.c. See README.md for the format.
"""

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import types
import weakref

from preload import preload

if __name__ == "__main__":
    preload()

import torch
import torch.nn.functional as F
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

import adapter_kernels
import known_values
from memory_cases import CASES

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "dry", "site"))
from dsplan_dry.routing import tokens_of_experts

DEVICE = torch.device("cuda:0")
torch.utils._device._device_constructors()  # Keeps what they are: torch.tensor is given another function below.
torch.distributions.Distribution.set_default_validate_args(False)  # Asks numbers of the host, which fake ones are not (gemma3n).
RELEASED = "5.17.0"  # Cases of other versions name theirs, and need it installed.
LIGER = "0.8.5"
OLD = transformers.__version__.startswith("4.")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
aten = torch.ops.aten
# Under a dispatch mode the engine and some formulas take the out-of-place form, because of at::isTensorSubclassLike:
# real tensors take the one beside it.
IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,  # Sums of gradients (input_buffer.cpp), if the first is nobody else's.
    aten.index_put.default: aten.index_put_.default,  # index_backward (FunctionsManual.cpp).
    aten.scatter_add.default: aten.scatter_add_.default,  # gather_backward (TensorAdvancedIndexing.cpp).
    aten.logical_and.default: aten.logical_and_.default,  # clamp_backward of bounds that are tensors (FunctionsManual.cpp).
    aten.scatter.src: aten.scatter_.src,  # value_selecting_reduction_backward: topk, sort (FunctionsManual.cpp).
}


class Meter(TorchDispatchMode):
    """Counts the requested bytes of the device's storages from their creation to their finaliser.

    A storage's Python object lives as long as the storage itself (PyObject preservation), so that a weak reference to
    it reports the true end, whoever held it: Python, autograd or the engine."""

    def __init__(self, follows_values=False):
        super().__init__()
        self.follows_values = follows_values
        self.references = {}
        self.live = 0
        self.peak = 0
        self.requested_total = 0  # Of all storages, whatever was freed meanwhile.
        self.allocations = 0
        self.log = []
        self.unknown = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is aten._local_scalar_dense.default and getattr(args[0], "known", None) is not None:
            return known_values.item(args[0])
        if func is aten._local_scalar_dense.default:
            # What Python asks here (is the batch packed? are all tokens unmasked?) is always so; what it draws on the
            # host (is this layer left out?) is never.
            return args[0].device == DEVICE
        if func is aten.nonzero.default and args[0].device == DEVICE and getattr(args[0], "known", None) is None:
            # Of all rows: each has a label (deberta's head over the text).
            func, args = aten.empty.memory_format, ([args[0].numel(), args[0].dim()],)
            kwargs = {"dtype": torch.int64, "device": DEVICE}
        if func is aten.equal.default:
            return True  # Liger asks whether the loss's gradient is one.
        if func is aten._grouped_mm.default and args[0].dtype != torch.bfloat16:
            # The form for fake tensors knows one dtype, that of a GPU all that a product has (Blas.cpp).
            narrow = func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **(kwargs or {}))
            args = (narrow.shape, narrow.stride())
            func, kwargs = aten.empty_strided.default, {"dtype": torch.float32, "device": DEVICE}
        in_place = IN_PLACE.get(func)
        if func is aten.index_put.default and not (len(args) > 3 and args[3]):
            in_place = None  # The backward of index_put_ itself, which does not accumulate, and copies.
        if func is aten.add.Tensor and Composite.in_math:
            return aten.add_.Tensor(*args, **(kwargs or {}))  # The math kernel adds its mask in place.
        if in_place and not torch.is_grad_enabled() and (in_place is not aten.add_.Tensor or self.owned(args[0])):
            func = in_place
        out = known_values.run(func, args, kwargs or {}) if self.follows_values else func(*args, **(kwargs or {}))
        made = []
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device == DEVICE:
                size = self.count(tensor.untyped_storage())
                if size:
                    made.append(size)
        if made:
            name = func.name().removeprefix("aten::").split(".")[0]
            self.log.append(f"+{','.join(map(str, made))} {name}")
            self.peak = max(self.peak, self.live)
        return out

    def owned(self, tensor):
        """Whether the engine would add to this buffer in place (can_accumulate_inplace in input_buffer.cpp): dense, and
        nobody else holds the tensor or its storage. The counts include what this call itself holds."""
        own_tensor, own_storage = 4, 2
        return (isinstance(tensor, torch.Tensor) and tensor.device == DEVICE
                and dense(tensor)
                and tensor._use_count() == own_tensor
                and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == own_storage)

    def count(self, storage):
        key = id(storage)
        known = self.references.get(key)
        if known is not None and known() is storage:
            return 0
        size = storage.nbytes()
        if size == 0:
            return 0

        def ended(_, key=key, size=size):
            del self.references[key]
            self.live -= size
            if self.log and self.log[-1][0] == "-":
                self.log[-1] += f",{size}"
            else:
                self.log.append(f"-{size}")

        self.references[key] = weakref.ref(storage, ended)
        self.live += size
        self.requested_total += size
        self.allocations += 1
        return size

    def mark(self, text):
        self.log.append(f"# {text}")

    def window(self):
        """The highest live figure since the last call."""
        peak, self.peak = self.peak, self.live
        return peak


def dense(tensor):
    """Non-overlapping and without gaps."""
    expected = 1
    for stride, size in sorted((tensor.stride(i), size) for i, size in enumerate(tensor.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def class_of(case):
    """The class that the config's `architectures` names; without it a causal model."""
    return (case["config"].get("architectures") or [""])[0]


def maker_of(case):
    name = class_of(case)
    return getattr(transformers, name)._from_config if name else AutoModelForCausalLM.from_config


def model_of(case, meter):
    if "model_code" in case["training"]:
        return torchtitan_model(case)
    config = AutoConfig.for_model(**case["config"])
    training = case["training"]
    without_kernels()
    with torch.device(DEVICE):
        model = maker_of(case)(
            config, **{"torch_dtype" if OLD else "dtype": DTYPES[training["dtype"]]},
            attn_implementation="eager" if training["attention"] == "eager" else "sdpa",
            **({"experts_implementation": training["experts"]} if "experts" in training else {}))
    model.train()
    in_order_of_kinds(model)
    if "routing" in training:
        with_routing(model, training["routing"])
    if "liger_kernels" in training:
        with_liger_kernels(model, training["liger_kernels"])
    if "tp" in training:
        import tensor_parallel
        model = tensor_parallel.parallel(model, training["tp"])
    if "lora" in training:
        causal = not class_of(case) or "lora_kernels" in training  # Which are put into such a model alone.
        model = with_adapters(model, training["lora"], "CAUSAL_LM" if causal else None)
    if "lora_kernels" in training:
        adapter_kernels.put(model, training["lora_kernels"])
    frozen = training.get("freeze", [])
    if frozen:
        import fnmatch
        for name, parameter in model.named_parameters():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in frozen):
                parameter.requires_grad_(False)
    if training["checkpoint"] == "full":
        base = model.base_model.model if "lora" in training else model
        base.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": case.get("reentrant", False)})
        if case.get("input_require_grads"):
            base.enable_input_require_grads()
    return model


def torchtitan_model(case):
    """torchtitan's own class of the same shape, checkpointed by its own apply_ac."""
    from torchtitan.config.job_config import ActivationCheckpoint
    from torchtitan.distributed import activation_checkpoint
    config, training = case["config"], case["training"]
    shape = {"dim": config["hidden_size"], "n_layers": config["num_hidden_layers"], "n_heads": config["num_attention_heads"],
             "n_kv_heads": config["num_key_value_heads"], "vocab_size": config["vocab_size"], "max_seq_len": training["seq"]}
    if config["model_type"] == "qwen3":
        from torchtitan.models.qwen3 import Qwen3Model as made, Qwen3ModelArgs as arguments
        from torchtitan.models.qwen3.infra.parallelize import _op_sac_save_list as kept
        shape |= {"head_dim": config["head_dim"], "hidden_dim": config["intermediate_size"],
                  "enable_weight_tying": config["tie_word_embeddings"]}
    else:
        from torchtitan.models.llama3 import Transformer as made, TransformerModelArgs as arguments
        from torchtitan.models.llama3.infra.parallelize import _op_sac_save_list as kept
        plain = 2 * 4 * shape["dim"] // 3
        assert plain <= config["intermediate_size"] < 2 * plain
        shape |= {"multiple_of": config["intermediate_size"]}  # To which the width is rounded up.
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[training["dtype"]])
    try:
        with torch.device(DEVICE):
            model = made(arguments(**shape))
    finally:
        torch.set_default_dtype(before)
    model.train()
    how = training["checkpoint"]
    if how != "none":
        mode, option = {"full": ("full", "1")}.get(how, ("selective", "op" if how.startswith("keep:") else "2"))
        activation_checkpoint._layer_sac_count = 0  # It counts on from one model to the next.
        activation_checkpoint.apply_ac(model, ActivationCheckpoint(mode=mode, selective_ac_option=option), op_sac_save_list=kept)
    return model


def in_order_of_kinds(model):
    """gemma4 makes its tables by kind of layer in the order of a set, which each run of Python draws anew: here that in
    which its rotary module has them."""
    for module in model.modules():
        if isinstance(getattr(module, "unique_layer_types", None), set):
            module.unique_layer_types = sorted(module.unique_layer_types)


def with_routing(model, rule):
    """Each mixture's experts are told which tokens are whose: expert by expert, as many as the rule gives it, taken from
    the tokens in turn, so that none goes to an expert twice."""
    found = [module for name, module in model.named_modules() if name.endswith(".experts")]
    for at, experts in enumerate(found):
        def routed(hidden, index, weights, experts=experts, at=at, forward=experts.forward):
            counts = tokens_of_experts(rule, *index.shape, experts.num_experts, at)
            with known_values._disable_current_modes():
                of_pair = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
                index.known = of_pair.reshape(index.shape[1], index.shape[0]).T.contiguous()
            return forward(hidden, index, weights)

        experts.forward = routed


def with_adapters(model, lora, task):
    import peft
    torch._subclasses.FakeTensor.__deepcopy__ = copied
    torch.nn.Module._apply = converted  # Fake parameters cannot be swapped, as Module.to() would.
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=lora["r"], lora_alpha=lora.get("alpha", 2 * lora["r"]), lora_dropout=lora.get("dropout", 0.0), target_modules=lora.get("targets"),
        target_parameters=lora.get("parameters"),
        bias=lora.get("bias", "none"), use_dora=lora.get("dora", False), use_rslora=lora.get("rslora", False),
        modules_to_save=lora.get("save"), task_type=task), autocast_adapter_dtype=lora["dtype"] == "fp32")
    return model


def copied(parameter, memo):
    """What torch's own __deepcopy__ makes of a fake parameter is none, and its storage loses its Python object."""
    memo[id(parameter)] = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    return memo[id(parameter)]


def converted(module, function, recurse=True):
    for child in module.children() if recurse else ():
        converted(child, function)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = torch.nn.Parameter(function(parameter.detach()), parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def optimizer_of(case, model):
    chosen = case["training"]["optimizer"]
    trained = [p for p in model.parameters() if p.requires_grad]
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}[chosen["implementation"]]
    if chosen["name"] == "sgd":
        return torch.optim.SGD(trained, lr=1e-3, momentum=chosen.get("momentum", 0.0), **how)
    return torch.optim.AdamW(trained, lr=1e-3, **how)


def layers_of(model):
    lists = {}
    for name, module in model.named_modules():
        if name.endswith(("vision_model.transformer.layers", "vision_model.global_transformer.layers")):
            continue  # mllama's, which no checkpoint runs.
        inside = any(name.startswith(outer + ".") for outer in lists)
        if ("." + name).endswith((".layers", ".h", ".layer", ".block", ".blocks")) and isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)) and not inside:
            lists[name] = module.values() if isinstance(module, torch.nn.ModuleDict) else module
    if type(getattr(model, "base_model", model)).__name__ in ("CLIPModel", "SiglipModel"):
        lists = dict(reversed(lists.items()))  # Pictures are seen first.
    # Layers of albert are called several times each, and have no numbers of their own.
    assert lists or any(name.endswith("albert_layer_groups") for name, _ in model.named_modules()), "no layers"
    return [layer for module in lists.values() for layer in module]


class Run:
    """One model, two optimizer steps of dsplan's loop (design.md, section 2)."""

    def __init__(self, case, with_hooks):
        self.case = case
        self.training = case["training"]
        asks = self.looks_for_pictures() or case["config"].get("rope_scaling", {}).get("type") == "longrope"
        self.meter = Meter("image_size" in self.training or "routing" in self.training or asks)
        self.ready = []
        self.layers = []
        self.in_forward = False
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        fake.cache_enabled = not self.asks_for_biases()
        torch.tensor = known_values.tensor if self.meter.follows_values else MAKE_TENSOR
        with fake, self.meter:
            self.model = model_of(case, self.meter)
            gc.collect()
            gc.disable()
            self.parameters = self.meter.live
            self.optimizer = optimizer_of(case, self.model)
            if with_hooks:
                self.add_hooks()
            self.meter.log.clear()
            self.steps = [self.step(), self.step()]
            held = self.meter.live
            gc.enable()
            gc.collect()
            self.held_by_cycles = held - self.meter.live

    def add_hooks(self):
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                name = name.replace("_checkpoint_wrapped_module.", "")
                parameter.register_post_accumulate_grad_hook(lambda _, name=name: self.ready.append(name))
        for at, layer in enumerate(layers_of(self.model)):
            layer.register_forward_pre_hook(lambda module, args, at=at: self.enter(at))
            layer.register_forward_hook(lambda module, args, out, at=at: self.leave(at))

    def enter(self, at):
        if self.in_forward:
            self.layers.append(-self.meter.live)
            self.meter.mark(f"layer {at}")

    def leave(self, at):
        if self.in_forward:
            self.layers[-1] += self.meter.live
            self.meter.mark(f"end of layer {at}")

    def batch(self):
        shape = (self.training["micro_batch"], self.training["seq"])
        # What collators give with transformers 4: without it any batch would count as a packed one.
        names = ["input_ids", "labels"] + (["attention_mask"] if OLD else [])
        if "model_code" in self.training:
            return {**{name: torch.empty(shape, dtype=torch.int64, device=DEVICE) for name in names},
                    "count": torch.empty((), device=DEVICE)}
        kind = class_of(self.case)
        shapes = {name: shape for name in names}
        if "target_seq" in self.training:
            shapes["labels"] = (shape[0], self.training["target_seq"])
        if kind.startswith("Whisper"):
            bands = self.case["config"]["num_mel_bins"]
            shapes = {"input_features": (shape[0], bands, 2 * shape[1]), "labels": shapes["labels"]}
        if kind.endswith(("ForSequenceClassification", "ForImageClassification")):
            shapes["labels"] = shape[:1]
        if kind.endswith("ForQuestionAnswering"):
            del shapes["labels"]
            shapes.update(start_positions=shape[:1], end_positions=shape[:1])
        config = self.case["config"]
        size = config.get("vision_config", config).get("image_size")
        if kind.startswith("Dinov2"):  # Of as many patches as the sequence has, beside a class token.
            size = round((shape[1] - 1) ** 0.5) * config["patch_size"]
        if kind.endswith("ForImageClassification"):
            shapes = {"pixel_values": (shape[0], 3, size, size), "labels": shapes["labels"]}
        if kind in ("CLIPModel", "SiglipModel"):
            shapes = {"input_ids": shape, "pixel_values": (shape[0], 3, size, size)}
        if self.training.get("images") == 0:  # What a tokenizer gives, and no processor of pictures.
            return {name: torch.empty(of, dtype=torch.int64, device=DEVICE) for name, of in shapes.items()}
        if "images" in self.training and size is not None:
            shapes["pixel_values"] = (shape[0] * self.training["images"], 3, size, size)
        if kind.startswith("Mllama"):  # Tiles, the shape of each picture, which tiles it has, and which tokens see them.
            rows, pictures, tiles = shape[0], self.training["images"], config["vision_config"]["max_num_tiles"]
            shapes["pixel_values"] = (rows, pictures, tiles, 3, size, size)
            shapes["aspect_ratio_ids"] = (rows, pictures)
            shapes["aspect_ratio_mask"] = (rows, pictures, tiles)
            shapes["cross_attention_mask"] = (*shape, pictures, tiles)
        if kind.startswith(("Gemma3For", "PaliGemmaFor")):
            shapes["token_type_ids"] = shape  # The processor says which tokens are a picture's.
        if self.looks_for_pictures():
            return self.batch_of_masked(shapes, size)
        if "image_size" in self.training:
            return self.batch_of_grids(shapes)
        # The weights' own dtype is what a convolution takes, and llama4's product in the place of one.
        pixels = DTYPES[self.training["dtype"]] if kind.startswith("Llama4") else torch.float32
        dtypes = {"pixel_values": pixels, "input_features": DTYPES[self.training["dtype"]]}
        if kind.endswith("ForSequenceClassification") and config.get("num_labels") == 1:
            dtypes["labels"] = torch.float32  # What is regressed to.
        return {name: torch.empty(of, dtype=dtypes.get(name, torch.int64), device=DEVICE) for name, of in shapes.items()}

    def batch_of_grids(self, shapes):
        """Of a model that takes pictures of all sizes: patches, the grid of each picture, and which tokens are one's.
        A row is a mark, a picture, two marks, a picture, ..., and text."""
        rows, length = shapes["input_ids"]
        vision = self.case["config"]["vision_config"]
        if "image_grid_pinpoints" in self.case["config"]:
            return self.batch_of_squares(shapes)
        if vision["model_type"] == "pixtral":
            return self.batch_of_sizes(shapes)
        if vision["model_type"] == "gemma4_vision":
            return self.batch_of_padded(shapes)
        patch, frames, merge = vision["patch_size"], vision["temporal_patch_size"], vision["spatial_merge_size"]
        height, width = (pixels // patch for pixels in self.training["image_size"])
        pictures = self.training["images"]
        tokens = height * width // merge**2
        made = {name: torch.empty(of, dtype=torch.int64, device=DEVICE) for name, of in shapes.items() if name != "pixel_values"}
        made["pixel_values"] = torch.empty(rows * pictures * height * width, 3 * frames * patch**2, device=DEVICE)
        made["image_grid_thw"] = torch.empty((rows * pictures, 3), dtype=torch.int64, device=DEVICE)
        made["mm_token_type_ids"] = torch.empty((rows, length), dtype=torch.int64, device=DEVICE)
        with known_values._disable_current_modes():
            grids = torch.tensor([[1, height, width]] * (rows * pictures))
            types = torch.zeros(rows, length, dtype=torch.int64)
            for picture in range(pictures):
                begin = 1 + picture * (tokens + 2)
                types[:, begin:begin + tokens] = 1
            ids = types * self.case["config"]["image_token_id"]
        made["image_grid_thw"].known = grids
        made["input_ids"].known = ids
        made["mm_token_type_ids"].known = types
        return made

    def batch_of_squares(self, shapes):
        """LLaVA-NeXT's processor gives the squares of each picture, the whole of it first, and what its size was."""
        config = self.case["config"]
        pictures = shapes["input_ids"][0] * self.training["images"]
        side = config["vision_config"]["image_size"]
        height, width = transformers.image_processing_utils.select_best_resolution(
            self.training["image_size"], config["image_grid_pinpoints"])
        squares = 1 + (height // side) * (width // side)
        made = {name: torch.empty(of, dtype=torch.int64, device=DEVICE) for name, of in shapes.items() if name != "pixel_values"}
        made["pixel_values"] = torch.empty(pictures, squares, 3, side, side, device=DEVICE)
        made["image_sizes"] = torch.empty((pictures, 2), dtype=torch.int64, device=DEVICE)
        with known_values._disable_current_modes():
            made["image_sizes"].known = torch.tensor([self.training["image_size"]] * pictures)
        return made

    def batch_of_sizes(self, shapes):
        """Pixtral's processor gives whole pictures, and the size of each."""
        pictures = shapes["input_ids"][0] * self.training["images"]
        made = {name: torch.empty(of, dtype=torch.int64, device=DEVICE) for name, of in shapes.items() if name != "pixel_values"}
        made["pixel_values"] = torch.empty(pictures, 3, *self.training["image_size"], device=DEVICE)
        made["image_sizes"] = torch.empty((pictures, 2), dtype=torch.int64, device=DEVICE)
        with known_values._disable_current_modes():
            made["image_sizes"].known = torch.tensor([self.training["image_size"]] * pictures)
        return made

    def batch_of_padded(self, shapes):
        """Gemma 4's processor gives each picture as many patches as the largest may have, and of each its column and
        row: -1 where there is none. A row is laid out as above."""
        rows, length = shapes["input_ids"]
        config = self.case["config"]
        patch, side = (config["vision_config"][key] for key in ("patch_size", "pooling_kernel_size"))
        height, width = (pixels // patch for pixels in self.training["image_size"])
        pictures = self.training["images"]
        tokens = height * width // side**2
        patches = config["vision_soft_tokens_per_image"] * side**2
        made = {name: torch.empty(of, dtype=torch.int64, device=DEVICE) for name, of in shapes.items()}
        made["pixel_values"] = torch.empty(rows * pictures, patches, 3 * patch**2, device=DEVICE)
        made["image_position_ids"] = torch.empty((rows * pictures, patches, 2), dtype=torch.int64, device=DEVICE)
        made["mm_token_type_ids"] = torch.empty((rows, length), dtype=torch.int64, device=DEVICE)
        with known_values._disable_current_modes():
            places = torch.full((rows * pictures, patches, 2), -1)
            places[:, :height * width, 0] = torch.arange(width).repeat(height)
            places[:, :height * width, 1] = torch.arange(height).repeat_interleave(width)
            types = torch.zeros(rows, length, dtype=torch.int64)
            for picture in range(pictures):
                begin = 1 + picture * (tokens + 2)
                types[:, begin:begin + tokens] = 1
            ids = types * config["image_token_id"]
        made["image_position_ids"].known = places
        made["input_ids"].known = ids
        made["mm_token_type_ids"].known = types
        return made

    def looks_for_pictures(self):
        """Among those of its batch, which may be nothing but zeros (idefics3, smolvlm)."""
        return self.case["config"]["model_type"] in ("idefics3", "smolvlm")

    def batch_of_masked(self, shapes, size):
        """Idefics3's processor gives as many pictures to each row, and which pixels are a picture's. A row is laid out as
        above."""
        rows, length = shapes["input_ids"]
        config = self.case["config"]
        pictures = self.training["images"]
        tokens = (size // config["vision_config"]["patch_size"] // config.get("scale_factor", 2))**2
        made = {name: torch.empty(of, dtype=torch.int64, device=DEVICE) for name, of in shapes.items() if name != "pixel_values"}
        made["pixel_values"] = torch.empty(rows, pictures, 3, size, size, device=DEVICE)
        made["pixel_attention_mask"] = torch.empty(rows, pictures, size, size, device=DEVICE)
        with known_values._disable_current_modes():
            types = torch.zeros(rows, length, dtype=torch.int64)
            for picture in range(pictures):
                begin = 1 + picture * (tokens + 2)
                types[:, begin:begin + tokens] = 1
            made["pixel_values"].known = torch.ones(rows, pictures, 3, size, size)
            made["pixel_attention_mask"].known = torch.ones(rows, pictures, size, size)
            made["input_ids"].known = types * config["image_token_id"]
        return made

    def asks_for_biases(self):
        """A kernel's answer that was kept does not say which gradients were asked for: that of a bias would be missed,
        or made for nobody."""
        return self.case["config"]["model_type"] in ("t5", "mt5", "umt5")

    def indexes_by_lists(self):
        """What becomes a tensor on the device; in the engine's own thread that asks for a driver."""
        return self.case["config"]["model_type"] in ("falcon", "gpt_neo", "gemma3n_text")

    def autocast(self):
        to = self.training.get("autocast")
        return torch.autocast("cuda", DTYPES[to]) if to else contextlib.nullcontext()

    def step(self):
        meter = self.meter
        self.ready.clear()
        meter.window()
        begin = meter.live
        micro_batches = []
        highest = 0
        for micro in range(self.training["grad_accum"]):
            self.layers.clear()
            meter.mark(f"micro-batch {micro}")
            self.held = self.batch()  # Replaces the one before it.
            self.in_forward = True
            before = meter.live
            highest = max(highest, meter.window())
            meter.mark("forward")
            with self.autocast():
                loss = LOSSES[self.training.get("loss", "torchtitan").split(":")[0]](self)
            self.in_forward = False
            figures = {"before_forward": before, "after_forward": meter.live, "forward_peak": meter.window(),
                       "layers": list(self.layers)}
            meter.mark("backward")
            self.ready.clear()
            with torch.autograd.set_multithreading_enabled(not self.indexes_by_lists()):
                loss.backward()
            figures["backward_peak"] = meter.window()
            del loss
            figures["after_backward"] = meter.live
            highest = max(highest, figures["forward_peak"], figures["backward_peak"])
            micro_batches.append(figures)
        meter.mark("step")
        meter.window()
        self.optimizer.step()
        in_step = meter.window()
        before_zero = meter.live
        self.optimizer.zero_grad(set_to_none=True)
        return {"before": begin, "micro_batches": micro_batches, "peak_of_optimizer": in_step,
                "after_optimizer": before_zero, "after_step": meter.live, "peak": max(highest, in_step)}


def model_loss(run):
    cache = {"use_cache": run.case["training"].get("use_cache", False)} if "input_ids" in run.held else {}
    if class_of(run.case) in ("CLIPModel", "SiglipModel"):
        cache = {"return_loss": True}
    outputs = run.model(**run.held, **cache)
    return outputs.loss


def torchtitan_loss(run):
    """train.py's, on one rank: the number of tokens that count stays on the device."""
    from torchtitan.components.loss import cross_entropy_loss
    logits = run.model(run.held["input_ids"])
    return cross_entropy_loss(logits, run.held["labels"]) / run.held["count"]


def native_loss(run):
    """transformers' loss without its upcast."""
    outputs = run.model(input_ids=run.held["input_ids"], use_cache=run.case["training"].get("use_cache", False))
    labels = F.pad(run.held["labels"], (0, 1), value=-100)
    shifted = labels[..., 1:].contiguous()
    rows = outputs.logits.view(-1, outputs.logits.shape[-1])
    shifted = shifted.view(-1)
    return F.cross_entropy(rows, shifted, ignore_index=-100, reduction="mean")


def chunked_loss(run):
    """torchtune's chunked_output and CEWithChunkedOutputLoss around transformers' body and head."""
    chunks = int(run.training["loss"].split(":")[1])
    logits = chunked_logits(run, chunks)
    labels = F.pad(run.held["labels"], (0, 1), value=-100)
    loss = summed_over_chunks(logits, labels, labels[..., 1:].contiguous(), chunks)
    return loss


def chunked_logits(run, chunks):
    hidden = run.model.model(input_ids=run.held["input_ids"], use_cache=False).last_hidden_state
    return [run.model.lm_head(piece) for piece in hidden.tensor_split(chunks, dim=1)]


def summed_over_chunks(logits, padded, labels, chunks):
    count = (labels != -100).sum()
    labels = [piece.reshape(-1) for piece in labels.chunk(chunks, dim=1)]
    logits = [piece.reshape(-1, piece.size(-1)) for piece in logits]
    total = 0.0
    for logits_piece, labels_piece in zip(logits, labels):
        total += F.cross_entropy(logits_piece.float(), labels_piece, ignore_index=-100, reduction="sum")
    return total / count


def liger_loss(run):
    """Liger's forward of a causal model, for its loss alone. Its kernel does not run, nor what it compares."""
    import liger_kernel.ops.fused_linear_cross_entropy as fused
    fused.liger_cross_entropy_kernel = NoKernel()
    torch.tensor = scalar_on_device  # Which would look for a driver.
    family = importlib.import_module("liger_kernel.transformers.model." + run.case["config"]["model_type"])
    forward = getattr(family, "lce_forward", None) or family.causal_forward
    if "lora" not in run.training:
        return types.MethodType(forward, run.model)(**run.held, use_cache=False).loss
    inner = run.model.base_model.model
    inner.forward = types.MethodType(forward, inner)
    return run.model(**run.held, use_cache=False).loss


def with_liger_kernels(model, wished):
    """What transformers' use_liger_kernel puts in place of a model's own operators; none of its kernels runs. On a GPU of
    132 multiprocessors, as dsplan takes it where no device is named."""
    import liger_kernel.ops.rms_norm as norms
    import liger_kernel.ops.rope as rope
    import liger_kernel.ops.swiglu as swiglu
    import liger_kernel.transformers.rope
    from liger_kernel.transformers import monkey_patch
    for module in (norms, rope, swiglu):
        for name, value in vars(module).items():
            if name.startswith(("_rms_norm_", "_block_rms_norm_", "_triton_rope", "_swiglu_")) and not isinstance(value, types.FunctionType):
                setattr(module, name, NoKernel())
    norms.device_context = swiglu.device_context = lambda device: contextlib.nullcontext()
    swiglu._should_tile = lambda columns: False  # Of a B200 alone.
    liger_kernel.transformers.rope.dispatch = lambda name, *arguments: rope.LigerRopeFunction.apply(*arguments)
    torch.cuda.get_device_properties = lambda device=None: types.SimpleNamespace(multi_processor_count=132)
    kinds = wished.split(",")
    kind = model.config.model_type
    apply = getattr(monkey_patch, f"apply_liger_kernel_to_{kind}")
    modeling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    MODELING[kind] = (modeling, dict(vars(modeling)))
    apply(rope="rope" in kinds, rms_norm="rms_norm" in kinds, swiglu="swiglu" in kinds, fused_linear_cross_entropy=False,
          model=model)


MODELING = {}  # What the modules of transformers held before Liger put its own names there.


def without_kernels():
    adapter_kernels.take_back()
    without_liger_kernels()


def without_liger_kernels():
    for modeling, kept in MODELING.values():
        vars(modeling).update(kept)
    MODELING.clear()


MAKE_TENSOR = torch.tensor


def scalar_on_device(data, *, device=None, **arguments):
    if device == DEVICE:
        return aten.scalar_tensor(data, dtype=torch.float32, device=device)
    return MAKE_TENSOR(data, device=device, **arguments)


class NoKernel:
    def __getitem__(self, grid):
        return lambda *operands, **arguments: None


LOSSES = {"hf": model_loss, "native": native_loss, "chunked": chunked_loss, "liger": liger_loss, "torchtitan": torchtitan_loss}


def equal_but_for_marks(a, b):
    def plain(log):
        lines = []
        for line in log:
            if line[0] == "+":
                lines.append([line])
            elif line[0] == "-":
                lines[-1] += line[1:].split(",")
        return [line[:1] + sorted(line[1:]) for line in lines]
    return plain(a) == plain(b)


def with_sorted_frees(log):
    """Autocast's cache ends in the order of a hash table, another one in each run."""
    return ["-" + ",".join(sorted(line[1:].split(","), key=int)) if line[0] == "-" else line for line in log]


def split_steps(log):
    at = [i for i, line in enumerate(log) if line == "# micro-batch 0"]
    return log[at[0]:at[1]], log[at[1]:]


def witness(name, case):
    torch.manual_seed(0)
    Composite.wished = case["training"]["attention"]
    run = Run(case, True)
    plain = Run(case, False)
    assert equal_but_for_marks(run.meter.log, plain.meter.log), f"{name}: hooks change lifetimes"
    model = run.model
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if "lora" in case["training"]:
        import peft
        versions["peft"] = peft.__version__
    if "tp" in case["training"]:
        versions["megatron-lm"] = os.environ["MEGATRON_COMMIT"]
    if "model_code" in case["training"]:
        versions["torchtitan"] = importlib.metadata.version("torchtitan")
    if case["training"].get("loss") == "liger" or "liger_kernels" in case["training"]:
        versions["liger-kernel"] = importlib.metadata.version("liger-kernel")
    if "lora_kernels" in case["training"]:
        versions["axolotl"] = importlib.metadata.version("axolotl")
    ends = [{k: v for k, v in step.items()} for step in run.steps]
    first, second = split_steps(with_sorted_frees(run.meter.log) if case["training"]["autocast"] else run.meter.log)
    result = {
        "dsplan": 1, "kind": "memory_witness",
        "source": "tools/oracles/memory.py: FakeTensorMode on cuda:0, requested bytes of storages that operators return",
        "versions": versions, "config": case["config"],
        "training": {"dsplan": 1, "kind": "training", "source": "memory_cases.py", **case["training"]},
        **({"reentrant": case["reentrant"]} if "reentrant" in case else {}),
        "attention_implementation": case["training"]["attention"],
        "artefacts": case.get("artefacts", []),
        "parameters": storage_bytes(p for p in model.parameters()),
        "buffers": storage_bytes(b for b in model.buffers()),
        "persistent_before_training": run.parameters,
        "held_by_cycles": run.held_by_cycles,
        "ready": run.ready,
        "first_step": ends[0], "second_step": ends[1],
    }
    return result, first, second


def storage_bytes(tensors):
    return sum({id(s): s.nbytes() for s in (t.untyped_storage() for t in tensors)}.values())


def write(out, name, result, first, second):
    with open(os.path.join(out, name + ".json"), "w") as file:
        file.write(compact(result) + "\n")
    with open(os.path.join(out, name + ".log"), "w") as file:
        file.write("\n".join(first) + "\n")
        file.write("# second step\n" + "\n".join(second) + "\n")


def compact(value):
    """One line per top-level key: short files, readable differences."""
    rows = [f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n}"


SDPA = F.scaled_dot_product_attention
LINEAR = F.linear


def linear(x, weight, bias=None):
    """Of three dimensions that are no matrix as they lie it is a product to which the bias is added; of a tensor's
    subclass out of place, otherwise not (Linear.cpp)."""
    low = torch.is_autocast_enabled("cuda") and x.dtype != torch.get_autocast_dtype("cuda")
    if bias is None or x.dim() != 3 or x.is_contiguous() or low:
        return LINEAR(x, weight, bias)
    return torch.matmul(x, weight.t()).add_(bias)


class Composite:
    """What the case asks of scaled_dot_product_attention, which a machine without a GPU cannot choose itself."""
    wished = "flash"
    in_math = False


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """scaled_dot_product_attention asks the GPU which kernels it has; here the answer is flash, or for fp32 and masks the
    memory-efficient one, or math if the case says so. Its composite code does no more for head sizes that are multiples
    of 8; the math kernel is composite code of its own, and runs as it is. "math+mem-efficient" is what sdpa does for t5,
    math where the rows of a mask have gaps, and for mllama in fp32, math where heads stay grouped."""
    gaps = attn_mask is not None and attn_mask.stride(-1) != 1
    if Composite.wished == "math" or (Composite.wished == "math+mem-efficient" and (gaps or enable_gqa)):
        Composite.in_math = True
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return SDPA(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        finally:
            Composite.in_math = False
    assert query.shape[-1] % 8 == 0
    if torch.is_autocast_enabled("cuda"):  # Casts first, from the last argument to the first.
        attn_mask, value, key, query = (x.to(torch.get_autocast_dtype("cuda")) if x is not None and x.is_floating_point() else x
                                        for x in (attn_mask, value, key, query))
    if attn_mask is not None:
        assert not enable_gqa
        bias = added_bias(query, key, attn_mask)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale)[0]
    wide = query.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")
    if wide or query.shape[-1] != value.shape[-1] or query.shape[-1] > 256:  # Which flash does not take.
        assert not enable_gqa
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, None, query.requires_grad, dropout_p, is_causal, scale=scale)[0]
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]


def added_bias(query, key, flags):
    """The composite code before the memory-efficient kernel: flags become 0 or minus infinity, rows are aligned."""
    bias = flags
    if flags.dtype == torch.bool:
        bias = aten.where.ScalarSelf(flags, 0.0, aten.scalar_tensor(float("-inf"), dtype=query.dtype, device=DEVICE))
    if any(stride % 8 for stride in bias.stride()[:-1]) or bias.stride(-1) != 1:
        width = bias.shape[-1]
        bias = aten.constant_pad_nd(bias, [0, 8 - width % 8])[..., :width]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def one_hot(index, num_classes):
    """What it is for tensors of a GPU; that of a fake one is put together of other operators (Onehot.cpp)."""
    out = torch.zeros((*index.shape, num_classes), dtype=index.dtype, device=index.device)
    return out.scatter_(-1, index.unsqueeze(-1), 1)


def patch():
    """Questions that a fake tensor, or a machine without a GPU, answers differently from a training run."""
    F.scaled_dot_product_attention = attention
    F.linear = linear
    F.one_hot = one_hot
    import transformers.masking_utils
    if hasattr(transformers.masking_utils, "is_tracing"):
        transformers.masking_utils.is_tracing = lambda tensor=None: False  # A fake tensor counts as tracing.
    transformers.masking_utils.set = lambda kinds: sorted({*kinds})  # Kinds of layers, in an order that each run of Python draws anew.
    import torch.cuda.amp.common
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    # What a script's second run compiles for the GPU (deberta's buckets) asks for a driver: operator by operator here.
    torch._C._jit_set_texpr_fuser_enabled(False)


def has_liger(training):
    """A case of another release of Liger is passed over, as one of another release of transformers is."""
    if training.get("loss") != "liger" and "liger_kernels" not in training:
        return True
    return training.get("liger_version", LIGER) == importlib.metadata.version("liger-kernel")


def main():
    out = sys.argv[1]
    patch()
    failed = []
    for name in sys.argv[2:] or CASES:
        if CASES[name]["training"].get("transformers_version", RELEASED) != transformers.__version__:
            continue
        if not has_liger(CASES[name]["training"]):
            continue
        if "model_code" in CASES[name]["training"] and importlib.util.find_spec("torchtitan") is None:
            continue
        if "lora_kernels" in CASES[name]["training"] and importlib.util.find_spec("axolotl") is None:
            continue
        if not sys.argv[2:] and "tp" in CASES[name]["training"]:
            continue  # They need Megatron-LM, and a process for each degree: asked for by name.
        try:
            result, first, second = witness(name, CASES[name])
        except Exception as error:
            if os.environ.get("STRICT"):
                raise
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        write(out, name, result, first, second)
        print(name, result["persistent_before_training"], result["second_step"]["peak"], result["held_by_cycles"],
              len(first))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failed else 0)  # The engine's device thread cannot be joined.


if __name__ == "__main__":
    main()
