"""A small training script as anybody might write it: it knows nothing of the dry device."""
import functools
import os
import sys

import torch
import torch.utils.checkpoint
from transformers import AutoConfig, AutoModelForCausalLM


def model():
    config = AutoConfig.for_model("llama", hidden_size=256, intermediate_size=688, num_hidden_layers=3, vocab_size=1000,
                                  num_attention_heads=4, num_key_value_heads=2)
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def mixture():
    config = AutoConfig.for_model("qwen3_moe", hidden_size=256, intermediate_size=512, moe_intermediate_size=128, num_hidden_layers=2,
                                  vocab_size=1000, num_attention_heads=4, num_key_value_heads=2, head_dim=64, num_experts=8,
                                  num_experts_per_tok=2)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, experts_implementation="eager")


def main(kind):
    child = os.fork() if kind == "forked" else 0
    if kind == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
        with torch.device("meta"):
            trained = model()
        given = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}
        layers = trained.model.layers
        for layer in layers:
            fully_shard(layer, reshard_after_forward=False, **given)
        fully_shard(trained, **given)
        for layer, following in zip(layers, layers[1:]):
            layer.set_modules_to_forward_prefetch([following])
        trained.to_empty(device="cuda")
    elif kind == "ddp":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")
        trained = torch.nn.parallel.DistributedDataParallel(model().cuda(), device_ids=[torch.cuda.current_device()])
    else:
        trained = (mixture() if kind == "experts" else model()).cuda()
    if kind == "compiled":
        trained = torch.compile(trained)
    if kind == "checkpointed":
        for layer in trained.model.layers:
            layer.forward = functools.partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(trained.parameters(), fused=True)
    for step in range(3):
        ids = torch.randint(0, 1000, (2, 256), device="cuda")
        labels = ids if kind == "experts" else ids.clone()
        loss = trained(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        del loss, ids, labels
        optimizer.step()
        optimizer.zero_grad()
        if kind == "ddp":  # What NCCL's watchdog holds it lets go of every 100 ms.
            import time
            time.sleep(.5)
    if child:
        os.waitpid(child, 0)
    if kind in ("ddp", "fsdp"):
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
