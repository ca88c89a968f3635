"""Outside oracle for QLoRA: real transformers, bitsandbytes and peft, their CUDA builds, on the dry device.

    tools/dry/run --device h100-sxm --capacity 1000g -- python tools/oracles/qlora.py OUT.json [NAME...]
    tools/dry/run ... -- python tools/oracles/qlora.py --events OUT.txt NAME

Each case is a process of its own, for bitsandbytes asks the device when it is imported: from_pretrained of a checkpoint of
the right shapes that is a hole in a file, prepare_model_for_kbit_training (unless kbit_prepare is false, as in TRL and
LLaMA-Factory; with "casts_back" what is not packed is cast back, as in axolotl), get_peft_model, two steps of AdamW. A row for
each phase: peaks of requested, allocated and reserved bytes since the phase began, and what is requested at its end.
Cases with "lora_kernels" want axolotl 0.19.0's package on PYTHONPATH, without what it depends on.
--events writes the allocator's events with the Python that asked for them.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import adapter_kernels
from two_steps import Phases, fused_adam

TINY = {"model_type": "llama", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096}
NF4 = {"quantization": "nf4", "double_quant": True, "quant_compute_dtype": "bf16"}
INT8 = {"quantization": "int8"}
ALL = {"r": 8, "targets": "all-linear"}
UNPREPARED = {"kbit_prepare": False, "autocast": "bf16", "checkpoint": "full", "dtype": "bf16"}
AXOLOTL = {**NF4, "quant_storage": "bf16", **UNPREPARED, "checkpoint_impl": "reentrant", "casts_back": True}
KERNELS = {"lora_kernels": "qkv,o,mlp"}  # axolotl's.
QWEN3 = {"seq": 777, "lora": {**ALL, "dropout": 0.05}}
QWEN3_CONFIG = {"model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": True}


def case(training, config=None):
    return {"config": {**TINY, **(config or {})}, "training": {"micro_batch": 1, "seq": 2048, "lora": ALL, **training}}


CASES = {
    "nf4-double": case(NF4),
    "nf4": case({**NF4, "double_quant": False}),
    "fp4-fp32-compute": case({"quantization": "fp4", "seq": 512}),
    "nf4-autocast": case({**NF4, "autocast": "bf16"}),
    "nf4-autocast-non-reentrant": case({**NF4, "autocast": "bf16", "checkpoint": "full",
                                        "checkpoint_impl": "non_reentrant"}),
    "nf4-stored-bf16": case({**NF4, "quant_storage": "bf16"}),
    "nf4-q-v-no-checkpoint": case({**NF4, "checkpoint": "none", "lora": {"r": 16, "targets": ["q_proj", "v_proj"],
                                                                         "dropout": 0.1}}),
    "qwen2-biases": case(NF4, {"model_type": "qwen2", "tie_word_embeddings": True}),
    "mistral-batch": case({**NF4, "micro_batch": 2, "autocast": "bf16"}, {"model_type": "mistral"}),
    "trl-bf16": case({**NF4, "double_quant": False, **UNPREPARED, "checkpoint_impl": "non_reentrant",
                      "lora": {**ALL, "dtype": "bf16", "dropout": 0.05}}),
    "trl-fp32": case({**NF4, "double_quant": False, "quant_compute_dtype": "fp32", **UNPREPARED, "dtype": "fp32",
                      "checkpoint_impl": "non_reentrant", "lora": {**ALL, "dtype": "bf16"}}),
    "llama-factory": case({**NF4, "quant_storage": "bf16", **UNPREPARED, "checkpoint_impl": "reentrant"}),
    "llama-factory-qwen2": case({**NF4, "quant_storage": "bf16", **UNPREPARED, "checkpoint_impl": "reentrant"},
                                {"model_type": "qwen2", "tie_word_embeddings": True}),
    "nf4-save": case({**NF4, "lora": {**ALL, "save": ["lm_head", "embed_tokens"]}}),
    "trl-save": case({**NF4, "double_quant": False, **UNPREPARED, "checkpoint_impl": "non_reentrant",
                      "lora": {**ALL, "dtype": "bf16", "save": ["lm_head"], "save_dtype": "bf16"}}),
    "llama-factory-save": case({**NF4, "quant_storage": "bf16", **UNPREPARED, "checkpoint_impl": "reentrant",
                                "lora": {**ALL, "dtype": "fp32", "save": ["lm_head", "model.norm"], "save_dtype": "fp32"}}),
    "int8": case(INT8),
    "int8-autocast": case({**INT8, "autocast": "bf16"}),
    "int8-non-reentrant": case({**INT8, "autocast": "bf16", "checkpoint": "full", "checkpoint_impl": "non_reentrant"}),
    "int8-q-v-no-checkpoint": case({**INT8, "checkpoint": "none", "lora": {"r": 16, "targets": ["q_proj", "v_proj"],
                                                                          "dropout": 0.1}}),
    "int8-no-checkpoint-autocast": case({**INT8, "autocast": "bf16", "checkpoint": "none", "lora": {**ALL, "dropout": 0.05}}),
    "int8-qwen2-biases": case(INT8, {"model_type": "qwen2", "tie_word_embeddings": True}),
    "int8-mistral-batch": case({**INT8, "micro_batch": 2, "seq": 500, "autocast": "bf16"}, {"model_type": "mistral"}),
    "int8-fp16": case({**INT8, "dtype": "fp16", "autocast": "fp16"}),
    "int8-trl": case({**INT8, **UNPREPARED, "checkpoint_impl": "non_reentrant",
                      "lora": {**ALL, "dtype": "bf16", "dropout": 0.05}}),
    "int8-trl-fp32": case({**INT8, **UNPREPARED, "dtype": "fp32", "checkpoint_impl": "non_reentrant",
                           "lora": {**ALL, "dtype": "bf16"}}),
    "int8-llama-factory-qwen2": case({**INT8, **UNPREPARED, "checkpoint_impl": "reentrant"},
                                     {"model_type": "qwen2", "tie_word_embeddings": True}),
    "int8-save": case({**INT8, "lora": {**ALL, "save": ["lm_head", "embed_tokens"]}}),
    "int8-axolotl": case({**INT8, **UNPREPARED, "checkpoint_impl": "reentrant", "casts_back": True}),
    "axolotl-save": case({**AXOLOTL, "lora": {**ALL, "save": ["lm_head", "embed_tokens"]}}),
    "dora": case({**NF4, "lora": {**ALL, "dora": True}}),
    "dora-qwen2-autocast": case({**NF4, "double_quant": False, "autocast": "bf16", "lora": {**ALL, "dora": True}},
                                {"model_type": "qwen2", "tie_word_embeddings": True}),
    "dora-dropout": case({**NF4, "checkpoint": "none", "lora": {**ALL, "targets": ["q_proj", "v_proj"], "dropout": 0.1,
                                                                "dora": True}}),
    "dora-trl": case({**NF4, "double_quant": False, **UNPREPARED, "checkpoint_impl": "non_reentrant",
                      "lora": {**ALL, "dtype": "bf16", "dropout": 0.05, "dora": True}}),
    "dora-llama-factory": case({**NF4, "quant_storage": "bf16", **UNPREPARED, "checkpoint_impl": "reentrant",
                                "lora": {**ALL, "dora": True}}),
    "dora-int8": case({**INT8, "lora": {**ALL, "dora": True}}),
    "dora-int8-autocast": case({**INT8, "autocast": "bf16", "lora": {**ALL, "dropout": 0.05, "dora": True}}),
    "axolotl": case(AXOLOTL),
    "kernels": case({**AXOLOTL, **KERNELS}),
    "kernels-one-scale": case({**AXOLOTL, **KERNELS, "double_quant": False, "lora": {**ALL, "dropout": 0.05}}),
    "kernels-fp4": case({**AXOLOTL, **KERNELS, "quantization": "fp4", "micro_batch": 2, "seq": 500}),
    "kernels-non-reentrant": case({**AXOLOTL, **KERNELS, "checkpoint_impl": "non_reentrant"}),
    "kernels-no-checkpoint": case({**{k: v for k, v in AXOLOTL.items() if k != "checkpoint_impl"}, **KERNELS, "checkpoint": "none",
                                   "lora": {**ALL, "dropout": 0.1}}),
    "kernels-qwen2-biases": case({**AXOLOTL, **KERNELS}, {"model_type": "qwen2", "tie_word_embeddings": True}),
    "kernels-qwen3": case({**{k: v for k, v in AXOLOTL.items() if k != "casts_back"}, **KERNELS, **QWEN3}, QWEN3_CONFIG),
    "kernels-qwen3-cast-back": case({**AXOLOTL, **KERNELS, **QWEN3}, QWEN3_CONFIG),
    "kernels-mistral-qkv": case({**AXOLOTL, "lora_kernels": "qkv"}, {"model_type": "mistral"}),
    "kernels-o-mlp": case({**AXOLOTL, "lora_kernels": "o,mlp", "double_quant": False, "lora": {**ALL, "dropout": 0.1}}),
    "kernels-q-v": case({**AXOLOTL, **KERNELS, "quant_storage": "uint8",
                         "lora": {"r": 16, "targets": ["q_proj", "v_proj", "o_proj"]}}),
    "kernels-gemma": case({**AXOLOTL, **KERNELS}, {"model_type": "gemma", "head_dim": 64, "tie_word_embeddings": True,
                                                   "hidden_act": "gelu_pytorch_tanh"}),
}
NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "uint8": "uint8"}


def checkpoint_of(config, folder):
    """A checkpoint of the right shapes, whose file is a hole."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        shapes = AutoModelForCausalLM._model_mapping[type(config)](config)  # from_config would ask for zero.Init.
    tied = set(getattr(shapes, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set()
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in shapes.state_dict().items():
        if name in tied:
            continue
        end = at + tensor.numel() * 2
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    config.architectures, config.dtype = [type(shapes).__name__], torch.bfloat16
    config.save_pretrained(folder)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def packing_of(training):
    from transformers import BitsAndBytesConfig

    if training["quantization"] == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=training["quantization"],
        bnb_4bit_use_double_quant=training.get("double_quant", False),
        bnb_4bit_compute_dtype=NAMES[training.get("quant_compute_dtype", "fp32")],
        bnb_4bit_quant_storage=NAMES[training.get("quant_storage", "uint8")])


def build(job, mark):
    import torch
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations import is_deepspeed_zero3_enabled

    training, lora = job["training"], job["training"]["lora"]
    config = AutoConfig.for_model(**job["config"])
    config.use_cache = False
    how = packing_of(training)
    folder = tempfile.mkdtemp(prefix="hole")
    try:
        checkpoint_of(config, folder)
        mark("start")
        loaded = getattr(torch, NAMES[training.get("dtype", "bf16")])
        attention = "eager" if training.get("attention") == "eager" else "sdpa"
        where = None if is_deepspeed_zero3_enabled() else {"": 0}  # Under ZeRO-3 transformers refuses to be told.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=loaded, device_map=where,
                                                     attn_implementation=attention, quantization_config=how)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    mark("load")
    kind = training.get("checkpoint_impl")
    how = {"use_reentrant": kind == "reentrant"} if kind else None
    checkpoints = training.get("checkpoint", "full") != "none"
    if training.get("kbit_prepare", True) or training.get("casts_back"):
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=checkpoints, gradient_checkpointing_kwargs=how)
    if training.get("casts_back"):
        for name, module in model.named_modules():
            if "norm" in name or name.endswith(("embed_tokens", "lm_head")):
                module.to(loaded)
    mark("prepare")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=lora["r"], lora_alpha=2 * lora["r"],
                                             lora_dropout=lora.get("dropout", 0.0), target_modules=lora["targets"],
                                             modules_to_save=lora.get("save"), use_dora=lora.get("dora", False)))
    if checkpoints and not training.get("kbit_prepare", True) and not training.get("casts_back"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
        model.enable_input_require_grads()
    if "dtype" in lora:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(getattr(torch, NAMES[lora["dtype"]]))
    if "lora_kernels" in training:
        adapter_kernels.put(model, training["lora_kernels"])
    model.train()
    mark("peft")
    return model


def measure(job, events=None):
    import torch

    phases = Phases(events)
    torch.cuda.init()
    phases.record()
    model = build(job, phases.mark)
    training = job["training"]
    made = {name: torch.zeros((training["micro_batch"], training["seq"]), dtype=torch.int64).to("cuda")
            for name in ("input_ids", "labels")}
    to = training.get("autocast")

    def loss_of(batch):
        with torch.autocast("cuda", getattr(torch, NAMES[to])) if to else contextlib.nullcontext():
            return model(**batch, use_cache=False).loss

    return {**job, "rows": phases.train(fused_adam(model), lambda: made, loss_of)}


def write(path, answers):
    """After each case: a long list may be cut short."""
    import importlib.metadata as metadata

    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "bitsandbytes")}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"source": "tools/oracles/qlora.py on the dry device, as an H100", "versions": versions,
                   "what": ["phase", "peak requested", "peak allocated", "peak reserved", "requested at its end"],
                   "jobs": answers}, file, indent=1)
        file.write("\n")


def main():
    if sys.argv[1] == "--events":
        measure(CASES[sys.argv[3]], sys.argv[2])
    elif sys.argv[1] == "--one":
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            json.dump(measure(CASES[sys.argv[3]]), file)
    else:
        answers = {}
        for name in sys.argv[2:] or CASES:
            with tempfile.NamedTemporaryFile(suffix=".json") as one:
                subprocess.run([sys.executable, __file__, "--one", one.name, name], check=True)
                answers[name] = json.load(open(one.name, encoding="utf-8"))
            write(sys.argv[1], answers)
        return
    os._exit(0)  # No destructors.


if __name__ == "__main__":
    main()
