"""Answers by name: questions of Python to values that are not there, because no kernel computed them.

Each runs the code that asks, so that its allocations are made, and then gives the answer that a plain training step has:
nothing is padded or packed, no gradient overflows, other ranks agree. What was answered is in ANSWERED."""
import functools

from . import imports

ANSWERED = {}
LIBRARIES = []  # What torch.library forgets where nobody holds it.


def told(label, what):
    """An answer that is given elsewhere, as a row; who gives it counts."""
    return ANSWERED.setdefault(label, {"call": label, "count": 0, "guess": what})


def answer(owner, name, what, replace):
    """owner.name becomes replace(old); `what` says for the receipt what is answered."""
    old = getattr(owner, name, None)
    if old is None:
        return
    new = replace(old)
    label = f"{getattr(owner, '__qualname__', getattr(owner, '__name__', owner))}.{name}"

    from torch.compiler import is_compiling

    @functools.wraps(old)
    def counted(*args, **kwargs):
        if is_compiling():  # A count would be a guard of the graph, and each call would compile it anew.
            return new(*args, **kwargs)
        told(label, what)["count"] += 1
        return new(*args, **kwargs)

    setattr(owner, name, counted)


def transformers_masks(masks):
    def not_packed(old):
        def call(*args, **kwargs):
            old(*args, **kwargs)
        return call

    def all_ones(old):
        def call(*args, **kwargs):
            old(*args, **kwargs)
            return True
        return call

    def no_padding(old):
        def call(padding_mask, *args, **kwargs):
            from . import values

            seen = old(padding_mask, *args, **kwargs)
            if values.MODES and padding_mask is not None:  # Its values are there: places that hold no patch.
                return seen
            return old(None, *args, **kwargs)
        return call

    answer(masks, "find_packed_sequence_indices", "no sequences are packed", not_packed)
    answer(masks, "fast_all", "a mask that a model makes itself is all ones", all_ones)
    answer(masks, "_ignore_bidirectional_mask_sdpa", "nothing is padded", no_padding)


def says(value):
    def replace(old):
        def call(*args, **kwargs):
            old(*args, **kwargs)
            return value
        return call
    return replace


def deepspeed_overflow(module):
    for name in ("DeepSpeedZeroOptimizer_Stage3", "DeepSpeedZeroOptimizer"):
        if hasattr(module, name):
            answer(getattr(module, name), "has_overflow", "no gradient overflows", says(False))
    answer(module, "is_invalid_grad_norm", "the norm is a number", says(False))


def deepspeed_checker(module):
    """FP16_Optimizer, which ZeRO-0 has for 16 bits, asks here."""
    answer(module.CheckOverflow, "has_overflow", "no gradient overflows", says(False))


def deepspeed_ranks(module):
    def same(old):
        def call(values, *args, **kwargs):
            old(values, *args, **kwargs)
            return values
        return call

    def agreed(old):
        def call(*args, **kwargs):
            try:
                old(*args, **kwargs)
            except RuntimeError as error:
                if "disagreement" not in str(error):
                    raise
        return call

    answer(module, "get_lst_from_rank0", "rank 0 holds what this rank holds", same)
    answer(module, "assert_lst_len_same_as_other_ranks", "other ranks agree", agreed)


def every_token_trains(_):
    """TRL and cut_cross_entropy score the tokens that count: aten::nonzero of flags that no kernel has written. All are
    said to be set, and memory is asked for as ATen/native/cuda/Nonzero.cu of PyTorch 2.11 does."""
    import torch

    if "aten::nonzero" in ANSWERED or LIBRARIES:  # Or whole numbers are followed, labels among them (values.py).
        return

    entry = told("aten::nonzero", "every token counts")

    def nonzero(flags):
        entry["count"] += 1
        n = flags.numel()
        empty = lambda size: torch.empty(size, dtype=torch.uint8, device=flags.device)  # noqa: E731
        count = empty(4)
        parts = -(-n // 4096)
        counting = empty(1 if parts < 2 else 8 * parts)
        del counting
        places = torch.empty((flags.dim(), n), dtype=torch.int64, device=flags.device)
        selecting = empty(1023)
        del selecting, count
        return places.t()

    LIBRARIES.append(torch.library.Library("aten", "IMPL"))
    LIBRARIES[-1].impl("nonzero", nonzero, "CUDA")


def untouched_host_memory(torch):
    """DeepSpeed flattens parameters on the host: that memory is made and not written."""
    def replace(old):
        def call(tensors):
            if tensors and all(t.device.type == "cpu" for t in tensors) and sum(t.numel() for t in tensors) > 1 << 20:
                return torch.empty(sum(t.numel() for t in tensors), dtype=tensors[0].dtype)
            return old(tensors)
        return call

    answer(torch._C._nn, "flatten_dense_tensors", "large ones of the host are not copied", replace)


def install():
    imports.after("transformers.masking_utils", transformers_masks)
    for name in ("stage3", "stage_1_and_2"):
        imports.after("deepspeed.runtime.zero." + name, deepspeed_overflow)
    imports.after("deepspeed.runtime.utils", deepspeed_checker)
    imports.after("deepspeed.runtime.zero.utils", deepspeed_ranks)
    imports.after("torch", untouched_host_memory)
    for name in ("trl.trainer.utils", "cut_cross_entropy.utils"):
        imports.after(name, every_token_trains)
