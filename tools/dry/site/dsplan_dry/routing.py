"""The loop over experts that are hit asks which tokens are whose. No kernel has said: here it is said beforehand.

PyTorch's own code of nonzero runs. It reads how many there are from a block that its sum would have filled: a number is
put into a block of that size and let go of, so that the next request of that size is given it."""

import functools
import math


def tokens_of_experts(rule, tokens, each, experts, mixture=0):
    """As src/core/training.h has it."""
    pairs = tokens * each
    if rule.startswith("counts:"):
        rows = [[int(n) for n in row.split(",")] for row in rule.removeprefix("counts:").split("/")]
        return rows[mixture if len(rows) > 1 else 0]
    if rule == "balanced":
        return [pairs // experts + (i < pairs % experts) for i in range(experts)]
    most = tokens
    if rule.startswith("capacity:"):
        most = min(tokens, math.ceil(float(rule.removeprefix("capacity:")) * pairs / experts))
    return [max(0, min(most, pairs - most * i)) for i in range(experts)]


def route(model, rule):
    """Each call of a mixture's experts, where transformers runs them in a loop, finds the tokens that the rule gives
    them. Returns how many mixtures there are of which that is so; those that have a rule already keep it."""
    found = [module for name, module in model.named_modules() if name.endswith(".experts") and in_a_loop(module)]
    for at, experts in enumerate(found):
        experts.forward = functools.partial(routed, experts.forward, rule, experts, at)
    return len(found)


def in_a_loop(experts):
    way = getattr(getattr(experts, "config", None), "_experts_implementation", None)
    routed_already = getattr(vars(experts).get("forward"), "func", None) is routed
    return way == "eager" and hasattr(experts, "num_experts") and not routed_already


def routed(forward, rule, experts, at, hidden, index, weights):
    import torch

    counts = tokens_of_experts(rule, *index.shape, experts.num_experts, at)
    hits = [i for i, count in enumerate(counts) if count]
    following = iter([counts[i] for i in hits])
    watched = torch.Tensor.nonzero, torch.where, torch.Tensor.__bool__
    nonzero, where, truth = (getattr(one, "__wrapped__", one) for one in watched)  # Nobody doubts what is said here.

    def count_is(number, device):
        block = torch.empty(1, dtype=torch.int32, device=device)
        block.copy_(torch.tensor([number], dtype=torch.int32))

    def hit_experts(flags):
        count_is(len(hits), flags.device)
        out = nonzero(flags)
        out.copy_(torch.tensor(hits).view(-1, 1))
        return out

    def own_tokens(flags):
        flags = flags.contiguous()  # As nonzero would before it asks for the number's block.
        count_is(next(following), flags.device)
        return where(flags)

    def never(flag):
        truth(flag)
        return False

    torch.Tensor.nonzero, torch.where, torch.Tensor.__bool__ = hit_experts, own_tokens, never
    try:
        return forward(hidden, index, weights)
    finally:
        torch.Tensor.nonzero, torch.where, torch.Tensor.__bool__ = watched
