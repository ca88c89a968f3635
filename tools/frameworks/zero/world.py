"""One rank of a world, alone in its process. A world of one is real (NCCL or gloo); a larger one is torch's fake
process group: ranks, sizes and partitions are those of the rank, collectives move nothing.

What a collective would have brought from other ranks is zero here, so that every figure stays finite, and what is asked
of rank 0 is answered by this rank itself. Neither makes or frees a tensor.
"""

import functools

import torch


def join(kind, world_size, rank):
    """torch.distributed and DeepSpeed's on top of it. Returns DeepSpeed's backend."""
    import torch.distributed
    if world_size > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    else:
        torch.distributed.init_process_group("nccl" if kind == "cuda" else "gloo", store=torch.distributed.HashStore(),
                                             rank=0, world_size=1)
    import deepspeed
    if kind == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Would be compiled here, for inference alone.
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # Slowly, but it computes.
    deepspeed.init_distributed(verbose=False)
    backend = deepspeed.comm.comm.cdb
    if world_size > 1:
        answer_for_rank_0()
        for name, fill in FILLS.items():
            setattr(backend, name, filling(getattr(backend, name), fill, rank))
    return backend


def environment_of(world_size, rank):
    """What launchers set. LOCAL_RANK names the device."""
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0", "LOCAL_SIZE": "1",
            "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


class Proxy:
    """A module with one attribute of its own."""

    def __init__(self, module, **own):
        self.__dict__.update(own)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def answer_for_rank_0():
    """Stage 3 checks its trace against rank 0's, which is broadcast: the tensors are made as ever, of our own trace."""
    import deepspeed.runtime.zero.utils as utils
    utils.dist = Proxy(utils.dist, get_rank=lambda group=None: 0)


def filling(collective, fill, rank):
    @functools.wraps(collective)
    def filled(*args, **kwargs):
        work = collective(*args, **kwargs)
        with torch.no_grad():
            fill(rank, *args, **kwargs)
        return work
    return filled


def gathered(rank, output_tensor, input_tensor, *_, **__):
    """Our part in its place, zeros in all others."""
    size = input_tensor.numel()
    whole = output_tensor.detach().view(-1)
    own = whole[rank * size:(rank + 1) * size]
    whole[:rank * size].zero_()
    whole[(rank + 1) * size:].zero_()
    if own.data_ptr() != input_tensor.data_ptr():
        own.copy_(input_tensor.detach().view(-1))


def scattered(rank, output_tensor, input_tensor, *_, **__):
    """Our part of what this rank has, unreduced."""
    size = output_tensor.numel()
    own = input_tensor.detach().view(-1)[rank * size:(rank + 1) * size]
    if own.data_ptr() != output_tensor.data_ptr():
        output_tensor.detach().view(-1).copy_(own)


def all_gathered(rank, output_tensors, input_tensors, *_, **__):
    for output_tensor, input_tensor in zip(output_tensors, input_tensors):
        gathered(rank, output_tensor, input_tensor)


FILLS = {"all_gather_into_tensor": gathered, "reduce_scatter_tensor": scattered, "all_gather_coalesced": all_gathered}


def never_overflow():
    """A step that overflows is skipped, which a prediction knows nothing of: the checks run and are answered no."""
    import deepspeed.runtime.bf16_optimizer as bf16
    import deepspeed.runtime.zero.stage3 as stage3
    import deepspeed.runtime.zero.stage_1_and_2 as stage12

    def answered(function):
        @functools.wraps(function)
        def asked(*args, **kwargs):
            function(*args, **kwargs)
            return False
        return asked

    for module in (bf16, stage12, stage3):
        module.is_invalid_grad_norm = answered(module.is_invalid_grad_norm)
    for optimizer in (stage12.DeepSpeedZeroOptimizer, stage3.DeepSpeedZeroOptimizer_Stage3):
        optimizer.has_overflow = answered(optimizer.has_overflow)
