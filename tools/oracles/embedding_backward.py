"""Outside oracle for what an embedding's backward makes: real PyTorch, its CUDA build, on the dry device.

    tools/dry/run --world 1 --device h100-sxm -- python tools/oracles/embedding_backward.py [OUT.csv]

Appends a row for each number of indices, rows and width: what is allocated in backward, in order.
"""

import os
import sys

import torch

CASES = [(3072, 1000, 64), (3073, 151936, 32), (3999, 3999, 32), (4100, 32000, 50), (8192, 32000, 100), (16385, 5000, 2),
         (40000, 100000, 8), (300000, 100000, 2), (300000, 40000, 3)]


def main():
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    rows = []
    for indices, table, width in CASES:
        weight = torch.zeros(table, width, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        found = torch.nn.functional.embedding(torch.zeros(indices, dtype=torch.int64, device="cuda"), weight)
        gradient = torch.empty_like(found)
        begins = len(torch.cuda.memory._snapshot()["device_traces"][0])
        found.backward(gradient)
        events = torch.cuda.memory._snapshot()["device_traces"][0][begins:]
        made = [str(e["size"]) for e in events if e["action"] == "alloc"]
        major, minor = torch.cuda.get_device_capability()
        rows.append(f"{major}{minor},{indices},{table},{width},{' '.join(made)}\n")
        del weight, found, gradient
    where = sys.argv[1] if len(sys.argv) > 1 else None
    if where and not os.path.exists(where):
        with open(where, "w", encoding="utf-8") as file:
            file.write(f"# tools/oracles/embedding_backward.py, torch {torch.__version__}\n")
            file.write("capability,indices,rows,width,allocated\n")
    with open(where, "a", encoding="utf-8") if where else sys.stdout as out:
        out.writelines(rows)


main()
os._exit(0)  # No destructors.
