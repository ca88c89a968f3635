"""A configuration to measure, as a JSON object:

    {"name": "llama-1b-full-2k",               // of the receipt's file
     "model": "llama-3.2-1b",                  // bundled with dsplan, a config.json's path, a whole object, or
                                               // {"like": "llama-3.2-1b", "num_hidden_layers": 4}
     "runtime": "pytorch",                     // pytorch | deepspeed
     "training": {"seq": 2048, ...},           // a training file; what is missing is filled in by DEFAULTS, so that a
                                               // receipt leaves nothing for dsplan to assume
     "deepspeed": {...},                       // the JSON of deepspeed.initialize, with runtime deepspeed
     "options": ["--gpus", "8"],               // further options of `dsplan simulate`
     "snapshot": true,                         // record every allocation
     "limit_bytes": 1000000000}                // what the allocator may reserve

Everything from "runtime" on may be missing. Standard library only.
"""

import json
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
KEYS = ("name", "model", "runtime", "training", "deepspeed", "options", "snapshot", "limit_bytes", "note", "verdict")
HEAD = {"dsplan": 1, "kind": "training", "source": "tools/frameworks"}
DEFAULTS = {"dtype": "bf16", "autocast": "none", "micro_batch": 1, "grad_accum": 1,
            "optimizer": {"name": "adamw", "implementation": "fused"}, "loss": "hf", "attention": "flash",
            "checkpoint": "none"}
OF_DEEPSPEED = ("dtype", "autocast", "micro_batch", "grad_accum", "optimizer")  # Its JSON says these.


class Bad(ValueError):
    """A configuration that is none; the text says where."""


class Configuration:
    def __init__(self, value):
        for key in value:
            if key not in KEYS:
                raise Bad(f'{value.get("name", "a configuration")}: unknown key "{key}"')
        self.name = value["name"]
        self.runtime = value.get("runtime", "deepspeed" if value.get("deepspeed") else "pytorch")
        if self.runtime not in ("pytorch", "deepspeed"):
            raise Bad(f'{self.name}: runtime "{self.runtime}"')
        self.model = model_config(value["model"])
        self.deepspeed = value.get("deepspeed")
        given = {key: item for key, item in value.get("training", {}).items() if key not in HEAD}
        defaults = dict(DEFAULTS) if self.deepspeed is None else {
            key: item for key, item in DEFAULTS.items() if key not in OF_DEEPSPEED}
        if self.runtime == "pytorch":
            defaults["model_init"] = "host"  # pytorch_step.py makes the model there and moves it.
        self.training = {**HEAD, **defaults, **given}
        if self.training["checkpoint"] != "none":
            self.training.setdefault("checkpoint_impl", "non_reentrant")
        if "seq" not in self.training:
            raise Bad(f'{self.name}: "seq" is missing')
        self.options = [str(option) for option in value.get("options", [])]
        self.snapshot = bool(value.get("snapshot", False))
        self.limit_bytes = value.get("limit_bytes")
        self.verdict = bool(value.get("verdict", False))
        self.value = value

    def world_size(self):
        """What --gpus says."""
        return int(self.options[self.options.index("--gpus") + 1]) if "--gpus" in self.options else 1

    def rank(self):
        """The one that is measured, alone: what --rank says."""
        return int(self.options[self.options.index("--rank") + 1]) if "--rank" in self.options else 0

    def options_of_all_ranks(self):
        """Without --rank: a receipt's `ranks` say it."""
        at = self.options.index("--rank") if "--rank" in self.options else len(self.options)
        return self.options[:at] + self.options[at + 2:]


def model_config(value):
    """The whole config.json of what "model" names."""
    if isinstance(value, str):
        path = value if value.endswith(".json") else os.path.join(ROOT, "models", value + ".json")
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except OSError as error:
            raise Bad(f'model "{value}": {error}') from None
    if "like" in value:
        own = {key: item for key, item in value.items() if key != "like"}
        merged = {**model_config(value["like"]), **own}
        return {key: item for key, item in merged.items() if item != "absent"}  # Takes a key away.
    if "model_type" not in value:
        raise Bad('"model" has neither "like" nor "model_type"')
    return dict(value)


def read(path):
    with open(path, encoding="utf-8") as file:
        return Configuration(json.load(file))


def rows(paths):
    """The configurations of matrix files, {"dsplan": 1, "kind": "matrix", "source": ..., "rows": [...]}, by name."""
    found = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for value in json.load(file)["rows"]:
                if value["name"] in found:
                    raise Bad(f'{path}: "{value["name"]}" stands twice')
                found[value["name"]] = Configuration(value)
    return found
