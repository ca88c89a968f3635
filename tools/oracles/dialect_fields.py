"""Dumps the keys that other projects' configuration files may have, from the projects' own sources.

    python tools/oracles/dialect_fields.py SOURCES > tests/witnesses/dialects/fields.json

SOURCES is a folder with one unpacked wheel per project, named as in PROJECTS; nothing of them is imported, so that
none of their dependencies need be there. A key is a path with dots; a default is the source's own text.
"""
import ast
import json
import pathlib
import re
import sys


class Classes:
    """The classes of some files: their own annotated fields, in the order of the source."""

    def __init__(self, folder, files):
        self.by_name = {}
        for pattern in files:
            for path in sorted(folder.glob(pattern)):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.ClassDef):
                        self.by_name.setdefault(node.name, node)

    def fields(self, name):
        node = self.by_name[name]
        found = {}
        for base in reversed(node.bases):
            if isinstance(base, ast.Name) and base.id in self.by_name:
                found.update(self.fields(base.id))
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            if item.target.id.startswith("_") or "ClassVar" in ast.unparse(item.annotation):
                continue
            found[item.target.id] = (ast.unparse(item.annotation), default_of(item.value))
        return found

    def flat(self, name, prefix="", seen=()):
        """With the fields of classes that a field's type names, under dots."""
        found = {}
        for key, (kind, default) in self.fields(name).items():
            found[prefix + key] = {"type": kind, "default": default}
            inner = [word for word in re.findall(r"\w+", kind) if word in self.by_name and word not in seen]
            inner = [word for word in inner if self.fields(word) and not is_enum(self.by_name[word])]
            # A list's elements have no keys of the file's own: they are read with the list.
            if len(inner) == 1 and "list" not in kind and "Sequence" not in kind:
                found.update(self.flat(inner[0], prefix + key + ".", (*seen, name, inner[0])))
        return found


def is_enum(node):
    return any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases)


def default_of(value):
    if value is None:
        return None
    if isinstance(value, ast.Call):
        named = {word.arg: word.value for word in value.keywords}
        for word in ("default", "default_factory"):
            if word in named:
                return ast.unparse(named[word])
        return ast.unparse(value.args[0]) if value.args and not isinstance(value.args[0], ast.Lambda) else None
    return ast.unparse(value)


def version_of(folder):
    return next(folder.glob("*.dist-info")).name.removesuffix(".dist-info").split("-")[-1]


def launch_options(folder):
    """The options of `accelerate launch`."""
    text = (folder / "accelerate/commands/launch.py").read_text()
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            names += [a.value.lstrip("-") for a in node.args if isinstance(a, ast.Constant) and a.value.startswith("--")]
    return sorted(set(names))


def blocks_of_accelerate(folder):
    """The keys of accelerate's blocks: what `accelerate config` writes, and the options that `launch` fills from them."""
    questions = (folder / "accelerate/commands/config/cluster.py").read_text()
    launch = launch_options(folder)
    found = {}
    for block in ("deepspeed", "fsdp", "megatron_lm", "dynamo", "parallelism", "fp8", "mpirun"):
        name = f"{block}_config"
        prefix = {"parallelism": "parallelism_config_"}.get(block, f"{block}_")
        keys = set(re.findall(rf'{name}\["([a-z_0-9]+)"\]', questions))
        keys |= {prefix + key for key in re.findall(rf'{name}\[prefix \+ "([a-z_0-9]+)"\]', questions)}
        if block not in ("deepspeed", "fp8"):
            keys |= {key for key in launch if key.startswith(prefix) and key != "use_fsdp"}
        if block == "fp8":  # launch: "fp8_" + key for each key of the block.
            keys |= {key if key in ("fp8_format",) else key.removeprefix("fp8_") for key in launch if key.startswith("fp8_")}
        if block == "deepspeed":
            group = ["zero_stage", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path",
                     "offload_param_nvme_path", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag",
                     "zero3_save_16bit_model"]
            keys |= set(group) | {key for key in launch if key.startswith("deepspeed_")}
        for key in sorted(keys):
            found[f"{name}.{key}"] = {"type": None, "default": None}
    return found


def factory_v1(folder):
    """Arguments of LLaMA-Factory's v1, and what its plugins parse of the blocks among them."""
    classes = Classes(folder, ["llamafactory/v1/config/*_args.py", "llamafactory/v1/plugins/model_plugins/*.py",
                               "llamafactory/v1/plugins/trainer_plugins/distributed/interface.py"])
    names = ["ModelArguments", "DataArguments", "TrainingArguments", "SampleArguments"]
    fields = {}
    for name in names:
        fields.update(classes.flat(name))
    blocks = {"peft_config": ["LoraParams", "FreezeParams"], "quant_config": ["BnbParams"],
              "dist_config": ["FSDP2Params", "FSDPTurboParams", "DeepSpeedParams"]}
    for block, params in blocks.items():
        for name in params:
            fields.update(classes.flat(name, block + "."))
    read = {"optim_config": "trainer_plugins/optimizers/optimizer.py", "kernel_config": "model_plugins/kernels/**/*.py"}
    for block, pattern in read.items():
        fields[block + ".name"] = {"type": "str", "default": None}
        for path in sorted((folder / "llamafactory/v1/plugins").glob(pattern)):
            for key in re.findall(r'config\.get\("([a-z_0-9]+)"', path.read_text()):
                fields[f"{block}.{key}"] = {"type": None, "default": None}
    fields["init_config.name"] = {"type": "str", "default": None}
    version = re.search(r'VERSION = "([^"]+)"', (folder / "llamafactory/extras/env.py").read_text())[1]
    return {"version": version, "classes": names, "fields": fields}


def main(root):
    root = pathlib.Path(root)
    dump = {}

    def put(dialect, folder, files, names, more=None):
        classes = Classes(root / folder, files)
        fields = {}
        for name in names:
            fields.update(classes.flat(name))
        fields.update(more or {})
        dump[dialect] = {"version": version_of(root / folder), "classes": names, "fields": fields}

    put("transformers-5", "transformers5", ["transformers/training_args.py"], ["TrainingArguments"])
    put("transformers-4", "transformers4", ["transformers/training_args.py"], ["TrainingArguments"])
    trl = ["trl/trainer/*_config.py", "trl/scripts/utils.py", "trl/trainer/base_config.py"]
    common = ["ModelConfig", "ScriptArguments", "DatasetMixtureConfig"]
    for kind in ("SFT", "DPO", "KTO", "Reward"):
        put(f"trl-{kind.lower()}", "trl", trl, [f"{kind}Config", *common])
    put("llama-factory", "llamafactory", ["llamafactory/hparams/*.py"],
        ["ModelArguments", "DataArguments", "FinetuningArguments", "GeneratingArguments", "TrainingArguments"])
    dump["llama-factory-v1"] = factory_v1(root / "llamafactory_v1")  # src of its repository.
    put("axolotl", "axolotl", ["axolotl/utils/schemas/*.py"], ["AxolotlInputConfig"])
    put("torchtitan", "torchtitan", ["torchtitan/config/job_config.py"], ["JobConfig"])
    put("torchtitan-1", "torchtitan1", ["torchtitan/config_manager.py"], ["JobConfig"])
    put("accelerate", "accelerate", ["accelerate/commands/config/config_args.py"], ["ClusterConfig"],
        blocks_of_accelerate(root / "accelerate"))
    dump["accelerate-launch"] = {"version": version_of(root / "accelerate"), "classes": [],
                                 "fields": {name: {} for name in launch_options(root / "accelerate")}}
    json.dump(dump, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1])
