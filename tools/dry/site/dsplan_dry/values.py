"""Small whole numbers of the device: what a model computes of tokens, grids and masks and then reads back, or sizes
tensors by. Each operator on them is run a second time by the host, in the device's memory, which here is the host's own:
nothing is allocated, and no stream waits. Models that see pictures ask for that."""
import ctypes

from . import device, imports

LIMIT = 1 << 20  # Elements.
MODES = []
SEEING = ("llava", "gemma3", "internvl", "llama4", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5",
          "qwen3_5_moe")


def make_mode():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map

    aten = torch.ops.aten
    plain = (torch.Tensor, torch.nn.Parameter)
    counting = {aten.nonzero.default, aten.index.Tensor, aten.index_put_.default, aten.masked_select.default,
                aten.masked_scatter_backward.default, aten.unique_consecutive.default}
    tell = device.library().dsplan_dry_tell
    tell.argtypes = [ctypes.c_longlong]

    def followed(tensor):
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        return whole and tensor.numel() <= LIMIT and tensor.device.type in ("cuda", "cpu") and not tensor.is_quantized

    def on_host(tensor):
        """The same elements at the same addresses."""
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
            return tensor
        if tensor.numel() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        storage = tensor.untyped_storage()
        memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
        return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def chosen(func, args):
        """How many elements a kernel will count, which the host reads before it makes what they go to."""
        if func is aten.masked_scatter_backward.default:
            return int(on_host(args[1]).expand(args[0].shape).sum())
        if func is aten.masked_select.default:
            return int(on_host(args[1]).expand(args[0].shape).sum())
        if func is aten.nonzero.default:
            return int(on_host(args[0]).count_nonzero())
        if func is aten.unique_consecutive.default:
            return torch.unique_consecutive(on_host(args[0])).numel()
        masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        return int(on_host(masks[0]).sum()) if masks else None

    class Values(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if any(kind not in plain for kind in types):
                return func(*args, **kwargs)
            given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
            if func in counting and given[0].device.type == "cuda":
                count = chosen(func, args)
                if count is not None:
                    tell(count)
            out = func(*args, **kwargs)
            made = [one for one in tree_flatten(out)[0] if isinstance(one, torch.Tensor)]
            if not any(one.device.type == "cuda" for one in made) or not all(map(followed, given + made)):
                return out
            self.again(func, args, kwargs, given, made)
            return out

        def again(self, func, args, kwargs, given, made):
            if func.is_view or func in (aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default):
                return
            if func in (aten.detach.default, aten._unsafe_view.default):
                return
            there = {key: torch.device("cpu") if key == "device" and value is not None else value for key, value in kwargs.items()}
            there = {key: False if key == "pin_memory" else value for key, value in there.items()}
            args, there = tree_map(on_host, (args, there))
            result = [one for one in tree_flatten(func(*args, **there))[0] if isinstance(one, torch.Tensor)]
            if func._schema.is_mutable:
                return
            for one, value in zip(made, result):
                if one.numel():
                    on_host(one).copy_(value)

    return Values()


def follow(*_):
    if not MODES:
        MODES.append(make_mode())
        MODES[0].__enter__()


def install():
    for family in SEEING:
        imports.after(f"transformers.models.{family}.modeling_{family}", follow)
