#!/usr/bin/env python3
"""Published runs of litgpt, run again by litgpt's own code on the dry device: rows of tests/data/published-memory.csv.

  tools/dry/run --world 1 --device a100-sxm-40 --quiet -- python tools/dry/litgpt_jobs.py OUT.jsonl [PATTERN]

Needs litgpt, lightning and bitsandbytes beside PyTorch. Each row runs in a fork: its script's `main` from finetune/, with
texts of the stated length in place of a data set, nothing read from a checkpoint, and two optimizer steps of two
micro-batches each. Rows that OUT has already are left out. docs/accuracy.md prints what comes out.
"""

import csv
import importlib
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = {
    "microsoft/phi-1_5": "phi-1_5", "microsoft/phi-2": "phi-2",
    "microsoft/Phi-3-mini-4k-instruct": "Phi-3-mini-4k-instruct",
    "stabilityai/stablelm-base-alpha-3b": "stablelm-base-alpha-3b",
    "meta-llama/Llama-2-7b-hf": "Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf": "Llama-2-13b-hf",
    "meta-llama/Meta-Llama-3-8B": "Llama-3-8B", "meta-llama/Llama-3.1-8B": "Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B": "Llama-3.2-1B", "meta-llama/Llama-3.2-3B": "Llama-3.2-3B",
    "mistralai/Mistral-7B-v0.1": "Mistral-7B-v0.1", "unsloth/mistral-7b-v0.2 (7.24B, vocab 32000)": "Mistral-7B-v0.1",
    "TinyLlama/TinyLlama-1.1B": "tiny-llama-1.1b", "google/gemma-2b": "Gemma-2b", "google/gemma-7b": "Gemma-7b",
    "google/gemma-2-2b": "Gemma-2-2b", "google/gemma-2-9b": "Gemma-2-9b", "tiiuae/falcon-7b": "falcon-7b",
}
WORDS = {"q": "query", "v": "value"}
STEPS, ACCUMULATED = 2, 2


class Ran(Exception):
    """The steps are done; what main does behind them is left out."""


def published():
    """[(id, bytes, row)] of the rows that one device trained and that say how."""
    found = []
    with open(ROOT / "tests/data/published-memory.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            alone = row["n_gpus"] == "1" and row["parallelism"] == "none" and row["optimizer"] == "AdamW"
            if row["id"].startswith("LITGPT") and row["quantity"] == "peak_allocated" and alone and method_of(row):
                found.append((row["id"], round(float(row["value"]) * 1e9), row))
    return found


def method_of(row):
    """(script, arguments of the configuration); None where the row does not say them."""
    text = re.sub(r" \+ bnb\.\S+", "", row["lora/quant"])
    if text == "none":
        return "full", {}
    if text in ("LLaMA-Adapter", "Adapter v2"):
        return ("adapter" if text.startswith("LLaMA") else "adapter_v2"), {}
    found = re.fullmatch(r"LoRA r(\d+) (\S+)", text)
    if not found or row["precision"] != "bf16-true":
        return None
    words = [WORDS.get(word, word) for word in re.split(r"[+,]", found.group(2))]
    every = ("query", "key", "value", "projection", "mlp", "head")
    return "lora", {"lora_r": int(found.group(1)), "lora_alpha": 16, "lora_dropout": 0.05,
                    **{f"lora_{word}": word in words for word in every}}


def loaders(rows, tokens):
    import torch

    texts = [{"input_ids": torch.ones(tokens, dtype=torch.long)} for _ in range(rows * 64)]

    class Loader(list):
        dataset = texts

    ids = torch.randint(1, 1000, (rows, tokens)).to("cuda")
    counts = {key: torch.full((rows, 1), tokens) for key in ("raw", "raw_plus_prompt_template")}
    batch = {"input_ids": ids, "labels": ids.clone(), "token_counts": counts}
    return Loader([batch] * 64), Loader([batch] * 2)


def run(row):
    import lightning as L
    import torch
    from lightning.fabric.plugins import BitsandbytesPrecision
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.config import Config

    method, extra = method_of(row)
    script = importlib.import_module("litgpt.finetune." + method)
    package = {"full": "litgpt.model", "adapter": "litgpt.adapter"}.get(method, "litgpt." + method)
    kind = Config if method == "full" else importlib.import_module(package).Config
    config = kind.from_name(MODELS[row["model"]], **extra)
    packed = re.search(r"bnb\.(nf4(?:-dq)?)", row["lora/quant"])
    if packed:
        fabric = L.Fabric(devices=1, plugins=BitsandbytesPrecision(packed.group(1), torch.bfloat16))
    else:
        fabric = L.Fabric(devices=1, precision="bf16-true")
    fabric.launch()
    rows, tokens = int(row["batch_per_gpu"]), int(row["seq_len"])
    peaks = {}

    def ready(*_, **__):
        peaks["loaded"] = [torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()]

    def done(*_, **__):
        raise Ran

    script.Tokenizer, script.get_dataloaders = (lambda *_: None), (lambda *_: loaders(rows, tokens))
    script.load_checkpoint = ready
    if hasattr(script, "create_finetuning_performance_report"):
        script.create_finetuning_performance_report = done
    given = {
        "fabric": fabric, "devices": 1, "seed": 1, "config": config, "data": None, "checkpoint_dir": pathlib.Path("."),
        "out_dir": pathlib.Path("/tmp"), "optimizer": "AdamW", "resume": False, "precision": "bf16-true",
        "train": TrainArgs(save_interval=None, log_interval=1000, global_batch_size=ACCUMULATED * rows, micro_batch_size=rows,
                           lr_warmup_steps=1, epochs=10, max_steps=STEPS, max_seq_length=tokens),
        "eval": EvalArgs(interval=1000, max_new_tokens=1, initial_validation=False, final_validation=False),
    }
    try:
        script.main(**{name: given[name] for name in inspect.signature(script.main).parameters if name in given})
    except Ran:
        pass
    stats = torch.cuda.memory_stats()
    return {"allocated": stats["allocated_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"],
            "requested": stats["requested_bytes.all.peak"], "loaded": peaks.get("loaded")}


def forked(row, end):
    try:
        end.send(run(row))
    except BaseException as error:  # noqa: BLE001  What ended a job is its answer.
        end.send({"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]})
    os._exit(0)


def main():
    out, pattern = pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
    there = {json.loads(line)["row"] for line in out.read_text().splitlines()} if out.exists() else set()
    import torch  # noqa: F401  Once, for all forks; bitsandbytes would begin to use the device.

    versions = {name: importlib.metadata.version(name) for name in ("litgpt", "lightning", "torch", "bitsandbytes")}
    for row_id, value, row in published():
        if row_id in there or not re.search(pattern, row_id):
            continue
        here, there_end = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=forked, args=(row, there_end))
        child.start()
        there_end.close()
        try:
            answer = here.recv()
        except EOFError:
            answer = {"failed": "the process ended without an answer"}
        child.join()
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"row": row_id, "published": value, **answer, "versions": versions}) + "\n")
        print(row_id, row["model"], f"{answer.get('allocated', 0) / value - 1:+.2%}", answer.get("failed", ""), flush=True)


if __name__ == "__main__":
    main()
