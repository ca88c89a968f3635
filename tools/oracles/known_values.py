"""Values of integer tensors under FakeTensorMode: what Python asks of them decides which operators a model runs.

A tensor whose values are known carries them as a tensor of the host (`known`). An operator over such tensors is run a
second time on those; a view of one is a view of the other. Where the shape of a result depends on values, the result is
made by the second run's shape."""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
MADE_OF_NOTHING = {aten.arange.default, aten.arange.start, aten.arange.start_step, aten.zeros.default, aten.ones.default,
                   aten.full.default, aten.scalar_tensor.default}
SHAPED_BY_VALUES = {aten.unique_consecutive.default, aten.repeat_interleave.Tensor, aten.nonzero.default}


def known_of(value):
    if isinstance(value, FakeTensor):
        return getattr(value, "known", None)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def whole(tensor):
    return not tensor.is_floating_point() and not tensor.is_complex()


def second_run(func, args, kwargs):
    """The operator's results on the host, or None where a value is not known."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if not tensors and func not in MADE_OF_NOTHING:
        return None
    if any(known_of(x) is None for x in tensors):
        return None
    with _disable_current_modes():
        return func(*tree_map(known_of, args), **tree_map(known_of, kwargs))


def item(tensor):
    with _disable_current_modes():
        return tensor.known.item()


MAKE_TENSOR = torch.tensor


def tensor(data, *, device=None, dtype=None, **more):
    """torch.tensor of numbers that lie on the device: each is asked for, then one tensor made."""
    if not (isinstance(data, list) and any(isinstance(x, FakeTensor) for x in data)):
        return MAKE_TENSOR(data, device=device, dtype=dtype, **more)
    values = [x.item() for x in data]
    made = torch.empty(len(values), dtype=dtype or data[0].dtype, device=device)
    with _disable_current_modes():
        made.known = MAKE_TENSOR(values, dtype=made.dtype)
    return made


def shaped_by_values(func, args):
    return func in SHAPED_BY_VALUES or (func is aten.index.Tensor and any(
        x is not None and x.dtype == torch.bool for x in args[1]))


BY_PLACES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


def by_places(func, args):
    """An index of flags whose values are known, as the kernel takes it: a number for each dimension. What `nonzero`
    makes of them lies within the kernel."""
    if func not in BY_PLACES or not any(x is not None and x.dtype == torch.bool and known_of(x) is not None for x in args[1]):
        return args
    places = []
    for index in args[1]:
        if index is None or index.dtype != torch.bool or known_of(index) is None:
            places.append(index)
            continue
        with _disable_current_modes():
            count = int(index.known.sum())
        places += [torch.empty(count, dtype=torch.int64, device=index.device) for _ in range(index.dim())]
    return (args[0], places, *args[2:])


def made_for(values, device, room):
    if room is None or values.numel() == 0:
        return torch.empty(values.shape, dtype=values.dtype, device=device)
    return torch.empty(room, dtype=values.dtype, device=device)[:len(values)]


def run(func, args, kwargs):
    """What the operator gives, with its values where they follow from known ones."""
    values = second_run(func, args, kwargs)
    if values is None:
        return func(*by_places(func, args), **kwargs)
    if shaped_by_values(func, args):
        # What is unique is written into memory for all, of which the rest stays (UniqueCub.cu).
        room = args[0].numel() if func is aten.unique_consecutive.default else None
        out = tree_map(lambda x: made_for(x, args[0].device, room), values)
    else:
        out = func(*args, **kwargs)
    for made, value in zip(tree_leaves(out), tree_leaves(values)):
        if isinstance(made, FakeTensor):
            made.known = value
    return out
