"""Published runs under FullyShardedDataParallel: MPT of llm-foundry, fsdp_qlora, litgpt."""

import re

from .published_case import Case, No, bundled, checkpoint_of, gpu_of, whole


PACKED_WHERE = ("fsdp_qlora's packed weights: whether they lay on the device whole before they were sharded is not "
                "stated (70B in 24 GB did not), and dsplan knows no other way")


def mpt(layers, hidden, heads, vocabulary, positions):
    """MPT as it was trained: GPT-2's layers to the parameter, without dropout. Its published counts are V*h + s*h +
    L*(12h^2 + 13h) + 2h, exactly GPT-2's."""
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": hidden,
            "n_head": heads, "n_positions": positions, "vocab_size": vocabulary, "activation_function": "gelu",
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def mpt_case(row, model, label):
    """llm-foundry's FULL_SHARD: fp32 shards, bf16 parameters and, by its low-precision norms, bf16 throughout; sums in
    fp32 or bf16 as the row says. What it does not say is as PyTorch has it."""
    training = {"runtime": "fsdp1", "dtype": "fp32", "optimizer": {"name": "adamw", "implementation": "for-loop"},
                "micro_batch": whole(row, "batch_per_gpu"), "seq": whole(row, "seq_len"), "attention": "flash",
                "checkpoint": checkpoint_of(row), "loss": "native",
                "fsdp": {"param_dtype": "bf16",
                         "reduce_dtype": "fp32" if "fp32 reduce" in row["precision"] else "bf16"}}
    return Case(model, label, None, training,
                options=["--hardware", gpu_of(row), "--gpus", row["n_gpus"], "--gpus-per-node", "8"])


def fsdp_qlora_training(packed, alone, on_host, seq, rows):
    """fsdp_qlora's train.py with its defaults: rank 64 on a layer's products but attention's last, dropout, bf16
    throughout, each adapter and each layer a unit, layers checkpointed, clipped, outputs kept until the step is done.
    """
    fsdp = {"wrap": "adapters+layers", "use_orig_params": "false", "limit_all_gathers": "true"}
    if on_host:
        fsdp["cpu_offload"] = "true"
    if alone:
        fsdp["shard"] = "1"
    packing = {"quantization": "nf4", "double_quant": False, "quant_storage": "bf16", "quant_compute_dtype": "bf16",
               "kbit_prepare": False}
    names = "k_proj q_proj v_proj up_proj down_proj gate_proj"
    return {"runtime": "fsdp1", "dtype": "bf16", "optimizer": {"name": "adamw"}, "max_grad_norm": 0.3, "seq": seq,
            "micro_batch": rows, "checkpoint": "full", "checkpoint_impl": "non_reentrant", "loop": "script",
            "lora": {"r": 64, "targets": names.split(), "dropout": 0.1, "dtype": "model"}, "fsdp": fsdp,
            **(packing if packed else {})}


def fsdp_qlora_case(row, model, label, figure):
    if "QLoRA" in row["lora/quant"]:
        raise No(PACKED_WHERE)
    training = fsdp_qlora_training("QLoRA" in row["lora/quant"], "NO_SHARD" in row["parallelism"],
                                   "params" in row["offload"], whole(row, "seq_len"), whole(row, "batch_per_gpu"))
    gpu = re.search(r"RTX(?:3090|4090)", row["other"])
    options = ["--gpus", row["n_gpus"], "--hardware", gpu.group(0).lower() if gpu else "rtx3090"]
    return Case(model, label, figure, training, options=options)


def untied(model):
    """The model as litgpt writes it: no tied weights; phi's gelu is one operator."""
    config = {**bundled(model), "tie_word_embeddings": False}
    return {**config, "hidden_act": "gelu_pytorch_tanh"} if config["model_type"] == "phi" else config


def litgpt_training(training):
    """What litgpt adds to a training file: see published_rows.litgpt_case."""
    training = {**training, "optimizer": {**training["optimizer"], "implementation": "foreach"}, "grad_accum": 8,
                "loss": "native", "loop": "script"}
    if "lora" in training:
        training["lora"] = {**training["lora"], "dropout": 0.05}
    return training


def litgpt_case(row, model, label, training_of, figure):
    """Lightning's FSDPStrategy as litgpt's scripts of 2023 set it: blocks are units and checkpoints, all in bf16."""
    if "alpaca2k" in row["other"] or "A10G" in row["other"]:
        raise No("four devices by one of its files, one by the text around it")
    training = litgpt_training(training_of(row))
    training |= {"runtime": "fsdp1", "checkpoint_impl": "non_reentrant", "fsdp": {"use_orig_params": "true"}}
    return Case(untied(model), label, figure, training,
                options=["--hardware", gpu_of(row), "--gpus", row["n_gpus"]])
