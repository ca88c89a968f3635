"""What an engine holds at a moment: flat buffers, partitions, gradients owned, optimizer states."""

import torch

from deepspeed_meter import SHORT


def tensor(value):
    return None if value is None else [SHORT[value.dtype], value.numel()]


def held(engine, names):
    optimizer = engine.optimizer
    kind = type(optimizer).__name__
    base = getattr(optimizer, "optimizer", optimizer)
    row = {"optimizer": kind, "base": type(base).__name__}
    if kind == "DeepSpeedZeroOptimizer":
        row.update(stage12(optimizer, names))
    elif kind == "DeepSpeedZeroOptimizer_Stage3":
        row.update(stage3(optimizer, names))
    elif kind == "BF16_Optimizer":
        row.update(bf16(optimizer))
    elif kind.startswith("FP16_"):
        row.update(fp16(optimizer))
    row["states"] = [[key, *tensor(value)] for state in base.state.values() for key, value in state.items()
                     if isinstance(value, torch.Tensor)]
    return row


def stage12(o, names):
    return {
        "flat": [tensor(t) for t in o.bit16_groups_flat],
        "master": [tensor(t) for t in o.single_partition_of_fp32_groups],
        "partition_size": [int(n) for n in o.partition_size],
        "order": [[names.of(p) for p in group] for group in o.round_robin_bit16_groups],
        "in_partition": [[names.of(p) for p in group] for group in o.params_in_partition],
        "first_offset": [int(n) for n in o.first_offset],
        "grads_in_partition": tensor(getattr(o, "grads_in_partition", None)),
        "averaged_gradients": {str(i): [tensor(g) for g in grads] for i, grads in o.averaged_gradients.items()
                               if grads is not None},
        "buckets": {SHORT[dtype]: [tensor(b) for b in bucket.buffer] for dtype, bucket in o.ipg_buckets.items()},
    }


def stage3(o, names):
    return {
        "flat": [tensor(t) for t in o.fp16_partitioned_groups_flat],
        "sub_groups": [[names.of(p) for p in group] for group in o.fp16_groups],
        "master": [tensor(t) for t in o.fp32_partitioned_groups_flat],
        "gradients": tensor(getattr(o, "grad_partitions_flat_buffer", None)),
        "bucket": {SHORT[dtype]: tensor(bucket.buffer) for dtype, bucket in o.ipg_buckets.items()},
        "persistent": [names.of(p) for p in o.persistent_parameters],
    }


def bf16(o):
    return {
        "flat": [tensor(t) for t in o.bf16_groups_flat],
        "master": [tensor(t) for t in o.fp32_groups_flat_partition],
        "accumulated": [tensor(t) for t in o.fp32_groups_gradients_flat],
        "padding": [int(n) for n in o.group_paddings],
    }


def fp16(o):
    if hasattr(o, "fp16_groups_flat"):
        return {"flat": [tensor(t) for t in o.fp16_groups_flat], "master": [tensor(t) for t in o.fp32_groups_flat]}
    return {"master": [[tensor(t) for t in group] for group in o.fp32_groups]}
