"""Outside oracle for config.json files as the current transformers writes them.

    resaved_configs.py OUT.json        needs transformers alone

For each model_type among the bundled models: the first of its files, read by transformers and written again with every
field of the class (PreTrainedConfig.to_dict), as what differs from the bundled file. `set` is laid over it, object by
object; `drop` are keys that are gone, an inner one as "text_config.dtype".
tests/resaved_configs_test.cpp predicts both.
"""

import json
import pathlib
import sys

import transformers
from transformers import CONFIG_MAPPING

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Labels of classifiers: as many stay as there were, and nobody reads their words.
LABELS = ("id2label", "label2id")


def first_of_each_type():
    found = {}
    for path in sorted((ROOT / "models").glob("*.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if "model_type" in config:
            found.setdefault(config["model_type"], (path.stem, config))
    return dict(sorted(found.items()))


def difference(before, after, prefix=""):
    """(what to lay over `before`, which of its keys are gone)"""
    changed, gone = {}, [prefix + key for key in before if key not in after]
    for key, value in after.items():
        old = before.get(key)
        if key in LABELS and isinstance(old, dict) and len(old) == len(value):
            continue
        if isinstance(old, dict) and isinstance(value, dict) and key.endswith("_config"):
            inner, lost = difference(old, value, f"{prefix}{key}.")
            changed.update({key: inner} if inner else {})
            gone += lost
        elif key not in before or old != value or type(old) is not type(value):
            changed[key] = value
    return changed, gone


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    rows, unknown = {}, []
    for kind, (name, config) in first_of_each_type().items():
        if kind not in CONFIG_MAPPING:
            unknown.append(kind)
            continue
        written = json.loads(CONFIG_MAPPING[kind].from_dict(config).to_json_string(use_diff=False))
        written.pop("transformers_version", None)
        changed, gone = difference(config, written)
        rows[kind] = {"model": name, "set": changed, "drop": [key for key in gone if key != "transformers_version"]}
    answer = {"source": f"transformers {transformers.__version__}, tools/oracles/resaved_configs.py",
              "unknown_to_transformers": unknown, "types": rows}
    lines = [f'  {json.dumps(kind)}: {json.dumps(row, separators=(",", ":"))}' for kind, row in rows.items()]
    head = json.dumps({**answer, "types": 0}, indent=1)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(head.replace('"types": 0\n}', '"types": {\n' + ",\n".join(lines) + "\n }\n}\n"))


if __name__ == "__main__":
    main()
