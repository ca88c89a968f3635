"""Outside oracle for TRL's losses: real trl, transformers and peft, CUDA build, on the dry device.

    tools/dry/run --device a100-sxm-80 -- python tools/oracles/trl_losses.py OUT.json [NAME...]
    tools/dry/run ... -- python tools/oracles/trl_losses.py --events OUT.txt NAME
    PYTHONPATH=TRL_1.9.0 tools/dry/run ... -- python tools/oracles/trl_losses.py tests/witnesses/axolotl_losses.json

Each case is a process of its own: SFTTrainer, DPOTrainer or RewardTrainer of a small model, its compute_loss under a
loop of forward, backward and step, twice. A row for each phase: peaks of requested, allocated and reserved bytes since
the phase began, and what is requested at its end. Every token counts but each row's first: kernels do not run, so that
the dry device says so to aten::nonzero.

Cases of OLD are those of TRL 1.9.0, which axolotl 0.19.0 brings: DPOTrainer and KTOTrainer without a fused head, ORPOTrainer,
CPOTrainer with the loss "simpo", RewardTrainer over adapters that axolotl makes. After each backward of DPOTrainer there is
what AxolotlDPOTrainer.training_step adds (gc.collect(), torch.cuda.empty_cache()). Of KTO's rows each second one is
desirable. A prompt is half as long as its row.
"""

import gc
import importlib.metadata
import tempfile

from two_steps import Phases, fused_adam, run_cases, tagged_rows

TINY = {"model_type": "llama", "vocab_size": 40000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 2}
LORA = {"r": 8, "targets": ["q_proj", "v_proj"]}


def case(trainer, config=None, **training):
    usual = {"micro_batch": 2, "seq": 512, "dtype": "fp32", "mixed_precision": "bf16", "checkpoint": "full",
             "checkpoint_impl": "non_reentrant"}
    usual.update(training)
    return {"trainer": trainer, "config": {**TINY, **(config or {})},
            "training": {k: v for k, v in usual.items() if v is not None}}


PURE = {"dtype": "bf16", "mixed_precision": None}
HALF = {"dtype": "bf16"}
WHOLE = {"checkpoint": None, "checkpoint_impl": None}
CASES = {
    "sft": case("trl"),
    "sft-bf16": case("trl", **PURE),
    "sft-long": case("trl", {"vocab_size": 70000}, seq=2048, micro_batch=4),
    "sft-lora": case("trl", lora=LORA),
    "sft-whole": case("trl", {"vocab_size": 30000}, **WHOLE),
    "sft-tied": case("trl", {"model_type": "qwen2", "tie_word_embeddings": True}, **PURE),
    "dpo": case("dpo"),
    "dpo-bf16": case("dpo", **PURE, **WHOLE),
    "dpo-lora": case("dpo", lora=LORA),
    "dpo-lora-bf16": case("dpo", lora={**LORA, "dtype": "bf16"}, **PURE),
    "dpo-precomputed": case("dpo-precomputed"),
    "rows-lora": case("dpo-rows", lora=LORA, **HALF),
    "rows-lora-whole": case("dpo-rows", lora=LORA, **HALF, **WHOLE),
    "rows-lora-one": case("dpo-rows", {"vocab_size": 30000}, lora=LORA, micro_batch=1, seq=1000, **HALF),
    "rows-lora-qwen2": case("dpo-rows", {"model_type": "qwen2", "tie_word_embeddings": True}, lora=LORA, micro_batch=3, seq=328,
                            **HALF),
    "rows": case("dpo-rows", **HALF),
    "rows-whole": case("dpo-rows", {"vocab_size": 30000}, **HALF, **WHOLE),
    "reward": case("reward"),
    "reward-bf16": case("reward", **PURE, **WHOLE),
    "reward-centered": case("reward-centered"),
    "reward-qwen2": case("reward", {"model_type": "qwen2"}, micro_batch=1, seq=1000),
    "kto": case("kto"),
    "kto-bf16": case("kto", **PURE, **WHOLE),
    "kto-lora": case("kto", lora=LORA),
    "kto-lora-bf16": case("kto", lora={**LORA, "dtype": "bf16"}, **PURE),
    "kto-one": case("kto", micro_batch=1, seq=1000),
    "kto-qwen2": case("kto", {"model_type": "qwen2", "tie_word_embeddings": True}, micro_batch=3, seq=328),
}
for name in ("ipo-rows", "orpo-rows", "simpo-rows", "kto-rows"):
    kind = name.partition("-")[0]
    made = {
        "lora": case(name, lora=LORA, **HALF),
        "whole": case(name, {"vocab_size": 30000}, **HALF, **WHOLE),
        "lora-whole": case(name, lora=LORA, **HALF, **WHOLE),
        "lora-one": case(name, {"vocab_size": 30000}, lora=LORA, micro_batch=1, seq=1000, **HALF),
        "lora-qwen2": case(name, {"model_type": "qwen2", "tie_word_embeddings": True}, lora=LORA, micro_batch=3, seq=328, **HALF),
        "full": case(name, **HALF),
    }
    if kind == "simpo":
        made["bare"] = case("simpo-rows-bare", lora=LORA, **HALF)
    few = 2 if kind == "ipo" else None  # What differs from dpo is a number for each row.
    CASES |= {f"rows-{kind}-{key}": value for key, value in list(made.items())[:few]}
HEADED = {**LORA, "save": ["score"]}
CASES |= {
    "axolotl-reward-lora": case("reward", lora=HEADED, **HALF),
    "axolotl-reward-whole": case("reward", lora=HEADED, **HALF, **WHOLE),
    "axolotl-reward-qwen2": case("reward-centered", {"model_type": "qwen2"}, lora=HEADED, micro_batch=1, seq=1000, **HALF),
    "axolotl-reward": case("reward", **HALF),
}


def is_old(name):
    """Of TRL 1.9.0."""
    return "-rows" in CASES[name]["trainer"] or name.startswith("axolotl-")


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "</s>": 2, "<unk>": 3, "c": 4}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>", unk_token="<unk>")


def experimental(job, folder, common):
    """ORPOTrainer or CPOTrainer, of a model that axolotl has given its adapters."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if "lora" in job["training"]:
        model = adapted(model, job["training"], "CAUSAL_LM")
    of_odds = job["trainer"] == "orpo-rows"
    arguments = ORPOConfig(**common) if of_odds else CPOConfig(**common, loss_type="simpo", **({"cpo_alpha": 0.0} if "bare" in job["trainer"] else {}))
    rows = Dataset.from_list([{"prompt": "b", "chosen": " a", "rejected": " c"}] * 8)
    return (ORPOTrainer if of_odds else CPOTrainer)(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer())


def adapted(model, training, task):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=training["lora"]["r"], target_modules=training["lora"]["targets"], task_type=task))


def trainer_of(job, folder):
    import torch
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    training, seq = job["training"], job["training"]["seq"]
    rewards = job["trainer"].startswith("reward")
    config = AutoConfig.for_model(**job["config"], **({"num_labels": 1} if rewards else {}))
    (AutoModelForSequenceClassification if rewards else AutoModelForCausalLM).from_config(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    peft = None
    if "lora" in training:
        from peft import LoraConfig

        peft = LoraConfig(r=training["lora"]["r"], target_modules=training["lora"]["targets"],
                          task_type="CAUSAL_LM")
    common = {"output_dir": folder + "/out", "per_device_train_batch_size": training["micro_batch"], "max_steps": 2,
              "max_length": seq, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
              "bf16": training.get("mixed_precision") == "bf16", "gradient_checkpointing": "checkpoint" in training,
              "model_init_kwargs": {"dtype": "bfloat16" if training["dtype"] == "bf16" else "float32"}}
    old = importlib.metadata.version("trl") == "1.9.0"
    if old:
        del common["model_init_kwargs"]  # axolotl loads the models itself.
    if job["trainer"].startswith(("orpo", "simpo")):
        return experimental(job, folder, common)
    if job["trainer"] == "trl":
        from trl import SFTConfig, SFTTrainer

        made = SFTTrainer, SFTConfig, [{"text": "a " * (2 * seq)}]
    elif rewards:
        from trl import RewardConfig, RewardTrainer

        if job["trainer"] == "reward-centered":
            common["center_rewards_coefficient"] = 0.01
        made = RewardTrainer, RewardConfig, [{"chosen": " a" * (seq - 1), "rejected": " c" * (seq - 1)}]
    elif job["trainer"].startswith("kto"):
        from trl import KTOConfig, KTOTrainer

        made = KTOTrainer, KTOConfig, [{"prompt": "b", "completion": " a" * (2 * seq), "label": label} for label in (True, False)]
    else:
        from trl import DPOConfig, DPOTrainer

        made = DPOTrainer, DPOConfig, [{"prompt": "b", "chosen": " a" * (2 * seq), "rejected": " c" * (2 * seq)}]
        common["precompute_ref_log_probs"] = job["trainer"] == "dpo-precomputed"
        if job["trainer"] == "ipo-rows":
            common["loss_type"] = ["ipo"]
    kind, arguments, rows = made
    model, reference = folder, {}
    if old and rewards:
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16)
        model, peft = adapted(model, training, "SEQ_CLS") if peft else model, None
    elif old:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        if peft is None:
            reference["ref_model"] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    trainer = kind(model=model, **reference, args=arguments(**common), train_dataset=Dataset.from_list(rows * 8), peft_config=peft)
    if training.get("lora", {}).get("dtype") == "bf16":
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)
    return trainer


def measure(job, events=None):
    import torch

    phases = Phases(events)
    training = job["training"]
    trainer = trainer_of(job, tempfile.mkdtemp(prefix="trl"))
    if "checkpoint" in training:
        trainer.model.gradient_checkpointing_enable({"use_reentrant": False})
    model = trainer.accelerator.prepare_model(trainer.model).train()
    optimizer = fused_adam(model)
    pairs = trainer.train_dataset
    known = {"labels": None}

    if job["trainer"].startswith("kto"):
        known["tags"] = tagged_rows(training["micro_batch"], "cr")

    def paired():
        """As TRL's experimental collator makes it."""
        shape = training["micro_batch"], training["seq"]
        rows = {f"{side}_{what}": torch.ones(shape, dtype=torch.int64) for side in ("chosen", "rejected")
                for what in ("input_ids", "attention_mask", "labels")}
        prompts = {f"prompt_{what}": torch.ones(shape[0], shape[1] // 2, dtype=torch.int64) for what in ("input_ids", "attention_mask")}
        return prompts | rows

    def batch():
        if job["trainer"].startswith(("orpo", "simpo")):
            return {name: value.to("cuda") for name, value in paired().items()}
        made = dict(trainer.data_collator([pairs[i] for i in range(training["micro_batch"])]))
        if job["trainer"] == "trl":
            known["count"] = torch.tensor(training["micro_batch"] * (training["seq"] - 1)).to("cuda")
        return {name: value.to("cuda") for name, value in made.items()}

    def loss_of(inputs):
        return trainer.compute_loss(model, dict(inputs), num_items_in_batch=known.get("count"))

    def empty_cache():
        gc.collect()
        torch.cuda.empty_cache()

    phases.record()
    return phases.train(optimizer, batch, loss_of, *([empty_cache] if job["trainer"] in ("dpo-rows", "ipo-rows") else []))


def main():
    rows = importlib.metadata.version("trl") == "1.9.0"
    run_cases(__file__, CASES, measure, ("torch", "transformers", "trl", "peft"),
              [name for name in CASES if is_old(name) == rows])


main()
