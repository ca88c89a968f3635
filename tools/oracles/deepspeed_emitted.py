"""Outside oracle for the DeepSpeed JSON that `dsplan emit --format deepspeed` writes: the installed DeepSpeed loads each
file, and its resolved configuration must hold every key as the file says it.

    deepspeed_emitted.py DSPLAN OUT_FILE

The cases stand here; OUT_FILE keeps for each of them the words, the user's JSON if one is given, and the text that was
emitted. tests/emitted_test.cpp emits them again and compares byte by byte, without DeepSpeed.
"""

import json
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

import deepspeed
from deepspeed.runtime.config import DeepSpeedConfig

BF16 = {"bf16": {"enabled": True}}
NVME = {"device": "nvme", "nvme_path": "/nvme", "pin_memory": True}


def stage(number, top=BF16, **zero):
    return {**top, "zero_optimization": {"stage": number, **zero}}


def by(kind, number=2, **params):
    return stage(number, {**BF16, "optimizer": {"type": kind, "params": params}, "zero_allow_untested_optimizer": True})


# Words behind `emit`, and the DeepSpeed JSON that they name as ds.json.
CASES = [
    ("tiny-llama --zero-stage 0 --gpus 2", None),
    ("tiny-llama --zero-stage 1 --gpus 4 --micro-batch 2 --grad-accum 3", None),
    ("tiny-llama --zero-stage 2 --gpus 16 --gpus-per-node 8 --dtype fp16", None),
    ("tiny-llama --zero-stage 3 --gpus 8", None),
    ("tiny-llama --zero-stage 3 --gpus 8 --dtype fp32", None),
    ("tiny-llama --zero-stage 2 --gpus 4 --optimizer adafactor", None),
    ("tiny-llama --zero-stage 2 --gpus 4 --optimizer adamw:foreach", None),
    ("tiny-llama --zero-stage 1 --gpus 4 --tp 2", None),
    ("tiny-llama --gpus 8 --deepspeed zero1", None),
    ("tiny-llama --gpus 8 --deepspeed zero2", None),
    ("tiny-llama --gpus 8 --deepspeed zero3", None),
    ("tiny-llama --gpus 8 --deepspeed zero3-offload", None),
    ("tiny-llama --gpus 4", {**stage(1), "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}),
    ("tiny-llama --gpus 4", stage(2, {"bf16": {"enabled": True, "check_grad_overflow": False}, "gradient_clipping": 0},
                                  reduce_bucket_size=20000, contiguous_gradients=False, overlap_comm=True,
                                  reduce_scatter=False, use_multi_rank_bucket_allreduce=False,
                                  round_robin_gradients=True, allgather_bucket_size=1000)),
    ("tiny-llama --gpus 4", stage(2, offload_optimizer={"device": "cpu", "pin_memory": False})),
    ("tiny-llama --gpus 4", {**stage(3, offload_param={**NVME, "buffer_count": 6, "buffer_size": 200000, "max_in_cpu": 0},
                                     offload_optimizer={**NVME, "buffer_count": 12, "pipeline_read": True,
                                                        "pipeline_write": True}),
                             "aio": {"block_size": 4096, "intra_op_parallelism": 2}}),
    ("tiny-llama --gpus 8", stage(3, stage3_max_live_parameters=1000, stage3_max_reuse_distance=2000,
                                  stage3_prefetch_bucket_size=3000, stage3_param_persistence_threshold=40,
                                  stage3_model_persistence_threshold=500, sub_group_size=6000,
                                  stage3_gather_16bit_weights_on_model_save=True, zero_hpz_partition_size=4,
                                  zero_quantized_weights=True, stage3_module_granularity_threshold=7,
                                  leaf_module={"classes": ["LlamaMLP"], "names": ["mlp"], "name_suffixes": ["x"]})),
    ("tiny-llama --gpus 8", stage(3, stage3_use_all_reduce_for_fetch_params=True)),
    ("tiny-llama --gpus 8", stage(3, stage3_allgather_sequential=True)),
    ("tiny-llama --gpus 4", by("Lion", lr=1e-4, betas=[0.9, 0.99], weight_decay=0.1)),
    ("tiny-llama --gpus 4", by("Adam", adam_w_mode=False, lr=1e-4, eps=1e-6)),
    ("tiny-llama --gpus 4", by("AdamW", torch_adam=True)),
    ("tiny-llama --gpus 4", by("SGD", momentum=0.9, lr=0.1)),
    ("tiny-llama --gpus 4", by("Muon", lr=0.02)),
    ("tiny-llama --gpus 4 --checkpoint full --checkpoint-impl deepspeed",
     {**stage(3), "activation_checkpointing": {"partition_activations": True, "cpu_checkpointing": True,
                                               "contiguous_memory_optimization": True, "number_checkpoints": 2}}),
    ("tiny-llama --gpus 2", {**stage(2, {"fp16": {"enabled": True, "loss_scale_window": 500, "initial_scale_power": 8}}),
                             "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
                             "steps_per_print": 7, "wall_clock_breakdown": True}),
]


class Ranks:
    """What DeepSpeed asks of a model-parallel unit: how many ranks share the data."""

    def __init__(self, words):
        options = dict(zip(words[1::2], words[2::2]))
        self.size = int(options["--gpus"]) // int(options.get("--tp", 1))

    def get_data_parallel_world_size(self):
        return self.size


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def plain(value):
    """A value of a resolved configuration as JSON has it."""
    if isinstance(value, torch.dtype):
        return next(name for name, dtype in DTYPES.items() if dtype == value)
    if hasattr(value, "value"):
        value = value.value
    return str(value) if isinstance(value, os.PathLike) else value


def dumped(model):
    """Fields of a pydantic model by the names that a file uses."""
    fields = type(model).model_fields
    return {field.alias or name: getattr(model, name) for name, field in fields.items()}


def resolved(config, path):
    """Where DeepSpeed keeps what a file says under `path`."""
    top, *below = path
    if top == "zero_optimization":
        block = dumped(config.zero_config)
        for key in below[:-1]:
            block = dumped(block[key])
        return block[below[-1]]
    if top in ("bf16", "fp16"):
        return dumped(config.bfloat16_config if top == "bf16" else config.float16_config)[below[0]]
    if top == "data_types":
        return plain(DeepSpeedType(config.grad_accum_dtype))
    if top == "optimizer":
        return config.optimizer_name if below == ["type"] else config.optimizer_params[below[1]]
    if top == "scheduler":
        return config.scheduler_name if below == ["type"] else config.scheduler_params[below[1]]
    if top == "aio":
        return config.aio_config[below[0]]
    if top == "activation_checkpointing":
        return getattr(config.activation_checkpointing_config, below[0])
    names = {"wall_clock_breakdown": "wall_clock_breakdown", "steps_per_print": "steps_per_print"}
    return getattr(config, names.get(top, top))


def DeepSpeedType(name):
    from deepspeed.runtime.config import DtypeEnum
    return DtypeEnum(name).value if isinstance(name, str) else name


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield list(path), value


def check(text, words):
    emitted = json.loads(text)
    config = DeepSpeedConfig(json.loads(text), mpu=Ranks(words))
    count = 0
    for path, value in leaves(emitted):
        seen = plain(resolved(config, path))
        if path == ["optimizer", "type"]:  # DeepSpeed lowers its own names.
            seen, value = seen.lower(), value.lower()
        if seen != value:
            raise SystemExit(f"{' '.join(words)}: {'.'.join(path)} is {value!r} in the file and {seen!r} in DeepSpeed")
        count += 1
    return count


def main(dsplan, out):
    with tempfile.TemporaryDirectory() as folder:
        deepspeed.init_distributed(dist_backend="gloo", init_method=f"file://{folder}/store", rank=0, world_size=1,
                                   auto_mpi_discovery=False, verbose=False)
        cases = []
        for words, own in CASES:
            line = words.split()
            if own is not None:
                with open(f"{folder}/ds.json", "w") as file:
                    json.dump(own, file)
                line += ["--deepspeed", "ds.json"]
            ran = subprocess.run([dsplan, "emit", *line, "--format", "deepspeed"], cwd=folder, text=True,
                                 capture_output=True)
            if ran.returncode != 0:
                raise SystemExit(f"{words}: {ran.stderr}")
            cases.append({"words": words, "deepspeed": own, "keys": check(ran.stdout, line), "emitted": ran.stdout})
            print(f"{cases[-1]['keys']:3} keys equal: {words}", file=sys.stderr)
    head = {"source": "tools/oracles/deepspeed_emitted.py",
            "versions": {"deepspeed": deepspeed.__version__.split("+")[0], "torch": torch.__version__.split("+")[0]}}
    with open(out, "w") as file:
        json.dump({**head, "cases": cases}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), sys.argv[2])
