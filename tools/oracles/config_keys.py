"""Outside oracle for what a model's config.json may say: the fields of transformers' own configuration classes.

    config_keys.py OUT.json FAMILY...

For each family (a model_type): its class, the fields of the class with their defaults as an otherwise empty config
resolves them, and the other names that it takes for them. A field whose default cannot be written as JSON is null.
"""

import dataclasses
import json
import sys

import transformers
from transformers import CONFIG_MAPPING


def plain(value):
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return None


def described(family):
    kind = CONFIG_MAPPING[family]
    made = kind()
    if getattr(made, "is_heterogeneous", False):  # What its layers have of their own is another key's.
        made.allow_global_per_layer_attribute_access = True
    fields = {field.name: plain(getattr(made, field.name, None)) for field in dataclasses.fields(kind)}
    return {"class": kind.__name__, "fields": dict(sorted(fields.items())),
            "other_names": dict(sorted(kind.attribute_map.items()))}


def main():
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out, *families = sys.argv[1:]
    answer = {"source": f"transformers {transformers.__version__}, tools/oracles/config_keys.py",
              "families": {family: described(family) for family in families}}
    # A version is no default of a model's.
    for row in answer["families"].values():
        row["fields"]["transformers_version"] = None
    with open(out, "w", encoding="utf-8") as file:
        json.dump(answer, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
