"""Outside oracle for LLaMA-Factory's preference trainers: llamafactory's own trainer, transformers and peft, on the dry device.

    PYTHONPATH=LLAMA_FACTORY:TRL tools/dry/run --device a100-sxm-80 -- python tools/oracles/llama_factory_losses.py OUT.json [NAME...]
    ... python tools/oracles/llama_factory_losses.py --events OUT.txt NAME

llamafactory 0.9.5 wants TRL up to 0.24. Its trainers are imported without the rest of it, which needs packages for sound
and pictures. Each case is a process of its own: CustomDPOTrainer's compute_loss under a loop of forward, backward and
step, twice. A row for each phase: peaks of requested, allocated and reserved bytes since the phase began, and what is
requested at its end.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
import types

from two_steps import Phases, fused_adam, run_cases

TINY = {"model_type": "llama", "vocab_size": 40000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 2}
LORA = {"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "fp32"}


def case(config=None, **training):
    usual = {"micro_batch": 2, "seq": 512, "dtype": "bf16", "mixed_precision": "bf16", "checkpoint": "full",
             "checkpoint_impl": "non_reentrant", "lora": LORA}
    usual.update(training)
    return {"trainer": "dpo-logits", "config": {**TINY, **(config or {})},
            "training": {k: v for k, v in usual.items() if v is not None}}


PURE = {"dtype": "bf16", "mixed_precision": None}
WHOLE = {"checkpoint": None, "checkpoint_impl": None}
CASES = {
    "dpo-lora": case(),
    "dpo-lora-whole": case(**WHOLE),
    "dpo-lora-reentrant": case(checkpoint_impl="reentrant"),
    "dpo-lora-pure": case(lora={**LORA, "dtype": "bf16"}, **PURE),
    "dpo-lora-one": case(micro_batch=1, seq=1000),
    "dpo-lora-qwen2": case({"model_type": "qwen2", "tie_word_embeddings": True}, micro_batch=3, seq=328),
    "dpo-pure": case(lora=None, **PURE),
    "dpo-pure-whole": case(lora=None, **PURE, **WHOLE),
    "dpo-full": case(lora=None, dtype="fp32"),
    "dpo-full-whole": case({"vocab_size": 30000}, lora=None, dtype="fp32", **WHOLE),
    "dpo-full-fp32": case(lora=None, dtype="fp32", mixed_precision=None),
}


def trainers():
    """llamafactory.train.dpo.trainer, without what its package imports beside."""
    found = importlib.import_module("trl.import_utils")
    for name, value in list(vars(found).items()):
        if name.endswith("_available") and isinstance(value, tuple):  # Of a transformers that is newer than this TRL.
            setattr(found, name, value[0])
    root = importlib.util.find_spec("llamafactory").submodule_search_locations[0]
    for name in ("train", "train/dpo"):
        package = types.ModuleType("llamafactory." + name.replace("/", "."))
        package.__path__ = [f"{root}/{name}"]
        sys.modules[package.__name__] = package
    callbacks = types.ModuleType("llamafactory.train.callbacks")
    callbacks.SaveProcessorCallback = object
    sys.modules[callbacks.__name__] = callbacks
    from llamafactory.hparams import FinetuningArguments
    from llamafactory.train.dpo.trainer import CustomDPOTrainer

    return CustomDPOTrainer, FinetuningArguments


def trainer_of(job, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, TrainingArguments

    kind, finetuning = trainers()
    training = job["training"]
    config = AutoConfig.for_model(**job["config"])
    half = training["mixed_precision"] == "bf16" if "mixed_precision" in training else False
    stored = torch.bfloat16 if half or training["dtype"] == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=stored)
    reference = None
    if "lora" in training:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=training["lora"]["r"], target_modules=training["lora"]["targets"],
                                                 task_type="CAUSAL_LM"))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16 if training["lora"]["dtype"] == "bf16" else torch.float32)
    else:
        reference = AutoModelForCausalLM.from_config(config, dtype=stored).requires_grad_(False).eval()
        if training["dtype"] == "fp32":
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.float32)
    arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=training["micro_batch"], max_steps=2,
                                  report_to=[], save_strategy="no", disable_tqdm=True, bf16=half)
    return kind(model=model, ref_model=reference, finetuning_args=finetuning(
        stage="dpo", finetuning_type="lora" if "lora" in training else "full", pure_bf16=not half and stored != torch.float32),
        processor=None, args=arguments, tokenizer=None)


def measure(job, events=None):
    import torch

    phases = Phases(events)
    training = job["training"]
    trainer = trainer_of(job, tempfile.mkdtemp(prefix="llf"))
    if "checkpoint" in training:
        reentrant = training["checkpoint_impl"] == "reentrant"
        trainer.model.enable_input_require_grads()
        trainer.model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model = trainer.accelerator.prepare_model(trainer.model).train()
    shape = 2 * training["micro_batch"], training["seq"]

    def batch():
        return {name: torch.ones(shape, dtype=torch.int64).to("cuda") for name in ("input_ids", "attention_mask", "labels")}

    phases.record()
    return phases.train(fused_adam(model), batch, lambda inputs: trainer.compute_loss(model, inputs))


def main():
    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
    run_cases(__file__, CASES, measure, ("torch", "transformers", "trl", "peft", "llamafactory"))


main()
