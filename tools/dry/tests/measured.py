"""Peaks of single operators that Liger-Kernel's authors published for a real A100 (the eager rows of their benchmark table),
measured again: ten times forward and backward, the median of max_memory_allocated in MiB. Where their run held Liger's
twin of a module as well, `twin` does."""
import json
import statistics
import sys

import torch
from torch import nn

MIB = 1 << 20


def peak(run):
    seen = []
    for _ in range(10):
        torch.cuda.reset_peak_memory_stats()
        run()
        seen.append(torch.cuda.max_memory_allocated() / MIB)
    return torch.tensor(statistics.median(seen), dtype=torch.float32).item()


def cross_entropy(vocabulary):
    x = torch.randn(8 * 2048, vocabulary, requires_grad=True, device="cuda")
    target = torch.randint(vocabulary, (8 * 2048,), device="cuda")
    return peak(lambda: nn.CrossEntropyLoss()(x, target).backward())


def head_and_loss(tokens):
    x = torch.randn(tokens, 4096, requires_grad=True, dtype=torch.bfloat16, device="cuda")
    target = torch.randint(128256, (tokens,), device="cuda")
    head, twin = (nn.Linear(4096, 128256, bias=False, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return peak(lambda: nn.CrossEntropyLoss()(head(x), target).backward())


def mlp(batch, seq, act):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP
    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, hidden_act=act)
    x = torch.randn(batch, seq, 4096, requires_grad=True, dtype=torch.bfloat16, device="cuda")
    layer = LlamaMLP(config).to("cuda").to(torch.bfloat16)

    def run():
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)
    return peak(run)


def rms_norm(hidden):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    layer, twin = (LlamaRMSNorm(hidden).to("cuda") for _ in range(2))
    x = torch.randn(2048, hidden, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    return peak(lambda: layer(x).backward(dy, retain_graph=True))


# The norms first: products leave cuBLAS's workspaces behind.
CASES = [(rms_norm, (h,), mib) for h, mib in ((1024, 80.01953125), (2048, 160.03125), (4096, 320.0546875))]
CASES += [(cross_entropy, (v,), mib) for v, mib in (
    (4096, 1280.1259765625), (8192, 2560.1259765625), (16384, 5120.1259765625), (32768, 10240.1259765625),
    (65536, 20480.125), (131072, 40960.125))]
CASES += [(head_and_loss, (n,), mib) for n, mib in (
    (4096, 6092.2822265625), (8192, 9162.3134765625), (16384, 15302.3759765625), (32768, 27582.5))]
CASES += [(mlp, (4, s, "silu"), mib) for s, mib in ((1024, 1294.25), (2048, 1992.25), (4096, 3452.25), (8192, 6372.25))]
CASES += [(mlp, (8, s, "gelu_pytorch_tanh"), mib) for s, mib in ((1024, 1992.25), (2048, 3452.25), (4096, 6372.25))]

if __name__ == "__main__":
    rows = [{"case": f.__name__ + str(given), "a100": mib, "here": f(*given)} for f, given, mib in CASES]
    print(json.dumps(rows))
    sys.exit(any(row["a100"] != row["here"] for row in rows))
