"""Models and devices of the repository, as both sides of a comparison read them."""

import functools
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONTEXT = 600 << 20  # What a CUDA context is said to take, on both sides.
ROOMY = 1 << 40  # The memory of a device on which nothing else is asked.


@functools.lru_cache(None)
def read(path):
    return json.loads(path.read_text())


def hardware(name):
    return read(ROOT / "configs" / "hardware" / f"{name}.json")


def config(job):
    """The model's config.json with the job's changes, or one that the job says whole."""
    change = job.get("change", {})
    if "model_type" in change:
        return change
    found = dict(read(ROOT / "models" / f"{job['model']}.json"))
    found.pop("transformers_version", None)
    for key, value in change.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) and isinstance(found.get(key), dict) else value
    return found


def layers_key(config):
    if "attention_types" in config:  # gpt_neo.
        return "num_layers"
    return "n_layer" if "n_layer" in config else "num_hidden_layers"


def with_layers(config, layers):
    """What changes in a config of a decoder with so many layers, with what it says of each of them."""
    change = {layers_key(config): layers}
    change.update({name: config[name][:layers] for name in ("layer_types", "no_rope_layers") if name in config})
    if "attention_types" in config:  # Global and local in turn (gpt_neo).
        change.update(attention_types=[[["global", "local"], layers // 2]], attention_layers=["global", "local"] * (layers // 2))
    if config.get("max_window_layers", 0) > layers:
        change["max_window_layers"] = layers
    return change
