"""Small whole numbers of the device: what a model computes of tokens, grids and masks and then reads back, or sizes
tensors by. Each operator on them is run a second time by the host, in the device's memory, which here is the host's own:
nothing is allocated, and no stream waits. Models that see pictures ask for that, and those whose tables of positions
look at lengths.

Under a mode of Python's dispatcher autograd adds gradients up out of place: backward runs without it, but for what it
computes again."""
import ctypes
import functools

from . import answers, device, imports

LIMIT = 1 << 22  # Elements.
MODES = []
SEEING = ("llava", "llava_next", "gemma3", "paligemma", "idefics3", "smolvlm", "internvl", "llama4", "mistral3", "gemma4", "glm4v", "glm4v_moe", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5",
          "qwen3_5_moe")
# Tables of positions whose forward asks how long its rows are.
LENGTHS = ("dynamic", "longrope")


def on_host(tensor):
    """The same elements at the same addresses."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cuda":
        return tensor
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def rounded(size):
    return -(-size // 256) * 256


def nonzero(flags):
    """aten::nonzero of flags that are there, with the memory that ATen/native/cuda/Nonzero.cu of PyTorch 2.11 asks for."""
    import torch

    n, chosen = flags.numel(), int(on_host(flags).count_nonzero())
    empty = lambda size: torch.empty(size, dtype=torch.uint8, device=flags.device)  # noqa: E731
    flat = flags if flags.is_contiguous() else empty(n * flags.element_size())
    count = empty(4)
    parts = min(-(-n // 4096), 40 * torch.cuda.get_device_properties(0).multi_processor_count)
    counting = empty(1 if parts < 2 else rounded(4 * parts) + 255)
    del counting
    places = torch.empty((flags.dim(), chosen), dtype=torch.int64, device=flags.device)
    selecting = empty(rounded(8 * (-(-n // 4224) + 32)) + 511)
    del selecting, count, flat
    indices = on_host(flags).nonzero()
    if indices.numel():
        on_host(places).copy_(indices.t())
    return places.t()


def make_mode():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten, tree_map

    aten = torch.ops.aten
    plain = (torch.Tensor, torch.nn.Parameter)
    made_of_nothing = (aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.detach.default,
                       aten._unsafe_view.default)
    tell = device.library().dsplan_dry_tell
    tell.argtypes = [ctypes.c_longlong]

    # Whole numbers as shares of one, which gemma4 compares with zero.
    shares = (aten._to_copy.default, aten.div.Tensor)
    # Pixels that idefics3 compares with zero, and those that are a picture's.
    passed_on = (aten._to_copy.default, aten.view.default, aten.index.Tensor, aten.unfold.default, aten.sum.dim_IntList)

    def followed(tensor):
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        return (whole or hasattr(tensor, "dsplan_share")) and tensor.numel() <= LIMIT and tensor.device.type in ("cuda", "cpu") and not tensor.is_quantized

    def read_inside(func, args, kwargs):
        """The numbers that the host reads within the operator, in turn."""
        if func is aten.unique_consecutive.default:
            return [torch.unique_consecutive(on_host(args[0])).numel()]
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:  # And nothing is negative.
            return [int(on_host(args[0]).sum()), 1]
        return []

    class Values(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if any(kind not in plain for kind in types):
                return func(*args, **kwargs)
            given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
            for number in read_inside(func, args, kwargs) if given and given[0].device.type == "cuda" else ():
                tell(number)
            out = func(*args, **kwargs)
            made = [one for one in tree_flatten(out)[0] if isinstance(one, torch.Tensor)]
            on_device = any(one.device.type == "cuda" for one in given + made)
            if func in shares and made and given and all(map(followed, given)) and given[0].dim() == 3:
                made[0].dsplan_share = True
            if func in passed_on and made and getattr(given[0], "dsplan_share", None) == "passed on" and all(map(followed, given)):
                made[0].dsplan_share = "passed on"
            if made and on_device and all(map(followed, given + made)):
                self.again(func, args, kwargs, made)
            return out

        def again(self, func, args, kwargs, made):
            if func.is_view or func.namespace == "c10d" or func in made_of_nothing:  # Collectives are carried out already.
                return
            there = {key: torch.device("cpu") if key == "device" and value is not None else value for key, value in kwargs.items()}
            there = {key: False if key == "pin_memory" else value for key, value in there.items()}
            args, there = tree_map(on_host, (args, there))
            if func is aten.histc.default:  # The host counts no whole numbers; these are small.
                args = (args[0].double(), *args[1:])
            result = [one for one in tree_flatten(func(*args, **there))[0] if isinstance(one, torch.Tensor)]
            for one, value in zip(made, result) if not func._schema.is_mutable else ():
                if one.numel():
                    on_host(one).copy_(value)

    return Values()


def without_mode(function):
    from torch.utils._python_dispatch import _disable_current_modes

    @functools.wraps(function)
    def call(*args, **kwargs):
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


def with_mode(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        with MODES[0]:
            return function(*args, **kwargs)

    return call


def follow(*_):
    """From when a model that sees pictures is imported, or a table that looks at lengths is made."""
    if MODES or answers.LIBRARIES:
        return
    import torch
    from torch.utils import checkpoint

    MODES.append(make_mode())
    answers.LIBRARIES.append(torch.library.Library("aten", "IMPL"))
    answers.LIBRARIES[-1].impl("nonzero", nonzero, "CUDA")
    torch.autograd.backward = without_mode(torch.autograd.backward)
    frame, made = checkpoint._CheckpointFrame, checkpoint._CheckpointFrame.__init__

    def init(self, recompute_fn, *args, **kwargs):
        made(self, with_mode(recompute_fn), *args, **kwargs)

    frame.__init__ = init
    MODES[0].__enter__()


def follow_lengths(rope):
    def watched(make):
        @functools.wraps(make)
        def call(*args, **kwargs):
            follow()
            return make(*args, **kwargs)

        return call

    for kind in LENGTHS:
        if kind in rope.ROPE_INIT_FUNCTIONS:
            rope.ROPE_INIT_FUNCTIONS[kind] = watched(rope.ROPE_INIT_FUNCTIONS[kind])


def install():
    imports.after("transformers.modeling_rope_utils", follow_lengths)
    for family in SEEING:
        imports.after(f"transformers.models.{family}.modeling_{family}", follow)
