"""What axolotl puts in place of peft's modules, by axolotl's own code, of which no more is installed than the package."""

import importlib
import sys
import types

FORWARDS = {}  # What attention classes had before.


def put(model, wished):
    """axolotl's own patch of the attention's source and of the model (loaders/patch_manager.py). `wished`: of qkv, o, mlp."""
    for name in ("callbacks", "callbacks.models", "dict"):  # Of which the patch needs a name each, and they half of PyPI.
        sys.modules.setdefault("axolotl.utils." + name, types.ModuleType(name))
    sys.modules["axolotl.utils.callbacks.models"].get_causal_lm_model_cls_prefix = None
    sys.modules["axolotl.utils.dict"].DictDefault = dict
    from axolotl.monkeypatch import lora_kernels
    kinds = wished.split(",")
    names = ("qkv", "o", "mlp", "embedding")
    wanted = types.SimpleNamespace(**{f"lora_{one}_kernel": one in kinds for one in names},
                                   use_scattermoe=False, use_sonicmoe=False, fused_attn_kernel=False)
    kind = model.config.model_type
    kind = {"gemma3_text": "gemma3"}.get(kind, kind)  # get_attention_cls_from_config
    modeling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    attention = next(value for name, value in vars(modeling).items() if name.endswith("Attention"))
    FORWARDS[attention] = attention.forward
    lora_kernels.get_attention_cls_from_config = lambda wanted: attention
    if wanted.lora_qkv_kernel or wanted.lora_o_kernel:
        lora_kernels.patch_self_attn_lora(wanted)
    lora_kernels.apply_lora_kernel_patches(model, wanted)


def take_back():
    for attention, forward in FORWARDS.items():
        attention.forward = forward
        if hasattr(attention, "_original_forward"):
            del attention._original_forward
    FORWARDS.clear()
