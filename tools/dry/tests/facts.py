"""Facts about PyTorch on a GPU, which are known of it and are nowhere in the stand-ins. Run by torch_test.py on the dry
device; on a real GPU it says whether they hold there."""
import json
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

KIB, MIB = 1 << 10, 1 << 20
FACTS = []


def fact(what, got, want):
    FACTS.append({"what": what, "got": got, "want": want})


def stat(name):
    return torch.cuda.memory_stats()[name]


def sizes(run):
    """What `run` allocates, in order, and what it returns."""
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(max_entries=100000, context=None)
    kept = run()
    seen = [e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    torch.cuda.memory._record_memory_history(enabled=None)
    return seen, kept


def of_bytes(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def segments():
    first = of_bytes(1)
    fact("a byte takes", torch.cuda.memory_allocated(), 512)
    fact("its segment", torch.cuda.memory_reserved(), 2 * MIB)
    second = of_bytes(MIB + 1)
    fact("a segment for just over 1 MiB", torch.cuda.memory_reserved() - 2 * MIB, 20 * MIB)
    third = of_bytes(21 * MIB + 1)
    fact("a segment for just over 21 MiB", torch.cuda.memory_reserved() - 22 * MIB, 22 * MIB)
    del first, second, third
    torch.cuda.empty_cache()
    fact("after empty_cache", torch.cuda.memory_reserved(), 0)


def workspaces(hopper):
    size = 32 * MIB if hopper else 4096 * 2 * KIB + 16 * 8 * KIB
    x = torch.zeros(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = torch.cuda.memory_allocated()
    y = x @ x
    fact("cuBLAS's workspace at the first product", torch.cuda.memory_allocated() - before - 8 * KIB, size)
    before = torch.cuda.memory_allocated()
    y.backward(y.detach())
    fact("and once more for autograd's thread", torch.cuda.memory_allocated() - before - 8 * KIB, size)


def attention(hopper):
    b, h, s, d = 2, 8, 1000, 64
    q, k, v = (torch.zeros(b, s, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in "qkv")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        seen, o = sizes(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    fact("flash forward: output, logsumexp", seen[:2], [b * h * s * d * 2, b * h * s * 4])
    grad = torch.zeros_like(o)
    seen, _ = sizes(lambda: o.backward(grad))
    fact("flash backward: dq dk dv, row sums, fp32 dq, both rounded to 128 rows", seen,
         [b * h * s * d * 2] * 3 + [b * h * 1024 * 4, b * h * 1024 * d * 4])
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    cudnn = hopper and torch.backends.cudnn.version() > 91500
    fact("attention by default", o.grad_fn.name(), f"ScaledDotProduct{'Cudnn' if cudnn else 'Flash'}AttentionBackward0")


def streams(complete_at_once):
    side = torch.cuda.Stream()
    block = of_bytes(64 * MIB)
    address = block.data_ptr()
    with torch.cuda.stream(side):
        block.zero_()  # An event behind no work is over at once, whatever others wait for.
    block.record_stream(side)
    del block
    again = of_bytes(64 * MIB)
    fact("a block that another stream used is at hand at once", again.data_ptr() == address, complete_at_once)


def capacity():
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    cached = of_bytes(free // 2)
    del cached
    big = of_bytes(free // 4 * 3 // MIB * MIB)
    fact("a retry after giving back what was cached", stat("num_alloc_retries"), 1)
    try:
        of_bytes(free // 2)
        raised = False
    except torch.OutOfMemoryError:
        raised = True
    fact("out of memory", [raised, stat("num_ooms")], [True, 1])
    del big


if __name__ == "__main__":
    hopper = torch.cuda.get_device_capability()[0] == 9
    segments()
    workspaces(hopper)
    attention(hopper)
    streams(sys.argv[1:] != ["pending"])
    capacity()
    print(json.dumps(FACTS))
    sys.exit(any(row["got"] != row["want"] for row in FACTS))
