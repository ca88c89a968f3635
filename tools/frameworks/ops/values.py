"""Values for the inputs of the operator cases: such that every kernel may read them. An index beyond its tensor would
end the process, and no number may be zero (prod and its kin look for zeros), negative (log) or above one
(binary_cross_entropy).
"""
import torch

# The dimension of the first input that the integers of an operator point into.
INDEXED = {"embedding": 0, "index": 0, "index_put": 0, "index_select": 0, "gather": 1, "scatter": 1,
           "scatter_add": 1, "nll_loss": 1}


def values_of(op, place, shape, dtype, first_shape):
    """A tensor on the CPU, the same for the same arguments."""
    generator = torch.Generator().manual_seed(place)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator) * 0.8 + 0.1).to(dtype)
    if op == "grouped_mm":  # Where each group of rows ends.
        count = shape[0]
        return torch.tensor([first_shape[0] * (i + 1) // count for i in range(count)], dtype=dtype)
    bound = first_shape[INDEXED[op]] if op in INDEXED else 1
    return torch.randint(0, bound, shape, generator=generator).to(dtype)
