"""A job as a user would write it, with transformers' Trainer, and python/dsplan/receipt.py around it.

  trainer_job.py --out FOLDER [--device cuda|cpu]     writes FOLDER/trainer-MODEL.json

Random weights and tokens: nothing is downloaded. Exit code 77 where torch, transformers or accelerate is missing, 1
where the receipt is not complete.
"""
import argparse
import importlib.util
import json
import pathlib
import sys
import tempfile

TOOLS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOOLS.parent / "python"), str(TOOLS / "frameworks")]
NEEDS = ("torch", "transformers", "accelerate")
STEPS = 3
# Model, sequences in a micro-batch, their length.
JOBS = {"cuda": ("qwen2-0.5b", 2, 1024), "cpu": ("tiny-llama", 2, 16)}


class RandomTokens:
    """As many sequences as the job takes; the labels are the tokens."""

    def __init__(self, count, length, vocabulary):
        import torch
        self.ids = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def train(path, name, batch, length, on_cpu, scratch):
    import transformers
    from common.configuration import model_config
    from dsplan.receipt import ReceiptCallback
    config = transformers.AutoConfig.for_model(**model_config(name))
    model = transformers.AutoModelForCausalLM.from_config(config)
    arguments = transformers.TrainingArguments(
        output_dir=scratch, per_device_train_batch_size=batch, max_steps=STEPS, bf16=not on_cpu, use_cpu=on_cpu,
        report_to="none", save_strategy="no", logging_steps=STEPS, disable_tqdm=True)
    tokens = RandomTokens(batch * STEPS, length, config.vocab_size)
    transformers.Trainer(model, arguments, train_dataset=tokens, callbacks=[ReceiptCallback(str(path))]).train()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--device", choices=tuple(JOBS), default="cuda")
    given = parser.parse_args()
    missing = [package for package in NEEDS if importlib.util.find_spec(package) is None]
    if missing:
        print(f"finding: {' and '.join(missing)} not installed")
        return 77
    name, batch, length = JOBS[given.device]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"trainer-{name}.json"
    with tempfile.TemporaryDirectory() as scratch:
        train(path, name, batch, length, given.device == "cpu", scratch)
    receipt = json.loads(path.read_text(encoding="utf-8"))
    print(f"finding: {receipt['name']}: {receipt['outcome']}, {'complete' if receipt['complete'] else 'not complete'}")
    return 0 if receipt["complete"] else 1


if __name__ == "__main__":
    sys.exit(main())
