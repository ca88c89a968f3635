"""Outside oracle for what from_pretrained reserves before it loads packed weights among several ranks: which parameters
transformers' plans of tensor parallelism name (base_model_tp_plan, and _tp_plan of the class).

    python tools/oracles/tensor_plans.py tests/data/tensor-plans.csv

A row for each bundled model, one of each family, and each name of a parameter, its numbers as "*".
"""

import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM
from transformers.modeling_utils import _get_parameter_tp_plan

ROOT = pathlib.Path(__file__).resolve().parents[2]


def made(config):
    for kind in (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM):
        try:
            with torch.device("meta"):
                return kind.from_config(config)
        except ValueError:
            continue
    return None


def main():
    rows, seen = [], set()
    for path in sorted((ROOT / "models").glob("*.json")):
        config = json.loads(path.read_text())
        family = config.get("model_type")
        if family is None or family in seen:
            continue
        try:
            model = made(AutoConfig.for_model(**config))
        except (ValueError, ImportError):
            continue
        if model is None:
            continue
        seen.add(family)
        plan, names = model.tp_plan, {}
        for name, _ in model.named_parameters():
            short = ".".join("*" if part.isdigit() else part for part in name.split("."))
            names[short] = _get_parameter_tp_plan(name, plan, is_weight=True) is not None
        rows += [f"{path.stem},{name},{int(inside)}" for name, inside in sorted(names.items())]
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(f"# tools/oracles/tensor_plans.py, transformers {transformers.__version__}\nmodel,parameter,in_plan\n")
        file.write("\n".join(rows) + "\n")


main()
