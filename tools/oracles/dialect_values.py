"""What the projects' own parsers make of the example files in tests/data/dialects.

    python tools/oracles/dialect_values.py SOURCES tests/data/dialects > tests/witnesses/dialects/values.json

SOURCES as for dialect_fields.py. transformers and accelerate are imported as they are installed, TRL from SOURCES;
LLaMA-Factory's dataclasses stand behind the same HfArgumentParser that it uses (DISABLE_VERSION_CHECK=1, since it asks for
an older transformers); axolotl's schema is pydantic's; torchtitan's ConfigManager (0.2.2; 0.1.0, in torchtitan1, for files named older_*) wants
tyro. Only keys that the file has are written, with their parsed value.
"""
import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import sys
import tomllib
import types

import yaml


def plain(value):
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value.value if hasattr(value, "value") else value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return str(getattr(value, "value", value))


def written(path):
    return json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())


def picked(path, objects):
    found = {}
    for key in written(path):
        for one in objects:
            if hasattr(one, key):
                found[key] = plain(getattr(one, key))
    return found


def hugging_face(path, classes):
    from transformers import HfArgumentParser

    parser = HfArgumentParser(classes)
    data = {key: value for key, value in written(path).items() if key != "env"}
    data.pop("deepspeed", None)  # It would be opened.
    data.pop("fsdp", None), data.pop("fsdp_config", None)
    data["bf16"] = False  # A CPU without bf16 is refused.
    data["fp16"] = False
    objects = parser.parse_dict(data, allow_extra_keys=True)
    return {key: value for key, value in picked(path, objects).items()
            if key in data and key not in ("bf16", "fp16")}


def scripts_own():
    @dataclasses.dataclass
    class Script:
        model_name_or_path: str = None
        block_size: int = None
        max_seq_length: int = None
        torch_dtype: str = None
        attn_implementation: str = None

    return Script


def llama_factory(root):
    """Its dataclasses, without the packages that its __init__ files import."""
    package = types.ModuleType("llamafactory")
    package.__path__ = [str(root / "llamafactory/llamafactory")]
    sys.modules["llamafactory"] = package
    from llamafactory.hparams.data_args import DataArguments
    from llamafactory.hparams.finetuning_args import FinetuningArguments
    from llamafactory.hparams.model_args import ModelArguments
    from transformers import Seq2SeqTrainingArguments

    return (ModelArguments, DataArguments, FinetuningArguments, Seq2SeqTrainingArguments)


def factory_v1(path):
    """By LLaMA-Factory's v1 itself, src of its repository on PYTHONPATH: what stands in blocks under dots."""
    from llamafactory.v1.config.data_args import DataArguments
    from llamafactory.v1.config.model_args import ModelArguments
    from llamafactory.v1.config.sample_args import SampleArguments
    from llamafactory.v1.config.training_args import TrainingArguments
    from transformers import HfArgumentParser

    found = {}
    for one in HfArgumentParser([ModelArguments, DataArguments, TrainingArguments, SampleArguments]).parse_dict(written(path)):
        for key in written(path):
            value = plain(getattr(one, key, None))
            if hasattr(one, key):
                found.update({f"{key}.{inner}": of for inner, of in value.items()} if isinstance(value, dict) else {key: value})
    return found


def axolotl(root):
    package = types.ModuleType("axolotl")
    package.__path__ = [str(root / "axolotl/axolotl")]
    sys.modules["axolotl"] = package
    from axolotl.utils.schemas.config import AxolotlInputConfig

    return AxolotlInputConfig


def torchtitan(root):
    """Paths with dots, as the options of its command line have them."""
    package = types.ModuleType("torchtitan")
    package.__path__ = [str(root / "torchtitan/torchtitan")]
    sys.modules["torchtitan"] = package
    from torchtitan.config.manager import ConfigManager

    spec = importlib.util.spec_from_file_location("older_manager", root / "torchtitan1/torchtitan/config_manager.py")
    older = importlib.util.module_from_spec(spec)
    sys.modules["older_manager"] = older
    spec.loader.exec_module(older)

    def picked_by_path(data, config, prefix=""):
        found = {}
        for key, value in data.items():
            if isinstance(value, dict):
                found.update(picked_by_path(value, getattr(config, key), f"{prefix}{key}."))
            else:
                found[prefix + key] = plain(getattr(config, key))
        return found

    def parse(path):
        manager = older.ConfigManager if path.stem.startswith("older") else ConfigManager
        return picked_by_path(tomllib.loads(path.read_text()), manager().parse_args(["--job.config_file", str(path)]))

    return parse


def main(root, examples):
    root, examples = pathlib.Path(root), pathlib.Path(examples)
    sys.path.insert(0, str(root / "trl"))
    values = {}

    def put(folder, parse):
        for path in sorted((examples / folder).glob("*")):
            name = f"{folder}/{path.name}"
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    values[name] = parse(path)
            except Exception as error:  # What they refuse themselves is a fact, too.
                values[name] = {"refused": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}

    from transformers import TrainingArguments

    put("transformers", lambda path: hugging_face(path, (TrainingArguments, scripts_own())))
    from trl import DPOConfig, ModelConfig, RewardConfig, ScriptArguments, SFTConfig

    kind = {"dpo": DPOConfig, "reward": RewardConfig}
    put("trl", lambda path: hugging_face(
        path, (kind.get(path.stem.split("_")[0], SFTConfig), ModelConfig, ScriptArguments)))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            classes = llama_factory(root)
        put("llama_factory", lambda path: hugging_face(path, classes))
    except ImportError as error:
        print("llama_factory:", error, file=sys.stderr)
    if importlib.util.find_spec("llamafactory.v1"):
        put("llama_factory_v1", factory_v1)
    try:
        schema = axolotl(root)
        put("axolotl", lambda path: picked(path, [schema(**written(path))]))
    except ImportError as error:
        print("axolotl:", error, file=sys.stderr)
    try:
        put("torchtitan", torchtitan(root))
    except ImportError as error:
        print("torchtitan:", error, file=sys.stderr)
    from accelerate.commands.config.config_args import load_config_from_file

    put("accelerate", lambda path: picked(path, [load_config_from_file(str(path))]))
    json.dump(values, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
