"""Outside oracle for dsplan's FSDP1: real FullyShardedDataParallel of PyTorch's CUDA build on the dry device, one rank of a
world each, and what accelerate's prepare makes of it.

    tools/dry/run --world 1 -- python tools/oracles/fsdp1_witness.py OUT.json [--match TEXT]

Autograd takes nodes by numbers that each thread counts for itself, and a reentrant checkpoint runs its function again in the
device's thread, while torch.split has run in the script's. After a step or two the device's has counted further, whatever
the model: here it has from the beginning.

Events are those of fsdp_witness.py. A run's are written as places in its list of sizes, as many of them repeat.
tests/fsdp_witness_test.cpp reads the file.
"""

import re

from fsdp_witness import GPT2, LLAMA, QWEN, TIED, given_by, witnessed, write
from matrix import worker

SMALL = {"num_hidden_layers": 2}
LLAMA, TIED = {**LLAMA, **SMALL}, {**TIED, **SMALL}
MIXED = {"param_dtype": "bf16", "reduce_dtype": "bf16"}
WIDE = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
ORIG = {"use_orig_params": "true"}
KEPT = {"reshard_after_forward": False}
FULL = {"checkpoint": "full", "checkpoint_impl": "non_reentrant"}
AGAIN = {"checkpoint": "full", "checkpoint_impl": "reentrant"}
CLIPS = {"max_grad_norm": 1.0}
PEFT = {"wrap": "adapters+layers"}
LORA = {"lora": {"r": 4, "targets": ["q_proj", "v_proj"]}}
QWEN3_MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 531, "hidden_size": 72,
             "intermediate_size": 136, "moe_intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3,
             "num_key_value_heads": 1, "head_dim": 24, "num_experts": 6, "num_experts_per_tok": 2, "hidden_act": "silu",
             "max_position_embeddings": 256, "tie_word_embeddings": False}
MIXTRAL = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 509, "hidden_size": 80,
           "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 5, "num_key_value_heads": 1,
           "num_local_experts": 4, "num_experts_per_tok": 2, "hidden_act": "silu", "max_position_embeddings": 256,
           "tie_word_embeddings": False}
WORLDS = ((2, 0), (3, 2), (4, 1), (8, 7))


def cases():
    """(name, config, world, rank, fsdp, more of the training file, what accelerate is told)"""
    for name, config in (("llama", LLAMA), ("tied", TIED), ("gpt2", GPT2), ("qwen2", QWEN)):
        for world, rank in WORLDS:
            yield f"{name}-w{world}-r{rank}", config, world, rank, {}, {}, None
            yield f"{name}-wide-orig-w{world}-r{rank}", config, world, rank, {**WIDE, **ORIG}, {}, None
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("tied", TIED, 3, 0)):
        for way, (fsdp, more) in plain().items():
            if fsdp.get("replicate", 1) < world and world % fsdp.get("replicate", 1) == 0:
                yield f"{name}-{way}-w{world}-r{rank}", config, world, rank, fsdp, more, None
    for world, rank in ((6, 4), (8, 3)):
        for way, fsdp in {"hybrid": {}, "hybrid-kept": KEPT}.items():
            yield f"tied-{way}-w{world}-r{rank}", TIED, world, rank, {**WIDE, **ORIG, **fsdp, "replicate": 2}, {}, None
    yield "qwen2-w24-r23", QWEN, 24, 23, {**MIXED, **ORIG}, CLIPS, None  # A rank without some units' parameters.
    for world, rank in ((8, 3), (8, 7)):  # The first has only frozen ones of each layer.
        every = {"gradient_sync": "every", **MIXED, **ORIG}
        yield f"llama-frozen-every-w{world}-r{rank}", LLAMA, world, rank, every, {"freeze": ["*mlp*"], "grad_accum": 3}, None
    yield "gpt2-clip-w24-r23", GPT2, 24, 23, {"wrap": "GPT2MLP+GPT2Block"}, CLIPS, None
    for name, config, world, rank in (("llama", LLAMA, 2, 1), ("gpt2", GPT2, 8, 5)):
        for way, (fsdp, more, told) in prepared().items():
            if config is GPT2 and "lora" in more:
                continue
            fsdp = {"sync_module_states": "true", "backward_prefetch": "none", **fsdp}
            yield f"{name}-accelerate-{way}-w{world}-r{rank}", config, world, rank, fsdp, more, told
    for world, rank in ((2, 1), (4, 0)):
        for way, (fsdp, more, told) in adapted().items():
            fsdp = {"sync_module_states": "true", "backward_prefetch": "none", **PEFT, **fsdp}
            yield f"llama-peft-{way}-w{world}-r{rank}", LLAMA, world, rank, fsdp, more, told
    for name, config, world, rank in (("llama", LLAMA, 4, 3), ("gpt2", GPT2, 3, 0)):
        for way, (fsdp, more) in inside(config).items():
            yield f"{name}-{way}-w{world}-r{rank}", config, world, rank, fsdp, more, None
    yield from whole()
    yield from rest()


def whole():
    """NO_SHARD, which is what one rank has whatever it asks for."""
    every, usual = {"gradient_sync": "every"}, {"fsdp_version": 1}
    ways = {
        "plain": ({}, {}),
        "orig": (ORIG, {}),
        "mixed": (MIXED, {}),
        "wide-orig": ({**WIDE, **ORIG}, CLIPS),
        "wide": (WIDE, CLIPS),
        "buffers": ({**MIXED, **ORIG, "buffer_dtype": "bf16"}, {}),
        "fp32-reduce": ({"reduce_dtype": "fp32"}, {}),
        "clip": ({}, CLIPS),
        "clip-orig": (ORIG, {**CLIPS, "grad_accum": 2}),
        "root": ({"wrap": "root", **MIXED}, {}),
        "post": ({**WIDE, "backward_prefetch": "post"}, {}),
        "none": ({**MIXED, **ORIG, "backward_prefetch": "none"}, {}),
        "ahead": ({**MIXED, **ORIG, "forward_prefetch": "true"}, {}),
        "unlimited": ({**MIXED, "limit_all_gathers": "false", "forward_prefetch": "true"}, {}),
        "accumulated": (MIXED, {"grad_accum": 3}),
        "accumulated-orig": ({**WIDE, **ORIG}, {"grad_accum": 2}),
        "accumulated-every": ({**WIDE, **every}, {"grad_accum": 3}),
        "accumulated-every-orig": ({**MIXED, **ORIG, **every}, {"grad_accum": 2, **CLIPS}),
        "accumulated-every-plain": ({**ORIG, **every}, {"grad_accum": 2}),
        "full": ({**MIXED, **ORIG}, FULL),
        "reentrant": ({**MIXED, **ORIG}, {**AGAIN, "grad_accum": 2}),
        "device": ({**WIDE, **ORIG}, {"model_init": "device"}),
        "sent": ({**WIDE, **ORIG, "sync_module_states": "true"}, {}),
        "foreach": ({**MIXED, **ORIG}, {"optimizer": {"name": "adamw", "implementation": "foreach"}}),
        "loop": (WIDE, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "frozen": ({**MIXED, **ORIG}, {"freeze": ["*mlp*"]}),
        "frozen-every": ({**WIDE, **ORIG, **every}, {"freeze": ["*mlp*"], "grad_accum": 2, **CLIPS}),
        "offload": ({"cpu_offload": True}, {}),
        "offload-mixed": ({**WIDE, **ORIG, "cpu_offload": True}, CLIPS),
        "offload-accumulated": ({**MIXED, "cpu_offload": True}, {"grad_accum": 2}),
        "inside-full": ({**MIXED, **ORIG, "wrap": "LlamaMLP+LlamaDecoderLayer+GPT2MLP+GPT2Block"}, FULL),
    }
    for name, config, world, rank in (("llama", LLAMA, 1, 0), ("tied", TIED, 3, 2), ("gpt2", GPT2, 1, 0)):
        for way, (fsdp, more) in ways.items():
            shard = {"shard": 1} if world > 1 else {}
            if "+" in fsdp.get("wrap", ""):
                fsdp = {**fsdp, "wrap": "GPT2MLP+GPT2Block" if config is GPT2 else "LlamaMLP+LlamaDecoderLayer"}
            yield f"{name}-whole-{way}-w{world}-r{rank}", config, world, rank, {**fsdp, **shard}, more, None
    for name, config, world, rank in (("llama", LLAMA, 1, 0), ("gpt2", GPT2, 4, 1)):
        for way, (fsdp, more, told) in prepared().items():
            if config is GPT2 and "lora" in more:
                continue
            shard = {"shard": 1} if world > 1 else {}
            fsdp = {"sync_module_states": "true", "backward_prefetch": "none", **fsdp, **shard}
            yield f"{name}-whole-accelerate-{way}-w{world}-r{rank}", config, world, rank, fsdp, more, told
    for way, (fsdp, more, told) in adapted().items():
        fsdp = {"sync_module_states": "true", "backward_prefetch": "none", **PEFT, **fsdp}
        yield f"llama-whole-peft-{way}-w1-r0", LLAMA, 1, 0, fsdp, more, told


def rest():
    """Mixtures of experts; optimizers; Liger's loss; fp16."""
    bf16, usual = {"mixed_precision": "bf16"}, {"fsdp_version": 1}
    given = {"sync_module_states": "true", "backward_prefetch": "none"}
    for name, config in (("qwen3-moe", QWEN3_MOE), ("mixtral", MIXTRAL)):
        ways = {
            "plain": ({}, {}, None),
            "wide-orig": ({**WIDE, **ORIG}, CLIPS, None),
            "mixed": (MIXED, {"grad_accum": 2}, None),
            "full": ({**MIXED, **ORIG}, FULL, None),
            "again": ({**MIXED, **ORIG}, AGAIN, None),
            "kept": ({**MIXED, **KEPT}, {}, None),
            "root": ({**MIXED, "wrap": "root"}, {}, None),
            "eager": ({**MIXED, **ORIG}, {"experts": "eager"}, None),
            "batched": (MIXED, {"experts": "batched_mm"}, None),
            "accelerate": ({**given, **ORIG}, {**bf16, "experts": "batched_mm"}, usual),
            "accelerate-eager": ({**given, **ORIG}, {**bf16, "experts": "eager", **CLIPS}, usual),
            "accelerate-grouped": ({**given, **ORIG}, bf16, usual),
            "accelerate-no-precision": ({**given, **ORIG}, FULL, usual),
        }
        for way, (fsdp, more, told) in ways.items():
            for world, rank in ((2, 1), (4, 0)):
                yield f"{name}-{way}-w{world}-r{rank}", config, world, rank, fsdp, more, told
    for kind in ("adam8bit", "adafactor", "lion", "adagrad", "rmsprop", "lion8bit", "adamw32bit"):
        other = {"implementation": "foreach"} if kind in ("adagrad", "rmsprop") else {}
        for name, config, world, rank in (("llama", LLAMA, 2, 1), ("gpt2", GPT2, 4, 0), ("qwen2", QWEN, 24, 23)):
            for way, fsdp in {"flat": MIXED, "orig": {**WIDE, **ORIG}}.items():
                yield f"{name}-{kind}-{way}-w{world}-r{rank}", config, world, rank, fsdp, {"optimizer": {"name": kind, **other}}, None
        yield f"llama-{kind}-whole-w1-r0", LLAMA, 1, 0, ORIG, {"optimizer": {"name": kind, **other}}, None
    liger = {"loss": "liger", "liger_version": "0.8.5"}
    for name, config, world, rank in (("llama", LLAMA, 2, 1), ("tied", TIED, 4, 0), ("qwen2", QWEN, 1, 0)):
        for way, (fsdp, more, told) in {"plain": (MIXED, {}, None), "orig": ({**WIDE, **ORIG}, {"grad_accum": 2}, None),
                                        "accelerate": ({**given, **ORIG}, {**bf16, **CLIPS}, usual),
                                        "full": (given, {**bf16, **FULL}, usual)}.items():
            yield f"{name}-liger-{way}-w{world}-r{rank}", config, world, rank, fsdp, {**liger, **more}, told
    half = {"param_dtype": "fp16", "reduce_dtype": "fp16", "buffer_dtype": "fp16"}
    fp16 = {"mixed_precision": "fp16", "dtype": "fp32"}
    foreach = {"optimizer": {"name": "adamw", "implementation": "foreach"}}
    ways = {"flat": ({}, {}), "orig": (ORIG, {**CLIPS, **foreach}), "accum": (ORIG, {"grad_accum": 2}),
            "foreach": (ORIG, foreach), "loaded": (ORIG, {"dtype": "fp16"}),
            "full": ({"backward_prefetch": "pre"}, {**FULL, **CLIPS, **foreach, "dtype": "fp16"})}
    for name, config, world, rank in (("llama", LLAMA, 2, 1), ("gpt2", GPT2, 1, 0)):
        yield f"{name}-half-w{world}-r{rank}", config, world, rank, half, {"dtype": "fp32"}, None
        for way, (fsdp, more) in ways.items():
            if config is GPT2 and "grad_accum" in more:  # A tied weight's gradients, at which PyTorch stops.
                continue
            yield f"{name}-fp16-{way}-w{world}-r{rank}", config, world, rank, {**given, **fsdp}, {**fp16, **more}, usual


def plain():
    """What a script may tell the wrapper itself."""
    every = {"gradient_sync": "every"}
    return {
        "orig": (ORIG, {}),
        "mixed": (MIXED, {}),
        "wide": (WIDE, {}),
        "buffers": ({**MIXED, **ORIG, "buffer_dtype": "bf16"}, {}),
        "fp32-reduce": ({"reduce_dtype": "fp32"}, {}),
        "kept": (KEPT, {}),
        "kept-orig": ({**MIXED, **KEPT, **ORIG}, {}),
        "root": ({"wrap": "root", **MIXED}, {}),
        "mlps": ({**MIXED, **ORIG, "wrap": "LlamaMLP+LlamaDecoderLayer"}, {}),
        "post": ({**MIXED, "backward_prefetch": "post"}, {}),
        "no-prefetch": ({**WIDE, **ORIG, "backward_prefetch": "none"}, {}),
        "forward-prefetch": ({**MIXED, **ORIG, "forward_prefetch": "true"}, {}),
        "unlimited": ({**MIXED, "limit_all_gathers": "false", "forward_prefetch": "true"}, {}),
        "unlimited-post": ({**ORIG, "limit_all_gathers": "false", "backward_prefetch": "post"}, {}),
        "accumulated": ({}, {"grad_accum": 3}),
        "accumulated-orig": ({**WIDE, **ORIG}, {"grad_accum": 2}),
        "accumulated-kept": ({**MIXED, **KEPT, **ORIG}, {"grad_accum": 2}),
        "accumulated-every": ({**WIDE, **every}, {"grad_accum": 3}),
        "accumulated-every-orig": ({**MIXED, **ORIG, **every}, {"grad_accum": 2, **CLIPS}),
        "accumulated-every-kept": ({**KEPT, **every}, {"grad_accum": 2}),
        "full": ({**MIXED, **ORIG}, FULL),
        "full-accumulated": (WIDE, {**FULL, "grad_accum": 2}),
        "reentrant": ({**MIXED, **ORIG}, AGAIN),
        "reentrant-post": ({**WIDE, "backward_prefetch": "post"}, AGAIN),
        "reentrant-kept": ({**MIXED, **KEPT}, {**AGAIN, "grad_accum": 2}),
        "hybrid": ({"replicate": 2}, {}),
        "hybrid-mixed": ({**WIDE, "replicate": 2}, CLIPS),
        "hybrid-kept": ({**MIXED, **ORIG, **KEPT, "replicate": 2}, {"grad_accum": 2}),
        "hybrid-sent": ({**WIDE, "replicate": 2, "sync_module_states": "true"}, {}),
        "hybrid-every": ({**MIXED, "replicate": 2, **every}, {"grad_accum": 2}),
        "device": ({**MIXED, **ORIG}, {"model_init": "device"}),
        "sent": ({**WIDE, **ORIG, "sync_module_states": "true"}, {}),
        "sent-device": ({"sync_module_states": "true"}, {"model_init": "device"}),
        "clip": ({}, CLIPS),
        "clip-mixed-orig": ({**WIDE, **ORIG}, CLIPS),
        "foreach": ({**MIXED, **ORIG}, {"optimizer": {"name": "adamw", "implementation": "foreach"}}),
        "loop": (WIDE, {"optimizer": {"name": "adamw", "implementation": "for-loop"}}),
        "sgd": ({**MIXED, **ORIG}, {"optimizer": {"name": "sgd", "momentum": 0.9, "implementation": "foreach"}}),
        "frozen": ({**MIXED, **ORIG}, {"freeze": ["*mlp*"]}),
        "frozen-every": ({**MIXED, **ORIG, **every}, {"freeze": ["*mlp*"], "grad_accum": 2}),
        "frozen-accumulated": ({**MIXED, **ORIG}, {"freeze": ["*mlp*"], "grad_accum": 2, **CLIPS}),
        "frozen-root": ({**WIDE, **ORIG}, {"freeze": ["*embed*", "model.norm*", "lm_head*"]}),
        "offload": ({"cpu_offload": True}, {}),
        "offload-mixed": ({**WIDE, "cpu_offload": True}, CLIPS),
        "offload-orig": ({**MIXED, **ORIG, "cpu_offload": True}, {"grad_accum": 2}),
        "offload-kept": ({**MIXED, **ORIG, **KEPT, "cpu_offload": True}, {}),
        "offload-unlimited": ({**WIDE, "cpu_offload": True, "limit_all_gathers": "false", "forward_prefetch": "true"}, FULL),
    }


def prepared():
    """By accelerate: autocast, outputs in fp32, shards that it casts."""
    bf16 = {"mixed_precision": "bf16"}
    inside = {"fsdp_version": 1, "activation_checkpointing": True}
    usual = {"fsdp_version": 1}
    return {
        "flat": ({}, bf16, usual),
        "usual": (ORIG, {**bf16, **CLIPS}, usual),
        "fp32": (ORIG, {**bf16, "dtype": "fp32"}, usual),
        "fp32-flat": ({"backward_prefetch": "pre"}, {**bf16, "dtype": "fp32", **CLIPS}, usual),
        "kept": ({**KEPT, **ORIG}, {**bf16, "grad_accum": 2}, usual),
        "no-precision": (ORIG, {}, usual),
        "inside": ({**ORIG, "backward_prefetch": "pre"}, {**bf16, **FULL}, inside),
        "reentrant": (ORIG, {**bf16, **AGAIN}, usual),
        "offload": ({**ORIG, "cpu_offload": True}, {**bf16, **CLIPS}, usual),
        "lora": (ORIG, {**bf16, "dtype": "fp32", **LORA}, usual),
        "lora-inside": (ORIG, {**bf16, "dtype": "fp32", **LORA, **FULL, **CLIPS}, usual),
    }


def adapted():
    """By transformers' Trainer, for which peft chooses the units."""
    bf16, narrow = {"mixed_precision": "bf16"}, {"lora": {**LORA["lora"], "dtype": "bf16"}}
    every = {"lora": {"r": 4, "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
    nf4 = {"quantization": "nf4", "quant_compute_dtype": "bf16", "quant_storage": "bf16", "kbit_prepare": False,
           "dtype": "bf16", "seq": 800}
    policy = {"param_dtype": "bf16", "reduce_dtype": "bf16", "buffer_dtype": "bf16"}
    pre, post = {"backward_prefetch": "pre"}, {"backward_prefetch": "post"}
    ways = {
        "orig": (ORIG, {**bf16, **LORA}),
        "flat": ({}, {**bf16, **LORA, **CLIPS}),
        "orig-fp32": (ORIG, {**bf16, "dtype": "fp32", **LORA, **CLIPS}),
        "flat-fp32": ({}, {**bf16, "dtype": "fp32", **LORA}),
        "orig-pre": ({**ORIG, **pre}, {**bf16, **every}),
        "flat-post": (post, {**bf16, **every, "grad_accum": 2}),
        "orig-accumulated": (ORIG, {**bf16, **LORA, "grad_accum": 2}),
        "orig-full": (ORIG, {**bf16, **LORA, **FULL}),
        "orig-every-full": (ORIG, {**bf16, **every, **FULL, **CLIPS}),
        "orig-again": (ORIG, {**bf16, **every, **AGAIN}),
        "orig-narrow": (ORIG, {**bf16, **narrow}),
        "flat-narrow-full": (pre, {**narrow, **FULL}),
        "flat-no-precision": ({}, LORA),
        "orig-no-precision": (ORIG, {**LORA, **FULL}),
        "orig-kept": ({**ORIG, **KEPT}, {**bf16, **LORA}),
        "orig-host": ({**ORIG, "cpu_offload": True}, {**bf16, **LORA}),
        "packed": (policy, {**bf16, **nf4, **every, **FULL}),
        "packed-post": ({**policy, **post}, {**bf16, **nf4, **every, **FULL, "grad_accum": 2}),
    }
    return {way: (fsdp, more, {"fsdp_version": 1}) for way, (fsdp, more) in ways.items()}


def inside(config):
    """Units within others, within checkpoints, and chosen by their size."""
    classes = "GPT2MLP+GPT2Block" if config is GPT2 else "LlamaMLP+LlamaDecoderLayer"
    frozen = ["*attn*", "*ln_1*", "*ln_2*"] if config is GPT2 else ["*self_attn*", "*layernorm*"]
    units = {**MIXED, **ORIG, "wrap": classes}
    ways = {
        "inside-full": (units, FULL),
        "inside-again": ({**units, "backward_prefetch": "post"}, {**AGAIN, "grad_accum": 2}),
        "inside-kept": ({**MIXED, **KEPT, "wrap": classes}, {**FULL, "grad_accum": 2}),
        "around": (units if config is GPT2 else {**MIXED, "wrap": classes}, {"freeze": frozen}),
        "around-full": (units, {**FULL, "freeze": frozen, **CLIPS}),
        "around-none": ({**units, "backward_prefetch": "none"}, {"freeze": frozen, "grad_accum": 2}),
        "sized-root": ({"wrap": "size:100000000"}, {}),
    }
    if config is GPT2:  # Whose tied weight they would part.
        return ways
    return {
        **ways,
        "sized": ({**MIXED, "wrap": "size:50000"}, {}),
        "sized-orig": ({**WIDE, **ORIG, "wrap": "size:150000"}, CLIPS),
        "sized-full": ({**MIXED, **ORIG, "wrap": "size:150000"}, FULL),
    }


def job_of(name, config, world, rank, fsdp, more, accelerate):
    training = {"seq": 40, "micro_batch": 2, "attention": "flash", "runtime": "fsdp1", "fsdp": fsdp, **more}
    training.setdefault("dtype", "fp32" if "param_dtype" in fsdp else "bf16")
    job = {"name": name, "stratum": "witness", "config": config, "device": "h100-sxm", "world": world, "rank": rank,
           "training": training}
    return {**job, "accelerate": accelerate} if accelerate else job


def count_nodes():
    """In the device's thread."""
    import torch

    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            with torch.enable_grad():
                one = gradient.detach().requires_grad_()
                for _ in range(20_000):
                    one.view(1)

    Counts.apply(torch.zeros(1, device="cuda", requires_grad=True)).backward()


class Counted(worker.Worker):
    def make_optimizer(self, model):
        super().make_optimizer(model)
        if self.training.get("checkpoint_impl") == "reentrant":
            count_nodes()


def compact(job, events):
    sizes = sorted({abs(event) for event in events})
    place = {size: at + 1 for at, size in enumerate(sizes)}
    kept = {key: job[key] for key in ("name", "config", "world", "rank", "training")}
    return kept | {"sizes": sizes, "events": [place[event] if event > 0 else -place[-event] for event in events]}


def main():
    given = given_by(__doc__)
    worker.Worker = Counted
    jobs = [job_of(*case) for case in cases() if re.search(given.match, case[0])]
    write(given.out, [compact(job, events) for job, events in witnessed(jobs)])


main()
