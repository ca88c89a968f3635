"""Names that frameworks take, or choose where nobody names any.

    python tools/oracles/names.py tests/witnesses/names.json

transformers' OptimizerNames, and the modules that peft adapts by model type.
"""

import importlib.metadata as metadata
import json
import sys

from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from transformers.training_args import OptimizerNames


def main():
    targets = {kind: sorted(names) if isinstance(names, list) else names
               for kind, names in sorted(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.items())}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"source": "tools/oracles/names.py",
                   "versions": {name: metadata.version(name) for name in ("transformers", "peft")},
                   "optimizers": [name.value for name in OptimizerNames], "lora_targets": targets}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
