"""The operators of op-graph files (docs/op-graphs.md) in PyTorch. Each is called with its tensors and its attributes."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten
OPERATORS = {}
# What "save" of a checkpoint names.
KEPT = {"mm": aten.mm.default, "linear": aten.mm.default, "addmm": aten.addmm.default, "bmm": aten.bmm.default,
        "matmul": aten.bmm.default, "exp": aten.exp.default, "gelu": aten.gelu.default}


def operator(name):
    def add(function):
        OPERATORS[name] = function
        return function
    return add


def plain(name, function, in_place=None):
    """Attributes go to the function as they are."""
    def run(*tensors, in_place=False, **attributes):
        return (places if in_place else function)(*tensors, **attributes)
    places = in_place
    OPERATORS[name] = run


for one in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu"):
    plain(one, getattr(torch, one), getattr(torch, one + "_"))
for one in ("leaky_relu", "elu", "silu", "mish", "hardswish"):
    plain(one, getattr(F, one), lambda x, f=getattr(F, one), **a: f(x, inplace=True, **a))
for one in ("logsigmoid", "gelu", "softplus", "glu", "prelu", "pad", "l1_loss", "mse_loss", "smooth_l1_loss",
            "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "nll_loss", "cross_entropy", "linear"):
    plain(one, getattr(F, one))
plain("dropout", F.dropout, lambda x, **a: F.dropout(x, inplace=True, **a))
plain("add_scalar", lambda x, value=1.0: x + value, lambda x, value=1.0: x.add_(value))
plain("sub_scalar", lambda x, value=1.0: x - value, lambda x, value=1.0: x.sub_(value))
plain("mul_scalar", lambda x, value=1.0: x * value, lambda x, value=1.0: x.mul_(value))
plain("div_scalar", lambda x, value=1.0: x / value, lambda x, value=1.0: x.div_(value))
plain("rdiv_scalar", lambda x, value=1.0: value / x)
plain("rsub_scalar", lambda x, value=1.0: value - x)
plain("pow", torch.pow, lambda x, exponent: x.pow_(exponent))
plain("clamp", torch.clamp, torch.clamp_)
for one in ("add", "sub", "mul", "div"):
    plain(one, getattr(torch, one), lambda a, b, f=getattr(torch.Tensor, one + "_"): f(a, b))
for one in ("maximum", "minimum", "eq", "ne", "ge", "where", "mm", "bmm", "matmul", "addmm"):
    plain(one, getattr(torch, one))
plain("addcmul", lambda a, b, c, value=1.0: torch.addcmul(a, b, c, value=value))
plain("masked_fill", lambda x, m, value=0.0: x.masked_fill(m, value), lambda x, m, value=0.0: x.masked_fill_(m, value))
plain("to", lambda x, dtype: x.to(getattr(torch, dtype)))

plain("view", lambda x, shape: x.view(shape))
plain("reshape", lambda x, shape: x.reshape(shape))
plain("flatten", lambda x, start_dim=0, end_dim=-1: x.flatten(start_dim, end_dim))
plain("t", lambda x: x.t())
plain("transpose", lambda x, dim0, dim1: x.transpose(dim0, dim1))
plain("permute", lambda x, dims: x.permute(dims))
plain("squeeze", lambda x, dim=None: x.squeeze() if dim is None else x.squeeze(dim))
plain("unsqueeze", lambda x, dim: x.unsqueeze(dim))
plain("expand", lambda x, shape: x.expand(shape))


def cut(x, dim=0, start=0, end=None, length=None):
    end = start + length if length is not None else x.shape[dim] if end is None else end
    return x[(slice(None),) * (dim % x.dim()) + (slice(start, end),)]


plain("slice", cut)
plain("narrow", lambda x, dim, start, length: x.narrow(dim, start, length))
plain("select", lambda x, dim=0, index=0: x.select(dim, index))
plain("split", lambda x, split_size, dim=0: x.split(split_size, dim))
plain("chunk", lambda x, chunks, dim=0: x.chunk(chunks, dim))
plain("unbind", lambda x, dim=0: x.unbind(dim))
plain("detach", lambda x: x.detach())
plain("contiguous", lambda x: x.contiguous())
plain("clone", lambda x: x.clone())
plain("cat", lambda *t, dim=0: torch.cat(t, dim))
plain("stack", lambda *t, dim=0: torch.stack(t, dim))
plain("repeat", lambda x, repeats: x.repeat(repeats))
plain("repeat_interleave", lambda x, repeats, dim: x.repeat_interleave(repeats, dim))
plain("roll", lambda x, shifts, dims: x.roll(shifts, dims))
plain("flip", lambda x, dims: x.flip(dims))
plain("tril", lambda x, diagonal=0: x.tril(diagonal))
plain("triu", lambda x, diagonal=0: x.triu(diagonal))
plain("unfold", F.unfold)
plain("conv2d", F.conv2d)
plain("grouped_mm", lambda x, w, offsets: torch._grouped_mm(x, w, offsets))

for one in ("sum", "mean", "amax", "amin", "prod"):
    plain(one, getattr(torch, one))
for one in ("std", "var"):
    plain(one, lambda x, f=getattr(torch, one), **a: f(x, **a))
plain("norm", lambda x, p=2, dim=None, keepdim=False: torch.linalg.vector_norm(x, p, dim, keepdim))
plain("logsumexp", lambda x, dim=None, keepdim=False: x.logsumexp(list(range(x.dim())) if dim is None else dim, keepdim))
plain("max", lambda *t, **a: torch.max(*t, **a))
plain("min", lambda *t, **a: torch.min(*t, **a))
plain("cumsum", torch.cumsum)
plain("cumprod", torch.cumprod)
plain("embedding", lambda a, b: F.embedding(b, a) if a.is_floating_point() else F.embedding(a, b))
plain("index", lambda x, i: x[i])
plain("index_select", lambda x, i, dim=0: x.index_select(dim, i))
plain("gather", lambda x, i, dim=0: x.gather(dim, i))
plain("scatter", lambda x, i, s, dim=0: x.scatter(dim, i, s))
plain("scatter_add", lambda x, i, s, dim=0: x.scatter_add(dim, i, s))
plain("topk", lambda x, k, dim=-1: x.topk(k, dim))
plain("sort", lambda x, dim=-1, descending=False: x.sort(dim, descending))


def dtype_of(text):
    return None if text is None else getattr(torch, text)


plain("softmax", lambda x, dim=-1, dtype=None: F.softmax(x, dim, dtype=dtype_of(dtype)))
plain("log_softmax", lambda x, dim=-1, dtype=None: F.log_softmax(x, dim, dtype=dtype_of(dtype)))
plain("layer_norm", lambda x, w=None, b=None, eps=1e-5: F.layer_norm(x, x.shape[-1:], w, b, eps))
plain("group_norm", lambda x, w=None, b=None, num_groups=1: F.group_norm(x, num_groups, w, b))
plain("batch_norm", lambda x, w, b, mean, var, momentum=0.1, eps=1e-5: F.batch_norm(x, mean, var, w, b, True, momentum,
                                                                                   eps))
plain("max_pool2d", F.max_pool2d)
plain("interpolate", F.interpolate)


@operator("rms_norm")
def rms_norm(x, weight=None, in_place=False, implementation="fused", eps=1e-6):
    """transformers' LlamaRMSNorm, or PyTorch's operator."""
    if implementation == "fused":
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    dtype = x.dtype
    states = x.to(torch.float32)
    variance = states.pow(2).mean(-1, keepdim=True)
    states = states * torch.rsqrt(variance + eps)
    return weight * states.to(dtype)


def eager(q, k, v):
    """transformers' eager attention."""
    weights = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v)


@operator("scaled_dot_product_attention")
def attention(q, k, v, in_place=False, kernel="flash", is_causal=False, enable_gqa=False, dropout_p=0.0):
    if kernel == "eager":
        return eager(q, k, v)
    if kernel == "math":
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=enable_gqa,
                                                  dropout_p=dropout_p)
    needs = q.requires_grad or k.requires_grad or v.requires_grad
    if kernel == "flash":
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
    if kernel == "mem-efficient":
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, needs, dropout_p, is_causal)[0]
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, needs, dropout_p, is_causal)[0]
