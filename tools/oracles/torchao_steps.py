"""Outside oracle for torchao's AdamW of few bits: its compiled step on the dry device, one parameter at a time.

    tools/dry/run --quiet --world 1 -- python tools/oracles/torchao_steps.py OUT.json

Bytes as PyTorch counts requests. `first`: the first step of a shape, by how much it rises above what was there before and what
it leaves; `second`: what a later one allocates and frees, in order, from 64 bytes on. Each case is a process of its own with an
empty cache of the compiler: what has been tuned once is not tuned again. Of small ones the first peak has copies that a
step of a model makes where nothing else is higher. tests/torchao_witness_test.cpp reads the file.
"""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

CLASSES = {"ao_adamw_8bit": "AdamW8bit", "ao_adamw_4bit": "AdamW4bit", "ao_adamw_fp8": "AdamWFp8"}
CASES = [(name, dtype, shape) for name in CLASSES for dtype, shape in (
    ("bf16", [16384, 8192]), ("fp32", [16384, 8192]), ("bf16", [1024, 512]), ("bf16", [2048]), ("bf16", [128, 50]))
         if shape != [128, 50] or name == "ao_adamw_8bit"]  # Of 4 bits and fp8 such small ones are compiled to other kernels.


def witness(name, dtype, shape):
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import torchao.optim

    parameter = torch.nn.Parameter(torch.zeros(shape, device="cuda", dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]))
    optimizer = getattr(torchao.optim, CLASSES[name])([parameter], lr=1e-4, weight_decay=0.01)
    torch.cuda.memory._record_memory_history(max_entries=1000000)
    steps, seen = [], 0
    for _ in range(2):
        parameter.grad = torch.zeros_like(parameter)
        seen = sum(map(len, torch.cuda.memory._snapshot()["device_traces"]))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        optimizer.step()
        after = torch.cuda.memory_stats()
        events = [e for trace in torch.cuda.memory._snapshot()["device_traces"] for e in trace][seen:]
        signs = {"alloc": 1, "free_requested": -1}
        log = [signs[e["action"]] * e["size"] for e in events if e["action"] in signs and e["size"] >= 64]
        steps.append({"peak": after["requested_bytes.all.peak"] - before,
                      "end": after["requested_bytes.all.current"] - before, "log": log})
    return {"optimizer": name, "dtype": dtype, "shape": shape, "first": {k: steps[0][k] for k in ("peak", "end")},
            "second": steps[1]["log"]}


def main():
    if sys.argv[1] == "--one":
        return print("RESULT" + json.dumps(witness(*json.loads(sys.argv[2]))))
    found = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as cache:
            told = subprocess.run([sys.executable, __file__, "--one", json.dumps(case)], capture_output=True, text=True,
                                  env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache})
        lines = [line for line in told.stdout.splitlines() if line.startswith("RESULT")]
        if not lines:
            sys.exit(f"{case}: {told.stderr[-400:]}")
        found.append(json.loads(lines[0].removeprefix("RESULT")))
        print(case, found[-1]["first"], file=sys.stderr, flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "torchao")}
    lines = ",\n".join(json.dumps(one) for one in found)
    pathlib.Path(sys.argv[1]).write_text(f'{{"versions": {json.dumps(versions)}, "l2": 52428800,\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
