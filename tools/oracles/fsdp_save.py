"""Outside oracle for whole state dicts under fully_shard: get_model_state_dict of real PyTorch, on the dry device, over
the small configs below, one rank of many. Bytes asked for beyond what was there: the peak, and what stays.

    python3 tools/oracles/fsdp_save.py tests/witnesses/fsdp_save.json

It starts itself once for each case, under tools/dry/run."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 690, "num_hidden_layers": 2, "vocab_size": 1001,
         "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1001, "n_positions": 128}
CASES = [{"config": config, "dtype": dtype, "world": world, "rank": rank, "replicate": replicate}
         for config, dtype in ((LLAMA, "fp32"), (GPT2, "bf16"))
         for world, rank, replicate in ((2, 0, 1), (2, 1, 1), (3, 2, 1), (8, 0, 1), (8, 7, 2), (24, 23, 1))]


def measure(case):
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl")
    shape = (case["replicate"], case["world"] // case["replicate"]) if case["replicate"] > 1 else (case["world"],)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    with torch.device("meta"):
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[case["dtype"]]
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**case["config"]), dtype=dtype)
    layers = model.transformer.h if case["config"] is GPT2 or case["config"]["model_type"] == "gpt2" else model.model.layers
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cuda")
    found = {}
    for word, on_host in (("full", True), ("full-device", False)):
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        kept = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=on_host))
        now = torch.cuda.memory_stats()
        found[word] = [now[f"requested_bytes.all.{what}"] - before for what in ("peak", "current")]
        del kept
    return found


def main():
    if sys.argv[1] == "--case":
        case = json.loads(sys.argv[2])
        with open(sys.argv[3], "w") as file:
            json.dump(measure(case), file)
        os._exit(0)
    import torch

    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            out = folder + "/out.json"
            run = [str(ROOT / "tools/dry/run"), "--world", str(case["world"]), "--rank", str(case["rank"]), "--receipt",
                   folder + "/r.json", "--", sys.executable, __file__, "--case", json.dumps(case), out]
            subprocess.run(run, capture_output=True)
            rows.append({**case, **json.load(open(out))})
    with open(sys.argv[1], "w") as file:
        json.dump({"torch": torch.__version__.split("+")[0], "cases": rows}, file, indent=1)
        file.write("\n")


main()
