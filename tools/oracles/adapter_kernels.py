"""What axolotl puts in place of peft's modules, by axolotl's own code, of which no more is installed than the package."""

import importlib.util
import os
import sys
import types

FORWARDS = {}  # What attention classes had before.


class Wanted(dict):
    """axolotl's configuration, which has None for what nobody said."""

    __getattr__ = dict.get


def names_of_classes():
    """axolotl/utils/callbacks/models.py, whose folder imports half of PyPI."""
    axolotl = importlib.util.find_spec("axolotl").submodule_search_locations[0]
    path = os.path.join(axolotl, "utils", "callbacks", "models.py")
    spec = importlib.util.spec_from_file_location("axolotl.utils.callbacks.models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(model, wished):
    """axolotl's own patch of the attention's source and of the model (loaders/patch_manager.py). `wished`: of qkv, o, mlp."""
    for name in ("callbacks", "dict"):  # Of which the patch needs a name each.
        sys.modules.setdefault("axolotl.utils." + name, types.ModuleType(name))
    if "axolotl.utils.callbacks.models" not in sys.modules:
        sys.modules["axolotl.utils.callbacks.models"] = names_of_classes()
    sys.modules["axolotl.utils.dict"].DictDefault = dict
    from axolotl.monkeypatch import lora_kernels
    kinds = wished.split(",")
    wanted = Wanted({f"lora_{one}_kernel": one in kinds for one in ("qkv", "o", "mlp", "embedding")}, base_model="")
    lora_kernels.AutoConfig = types.SimpleNamespace(from_pretrained=lambda name: model.config)
    if wanted.lora_qkv_kernel or wanted.lora_o_kernel:
        attention = lora_kernels.get_attention_cls_from_config(wanted)
        FORWARDS[attention] = attention.forward
        lora_kernels.patch_self_attn_lora(wanted)
    lora_kernels.apply_lora_kernel_patches(model, wanted)


def take_back():
    for attention, forward in FORWARDS.items():
        attention.forward = forward
        if hasattr(attention, "_original_forward"):
            del attention._original_forward
    FORWARDS.clear()
