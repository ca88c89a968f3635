"""Small modules of every kind that people train, as tools/export_graph.py takes them."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """Of a ResNet."""

    def __init__(self, width, wider, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, wider, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)
        self.relu = nn.ReLU(inplace=True)
        self.down = None if stride == 1 else nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False),
                                                           nn.BatchNorm2d(wider))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
                                  nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1))
        self.head = nn.Linear(32, 10)

    def forward(self, x, labels):
        x = self.blocks(self.stem(x))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = self.pair(3, 8), self.pair(8, 16), self.pair(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.join2, self.join1 = self.pair(32, 16), self.pair(16, 8)
        self.out = nn.Conv2d(8, 3, 1)

    @staticmethod
    def pair(width, wider):
        return nn.Sequential(nn.Conv2d(width, wider, 3, padding=1), nn.GroupNorm(4, wider), nn.SiLU())

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.up2(self.middle(F.avg_pool2d(second, 2)))
        x = self.up1(self.join2(torch.cat([x, second], 1)))
        return self.out(self.join1(torch.cat([x, first], 1)))


class Mamba(nn.Module):
    """A selective state space, its scan written as a loop."""

    def __init__(self, width=32, inner=64, state=8):
        super().__init__()
        self.project = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, 4 + 2 * state, bias=False)
        self.step = nn.Linear(4, inner)
        self.decay = nn.Parameter(torch.empty(inner, state))
        self.skip = nn.Parameter(torch.empty(inner))
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        x, gate = self.project(x).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2))
        step, b, c = self.select(x).split([4, 8, 8], -1)
        step = F.softplus(self.step(step))
        a = torch.exp(step.unsqueeze(-1) * -torch.exp(self.decay.float()))
        b = step.unsqueeze(-1) * b.unsqueeze(2) * x.unsqueeze(-1)
        state, rows = torch.zeros_like(a[:, 0]), []
        for t in range(x.shape[1]):
            state = a[:, t] * state + b[:, t]
            rows.append((state * c[:, t].unsqueeze(1)).sum(-1))
        return self.out((torch.stack(rows, 1) + x * self.skip) * F.silu(gate))


class GraphNetwork(nn.Module):
    """Messages along edges, summed at nodes."""

    def __init__(self, width=16, layers=2):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, nodes, edges):
        h = self.embed(nodes)
        for message, update in zip(self.messages, self.updates):
            sent = F.relu(message(torch.cat([h[edges[0]], h[edges[1]]], -1)))
            summed = torch.zeros_like(h).index_add(0, edges[1], sent)
            h = torch.tanh(update(torch.cat([summed, h], -1)))
        return self.head(h).mean()


class DiffusionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.modulate(c).unsqueeze(1).chunk(6, -1)
        y = self.norm1(x) * (1 + s1) + b1
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v
        x = x + g1 * self.proj(y.transpose(1, 2).flatten(2))
        return x + g2 * self.mlp(self.norm2(x) * (1 + s2) + b2)


class DiffusionTransformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(DiffusionBlock(width, 4) for _ in range(2))
        self.out = nn.Linear(width, 16)

    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(torch.arange(8) * -1.0)
        c = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        h = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            h = block(h, c)
        return F.mse_loss(self.out(h), torch.zeros_like(h[..., :16]))


class NanoBlock(nn.Module):
    """nanoGPT's, without its flash kernel."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(c, 2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = self.dropout(F.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), -1))
        x = x + self.dropout(self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, c)))
        return x + self.dropout(self.c_out(F.gelu(self.c_fc(self.ln_2(x)))))


class NanoGPT(nn.Module):
    def __init__(self, vocab=96, width=32, heads=4, layers=3, length=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(NanoBlock(width, heads, length) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class TitanBlock(nn.Module):
    """torchtitan's Llama: fused norms, rotary pairs as real numbers, grouped heads that are repeated."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.w1, self.w3 = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.w2 = nn.Linear(3 * width, width, bias=False)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width), nn.RMSNorm(width)

    @staticmethod
    def turned(x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).type_as(x)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.attention_norm(x)
        q, k, v = (w(y).view(b, t, -1, self.size) for w in (self.wq, self.wk, self.wv))
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        k, v = (z.repeat_interleave(self.heads // self.groups, 2) for z in (k, v))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = torch.softmax(q @ k.transpose(-2, -1) * self.size ** -0.5, -1) @ v
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class TitanLlama(nn.Module):
    def __init__(self, vocab=96, width=32, layers=2, length=16):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, width)
        self.layers = nn.ModuleDict({str(i): TitanBlock(width, 4, 2) for i in range(layers)})
        self.norm, self.output = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.register_buffer("cos", torch.ones(length, 1, 4))
        self.register_buffer("sin", torch.ones(length, 1, 4))

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.cos, self.sin)
        return self.output(self.norm(h))


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        gate = torch.sigmoid(x * scale)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, gradient):
        x, gate = ctx.saved_tensors
        inner = x * (1 - gate)
        return gradient * gate * (1 + inner), None


class HandWritten(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 48), nn.Linear(48, 16)

    def forward(self, x):
        return self.second(Swish.apply(self.first(x), 1.5)).square().mean()


class Attending(nn.Module):
    """PyTorch's own attention reads the weight of a module inside of it, which nobody calls."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(32), "attention": nn.MultiheadAttention(
            32, 4, batch_first=True), "feed": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))}) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            normed = block["norm"](x)
            x = x + block["attention"](normed, normed, normed, need_weights=False)[0]
            x = x + block["feed"](x)
        return x


def numbers(*shape, most=8):
    return torch.randint(0, most, shape)


def timm_model():
    """A model of timm 1.0.22 as it comes: deep stem, squeezed channels, pooled shortcuts."""
    import timm
    return (timm.create_model("seresnext26d_32x4d", num_classes=10, layers=[1, 1, 1, 1]), (torch.empty(2, 3, 32, 32),),
            lambda out: F.cross_entropy(out, numbers(2)))


CASES = {
    "resnet": lambda: (ResNet(), (torch.empty(2, 3, 32, 32), numbers(2))),
    "unet": lambda: (UNet(), (torch.empty(2, 3, 16, 16),), lambda out: out.square().mean()),
    "mamba": lambda: (Mamba(), (torch.empty(2, 6, 32),), lambda out: out.square().mean()),
    "graph-network": lambda: (GraphNetwork(), (torch.empty(12, 4), numbers(2, 30))),
    "diffusion-transformer": lambda: (DiffusionTransformer(), (torch.empty(2, 4, 8, 8), numbers(2))),
    "nanogpt": lambda: (NanoGPT(), (numbers(2, 16), numbers(2, 16))),
    "torchtitan-llama": lambda: (TitanLlama(), (numbers(2, 16),),
                                 lambda out: F.cross_entropy(out.flatten(0, 1).float(), numbers(2, 16).flatten())),
    "attention": lambda: (Attending(), (torch.empty(2, 6, 32),), lambda out: out.square().mean()),
    "hand-written-function": lambda: (HandWritten(), (torch.empty(4, 16),)),
    "timm": timm_model,
}
