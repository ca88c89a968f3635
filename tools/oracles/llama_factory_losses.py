"""Outside oracle for LLaMA-Factory's preference trainers: llamafactory's own trainer, transformers and peft, on the dry device.

    PYTHONPATH=LLAMA_FACTORY:TRL tools/dry/run --device a100-sxm-80 -- python tools/oracles/llama_factory_losses.py OUT.json [NAME...]
    ... python tools/oracles/llama_factory_losses.py --events OUT.txt NAME

llamafactory 0.9.5 wants TRL up to 0.24. Its trainers are imported without the rest of it, which needs packages for sound
and pictures. Each case is a process of its own: compute_loss of CustomDPOTrainer, CustomKTOTrainer or PairwiseTrainer
under a loop of forward, backward and step, twice. A row for each phase: peaks of requested, allocated and reserved bytes
since the phase began, and what is requested at its end. Of KTO's rows each second one is desirable.
"""

import importlib
import importlib.util
import os
import sys
import tempfile
import types

from two_steps import Phases, fused_adam, run_cases, tagged_rows

TINY = {"model_type": "llama", "vocab_size": 40000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 2}
LORA = {"r": 8, "targets": ["q_proj", "v_proj"], "dtype": "fp32"}


def case(config=None, trainer="dpo-logits", **training):
    usual = {"micro_batch": 2, "seq": 512, "dtype": "bf16", "mixed_precision": "bf16", "checkpoint": "full",
             "checkpoint_impl": "non_reentrant", "lora": LORA}
    usual.update(training)
    return {"trainer": trainer, "config": {**TINY, **(config or {})},
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
QWEN = {"model_type": "qwen2", "tie_word_embeddings": True}
for name in ("orpo-logits", "simpo-logits", "kto-logits", "reward-values"):
    kind = name.partition("-")[0]
    whole = QWEN if kind == "reward" else {}  # Beside values lm_head has no gradient of its own.
    made = {
        "lora": case(trainer=name),
        "full": case(whole, name, lora=None, dtype="fp32"),
        "lora-whole": case(trainer=name, **WHOLE),
        "lora-pure": case(trainer=name, lora={**LORA, "dtype": "bf16"}, **PURE),
        "lora-qwen2": case(QWEN, name, micro_batch=3, seq=328),
        "lora-one": case(trainer=name, micro_batch=1, seq=1000),
        "lora-reentrant": case(trainer=name, checkpoint_impl="reentrant"),
        "pure": case(whole, name, lora=None, **PURE),
        "full-whole": case({**whole, "vocab_size": 30000}, name, lora=None, dtype="fp32", **WHOLE),
        "full-fp32": case(whole, name, lora=None, dtype="fp32", mixed_precision=None),
    }
    few = {"orpo": 6, "simpo": 2}.get(kind)  # What differs from dpo is a number for each row.
    CASES |= {f"{kind}-{key}": value for key, value in list(made.items())[:few]}


# By the first word of a case's trainer: the stage, its module's class, and its loss of pairs.
STAGES = {"dpo": ("dpo", "CustomDPOTrainer", "sigmoid"), "orpo": ("dpo", "CustomDPOTrainer", "orpo"),
          "simpo": ("dpo", "CustomDPOTrainer", "simpo"), "kto": ("kto", "CustomKTOTrainer", "sigmoid"),
          "reward": ("rm", "PairwiseTrainer", "sigmoid")}


def trainer_class(stage, name):
    """A class of llamafactory.train.STAGE.trainer, without what its package imports beside."""
    found = importlib.import_module("trl.import_utils")
    for key, value in list(vars(found).items()):
        if key.endswith("_available") and isinstance(value, tuple):  # Of a transformers that is newer than this TRL.
            setattr(found, key, value[0])
    root = importlib.util.find_spec("llamafactory").submodule_search_locations[0]
    for part in ("train", f"train/{stage}"):
        package = types.ModuleType("llamafactory." + part.replace("/", "."))
        package.__path__ = [f"{root}/{part}"]
        sys.modules[package.__name__] = package
    from transformers import TrainerCallback

    callbacks = types.ModuleType("llamafactory.train.callbacks")
    callbacks.SaveProcessorCallback = callbacks.FixValueHeadModelCallback = TrainerCallback
    sys.modules[callbacks.__name__] = callbacks
    return getattr(importlib.import_module(f"llamafactory.train.{stage}.trainer"), name)


def with_value_head(model):
    """load_model (model/loader.py) with add_valuehead, and what patch_valuehead_model gives the wrapper."""
    from trl import AutoModelForCausalLMWithValueHead

    wrapped = AutoModelForCausalLMWithValueHead.from_pretrained(model)
    wrapped.get_input_embeddings = model.get_input_embeddings
    wrapped.get_output_embeddings = model.get_output_embeddings
    return wrapped


def trainer_of(job, folder):
    import torch
    from llamafactory.hparams import FinetuningArguments
    from transformers import AutoConfig, AutoModelForCausalLM, TrainingArguments

    kind = job["trainer"].partition("-")[0]
    stage, name, loss = STAGES[kind]
    trainer = trainer_class(stage, name)
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
        if kind in ("dpo", "kto"):
            reference = AutoModelForCausalLM.from_config(config, dtype=stored).requires_grad_(False).eval()
        if training["dtype"] == "fp32":
            for parameter in model.parameters():
                parameter.data = parameter.data.to(torch.float32)
    arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=training["micro_batch"], max_steps=2,
                                  report_to=[], save_strategy="no", disable_tqdm=True, bf16=half)
    finetuning = FinetuningArguments(stage=stage, pref_loss=loss, finetuning_type="lora" if "lora" in training else "full",
                                     pure_bf16=not half and stored != torch.float32)
    if kind == "reward":
        if "checkpoint" in training:  # patch_model prepares the model before it has its value head.
            checkpointed(model, training)
        return trainer(finetuning, None, model=with_value_head(model), args=arguments, tokenizer=None)
    return trainer(model=model, ref_model=reference, finetuning_args=finetuning, processor=None, args=arguments, tokenizer=None)


def checkpointed(model, training):
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": training["checkpoint_impl"] == "reentrant"})


def measure(job, events=None):
    import torch

    phases = Phases(events)
    training = job["training"]
    trainer = trainer_of(job, tempfile.mkdtemp(prefix="llf"))
    of_rows = job["trainer"].startswith("kto")
    if "checkpoint" in training and not job["trainer"].startswith("reward"):
        checkpointed(trainer.model, training)
    model = trainer.accelerator.prepare_model(trainer.model).train()
    rows = training["micro_batch"]
    shape = (1 if of_rows else 2) * rows, training["seq"]
    names = "input_ids", "attention_mask", "labels"  # The model's own loss of them is computed beside that of values.
    chosen = tagged_rows(rows, "ccrrc") if of_rows else None

    def batch():
        made = {name: torch.ones(shape, dtype=torch.int64).to("cuda") for name in names}
        if chosen:
            made |= {f"kl_{name}": torch.ones(shape, dtype=torch.int64).to("cuda") for name in names}
            made["kto_tags"] = torch.tensor([row % 2 == 0 for row in range(rows)]).to("cuda")
        return made

    phases.record()
    return phases.train(fused_adam(model), batch, lambda inputs: trainer.compute_loss(model, inputs))


def main():
    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
    run_cases(__file__, CASES, measure, ("torch", "transformers", "trl", "peft", "llamafactory"))


main()
