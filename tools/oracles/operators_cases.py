"""The cases of operators.py: for each operator how to call it, shapes of its inputs (two sets), which inputs are in the
dtype under test ("f") and which may need a gradient."""
import torch
import torch.nn.functional as F

# What fake tensors do otherwise than tensors on a GPU: the backward of these operators asks areAnyTensorSubclassLike and
# then avoids writing in place (aten/src/ATen/TensorSubclassLikeUtils.h), or avoids asking the device for a number. Their
# backward is recorded and not compared. For max and min this holds over a dimension only.
SCATTERS = "fake: zeros.scatter(...) makes a second tensor; else zeros.scatter_(...)"
ARTEFACTS = {
    "topk": "value_selecting_reduction_backward: " + SCATTERS,
    "sort": "value_selecting_reduction_backward: " + SCATTERS,
    "max": "value_selecting_reduction_backward: " + SCATTERS,
    "min": "value_selecting_reduction_backward: " + SCATTERS,
    "gather": "gather_backward: fake: scatter_add out of place; else in place",
    "index_select": "index_select_backward: fake: index_add out of place; else in place",
    "index": "index_backward: fake: index_put out of place; else _index_put_impl_ in place",
    "prod": "prod_backward: fake: two exclusive cumulative products; else zeros are counted on the host",
    "cumprod": "cumprod_backward: fake: the quadratic form; else zeros are counted on the host",
    "binary_cross_entropy_with_logits": "its backward: fake: out of place; else in place on sigmoid(input)",
}
CASES = []
A, B = (6, 10), (3, 7, 65)


def case(op, call, shapes, kinds=None, grad=None, in_place=None, dtypes=None, **attributes):
    count = len(shapes[0])
    kinds = kinds or ["f"] * count
    entry = {"op": op, "call": call, "shapes": shapes, "kinds": kinds,
             "grad": grad if grad is not None else [kind in ("f", "fp32") for kind in kinds]}
    if in_place:
        entry["in_place"] = in_place
    if dtypes:
        entry["dtypes"] = dtypes
    if attributes:
        entry["attributes"] = attributes
    CASES.append(entry)


def unary(op, call, in_place=None, shapes=((A,), (B,)), **attributes):
    case(op, call, shapes, in_place=in_place, **attributes)


def binary(op, call, in_place=None, broadcast=True):
    case(op, call, ((A, A), (B, B)), in_place=in_place)
    if broadcast:
        case(op, call, ((A, (10,)), (B, (7, 1))), in_place=in_place)
        case(op, call, (((10,), A), ((7, 1), B)))
        case(op, call, (((4, 1), (1, 5)), ((9, 1), (3, 1, 8))))


# Views and joins.
unary("view", lambda x: x.view(-1))
unary("view", lambda x: x.transpose(0, 1))
unary("detach", lambda x: x.detach())
case("expand", lambda x: x.expand(4, 6, 10), ((A,), ((6, 1),)))
unary("slice", lambda x: x[1:3], shapes=((A,), ((5, 7, 65),)))
unary("select", lambda x: x[1])
unary("split", lambda x: x.split(3), shapes=((A,), ((9, 5),)))
unary("split", lambda x: x.chunk(2, dim=-1), shapes=((A,), ((3, 4, 8),)))
unary("unbind", lambda x: x.unbind(0), shapes=((A,), ((3, 4, 8),)))
case("unfold", lambda x: F.unfold(x, 3, padding=1), (((2, 3, 8, 8),), ((1, 2, 5, 7),)))
unary("contiguous", lambda x: x.clone())
unary("contiguous", lambda x: x.t().contiguous(), shapes=((A,), ((5, 9),)))
case("cat", lambda *t: torch.cat(t), ((A, (2, 10)), ((3, 4), (7, 4))))
case("cat", lambda *t: torch.cat(t, dim=-1), ((A, (6, 2), (6, 4)), ((3, 4), (3, 1), (3, 2))))
case("stack", lambda *t: torch.stack(t), ((A, A), (B, B)))
case("stack", lambda *t: torch.stack(t, dim=1), ((A, A, A),))
unary("pad", lambda x: F.pad(x, (1, 2)))
unary("roll", lambda x: x.roll(1, 0))
unary("flip", lambda x: x.flip(0))
unary("repeat", lambda x: x.repeat(*([2] * x.dim())))
unary("repeat_interleave", lambda x: x.repeat_interleave(3, dim=0))
unary("tril", lambda x: x.tril(), lambda x: x.tril_())
unary("triu", lambda x: x.triu(), lambda x: x.triu_())
for to in ("fp32", "bf16", "fp16"):
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[to]
    case("to", lambda x, dtype=dtype: x.to(dtype), ((A,), (B,)), dtypes=[d for d in ("fp32", "bf16", "fp16") if d != to])

# Elementwise, of two tensors.
binary("add", torch.add, lambda a, b: a.add_(b))
binary("sub", torch.sub, lambda a, b: a.sub_(b))
binary("mul", torch.mul, lambda a, b: a.mul_(b))
binary("div", torch.div, lambda a, b: a.div_(b))
binary("maximum", torch.maximum)
binary("minimum", torch.minimum)
case("add", torch.add, ((A, A), (B, B)), kinds=["f", "fp32"], dtypes=["bf16", "fp16"])
case("mul", torch.mul, ((A, A), (B, B)), kinds=["f", "fp32"], dtypes=["bf16", "fp16"])
case("mul", torch.mul, ((A, A), (B, B)), kinds=["fp32", "f"], dtypes=["bf16", "fp16"])
case("where", torch.where, ((A, A, A), ((7, 1), B, B), (B, B, (7, 1)), ((6, 10), (6, 1), (10,))), kinds=["bool", "f", "f"])
case("masked_fill", lambda x, m: x.masked_fill(m, 1.0), ((A, A), (B, (7, 1))), kinds=["f", "bool"])
case("masked_fill_", None, ((A, A), (B, (7, 1))), kinds=["f", "bool"],
     in_place=lambda x, m: x.masked_fill_(m, 0.0))
def put(whole, part):
    whole[..., 2:2 + part.shape[-1]] = part
    return whole


def add_into(whole, other):
    whole.view_as(whole).add_(other)
    return whole


case("add_into", None, (((4, 6, 10), (4, 6, 10)), ((4, 3, 7), (3, 7))), in_place=add_into)
case("copy_into", None, (((6, 10), (6, 4)), ((3, 7, 65), (3, 7, 1))), in_place=put)
case("prelu", F.prelu, (((4, 6), (6,)), ((4, 6, 5), (6,)), ((4, 6), (1,))))
case("addcmul", lambda a, b, c: torch.addcmul(a, b, c, value=0.5), ((A, A, A), (B, B, (65,))),
     in_place=lambda a, b, c: a.addcmul_(b, c, value=0.5))

# Complex numbers, as pairs in a last dimension.
PAIRS = (((6, 10, 2), (10, 2)), ((3, 7, 5, 2), (1, 7, 5, 2)))
case("polar", lambda a: torch.view_as_real(torch.polar(torch.ones_like(a), a)), ((A,), (B,)), grad=[False], dtypes=["fp32"])
case("complex_mul", lambda a, b: torch.view_as_real(torch.view_as_complex(a) * torch.view_as_complex(b)), PAIRS,
     grad=[True, False], dtypes=["fp32"])

# Elementwise, of a tensor and a number.
unary("add_scalar", lambda x: x + 1.5, lambda x: x.add_(1.5), number=1.5)
unary("sub_scalar", lambda x: x - 1.5, lambda x: x.sub_(1.5), number=1.5)
unary("mul_scalar", lambda x: x * 1.5, lambda x: x.mul_(1.5), number=1.5)
unary("div_scalar", lambda x: x / 1.5, lambda x: x.div_(1.5), number=1.5)
for exponent in (2, 3, 0.5, 1, -1):
    unary("pow", lambda x, e=exponent: x.pow(e), lambda x, e=exponent: x.pow_(e), number=float(exponent))
unary("clamp", lambda x: x.clamp(-1, 1), lambda x: x.clamp_(-1, 1), bounds=3)
unary("clamp", lambda x: x.clamp(min=-1), lambda x: x.clamp_(min=-1), bounds=1)
unary("clamp", lambda x: x.clamp(max=1), lambda x: x.clamp_(max=1), bounds=2)

# Elementwise, of one tensor.
for name in ("neg", "abs", "exp", "expm1", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu"):
    unary(name, getattr(torch, name), getattr(torch, name + "_"))
unary("logsigmoid", F.logsigmoid)
unary("leaky_relu", F.leaky_relu, lambda x: F.leaky_relu(x, inplace=True))
unary("elu", F.elu, lambda x: F.elu(x, inplace=True))
unary("gelu", F.gelu)
unary("gelu", lambda x: F.gelu(x, approximate="tanh"))
unary("silu", F.silu, lambda x: F.silu(x, inplace=True))
unary("softplus", F.softplus)
unary("mish", F.mish, lambda x: F.mish(x, inplace=True))
unary("hardswish", F.hardswish, lambda x: F.hardswish(x, inplace=True))
unary("glu", F.glu, shapes=((A,), ((3, 4, 8),)))

# Reductions and scans.
unary("sum", lambda x: x.sum())
unary("sum", lambda x: x.sum(0))
unary("sum", lambda x: x.sum(-1, keepdim=True))
unary("mean", lambda x: x.mean())
unary("mean", lambda x: x.mean(0))
unary("mean", lambda x: x.mean(-1, keepdim=True))
for name in ("amax", "amin"):
    unary(name, lambda x, f=getattr(torch, name): f(x))
    unary(name, lambda x, f=getattr(torch, name): f(x, dim=0))
    unary(name, lambda x, f=getattr(torch, name): f(x, dim=-1, keepdim=True))
for name in ("max", "min"):
    unary(name, lambda x, f=getattr(torch, name): f(x))
    unary(name, lambda x, f=getattr(torch, name): tuple(f(x, dim=0)))
    unary(name, lambda x, f=getattr(torch, name): tuple(f(x, dim=-1, keepdim=True)))
for order in (2, 1, 3):
    unary("norm", lambda x, p=order: torch.linalg.vector_norm(x, p), number=float(order))
    unary("norm", lambda x, p=order: torch.linalg.vector_norm(x, p, dim=0), number=float(order))
    unary("norm", lambda x, p=order: torch.linalg.vector_norm(x, p, dim=-1, keepdim=True), number=float(order))
for name in ("std", "var"):
    unary(name, lambda x, f=getattr(torch, name): f(x))
    unary(name, lambda x, f=getattr(torch, name): f(x, dim=0))
    unary(name, lambda x, f=getattr(torch, name): f(x, dim=-1, keepdim=True))
unary("prod", lambda x: x.prod())
unary("prod", lambda x: x.prod(0))
unary("logsumexp", lambda x: x.logsumexp(0))
unary("logsumexp", lambda x: x.logsumexp(-1, keepdim=True))
unary("cumsum", lambda x: x.cumsum(0))
unary("cumsum", lambda x: x.cumsum(-1))
unary("cumprod", lambda x: x.cumprod(-1))

# Picking elements.
case("embedding", lambda w, i: F.embedding(i, w), (((20, 8), (2, 5)), ((100, 16), (4000,))), kinds=["f", "int64"])
case("index", lambda x, i: x[i], ((A, (4,)), (B, (9,))), kinds=["f", "int64"])
case("index_select", lambda x, i: x.index_select(0, i), ((A, (4,)), (B, (9,))), kinds=["f", "int64"])
case("gather", lambda x, i: x.gather(1, i), ((A, (6, 3)), ((5, 7), (2, 3))), kinds=["f", "int64"])
case("scatter", lambda x, i, s: x.scatter(1, i, s), ((A, (6, 3), (6, 3)), ((5, 7), (2, 3), (2, 3))),
     kinds=["f", "int64", "f"], in_place=lambda x, i, s: x.scatter_(1, i, s))
case("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), ((A, (6, 3), (6, 3)), ((5, 7), (2, 3), (2, 3))),
     kinds=["f", "int64", "f"], in_place=lambda x, i, s: x.scatter_add_(1, i, s))
case("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), ((A, (6, 1), (2, 10)), (B, (3, 7, 1), (4, 65))),
     kinds=["f", "bool", "f"])
unary("topk", lambda x: tuple(x.topk(3)))
unary("sort", lambda x: tuple(x.sort()))

# Products.
case("linear", F.linear, (((6, 10), (4, 10)), ((2, 3, 7), (5, 7))))
case("linear", F.linear, (((6, 10), (4, 10), (4,)), ((2, 3, 7), (5, 7), (5,))))
case("linear", lambda x, w, b: torch.addmm(b, x.view(-1, x.size(-1)), w).view(*x.shape[:-1], -1),
     (((6, 10), (10, 4), (4,)), ((2, 3, 7), (7, 5), (5,))), product="direct")
case("mm", torch.mm, (((6, 10), (10, 4)), ((3, 7), (7, 5))))
case("bmm", torch.bmm, (((2, 6, 10), (2, 10, 4)), ((5, 3, 7), (5, 7, 5))))
case("matmul", torch.matmul, (((2, 6, 10), (2, 10, 4)), ((2, 5, 3, 7), (2, 5, 7, 5))))
case("grouped_mm", lambda x, w, o: torch._grouped_mm(x, w, o), (((16, 32), (2, 32, 8), (2,)), ((32, 16), (4, 16, 64), (4,))),
     kinds=["f", "f", "int32"], dtypes=["bf16"])
case("conv2d", lambda x, w: F.conv2d(x, w, padding=1), (((2, 3, 8, 8), (4, 3, 3, 3)), ((1, 2, 5, 7), (6, 2, 3, 3))))
case("conv2d", lambda x, w, b: F.conv2d(x, w, b, stride=2),
     (((2, 3, 8, 8), (4, 3, 3, 3), (4,)), ((1, 2, 5, 7), (6, 2, 3, 3), (6,))))

# Attention, normalisation, pooling, loss.
for kernel, flash, efficient, cudnn in (("flash", 1, 0, 0), ("memory_efficient", 0, 1, 0), ("cudnn", 0, 0, 1)):
    def attend(q, k, v, mask=None, kernel=kernel):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        backend = {"flash": SDPBackend.FLASH_ATTENTION, "memory_efficient": SDPBackend.EFFICIENT_ATTENTION,
                   "cudnn": SDPBackend.CUDNN_ATTENTION}[kernel]
        del backend
        if kernel == "flash":
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        if kernel == "memory_efficient":
            return torch.ops.aten._scaled_dot_product_efficient_attention(
                q, k, v, mask, q.requires_grad or k.requires_grad or v.requires_grad, 0.0, mask is None)[0]
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, mask, q.requires_grad or k.requires_grad or v.requires_grad, 0.0, True)[0]
    wide = ((2, 4, 100, 64),) * 3, ((1, 3, 33, 16),) * 3
    half = ["bf16", "fp16"]
    case("scaled_dot_product_attention", attend, wide, dtypes=half + (["fp32"] if kernel == "memory_efficient" else []),
         kernel=kernel)
    if kernel == "flash":
        case("scaled_dot_product_attention", attend, (((2, 4, 100, 64), (2, 2, 100, 64), (2, 2, 100, 64)),), dtypes=half,
             kernel=kernel)
    if kernel == "memory_efficient":
        case("scaled_dot_product_attention", attend, (((2, 4, 96, 64),) * 3 + ((2, 4, 96, 96),),), dtypes=half,
             grad=[True, True, True, False], kernel=kernel, full=True)

unary("softmax", lambda x: x.softmax(-1))
unary("softmax", lambda x: x.softmax(0))
case("softmax", lambda x: F.softmax(x, -1, dtype=torch.float32), ((A,), (B,)), dtypes=["bf16", "fp16"])
unary("log_softmax", lambda x: x.log_softmax(-1))
case("log_softmax", lambda x: F.log_softmax(x, -1, dtype=torch.float32), ((A,), (B,)), dtypes=["bf16", "fp16"])
case("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b), ((A, (10,), (10,)), (B, (65,), (65,))))
case("layer_norm", lambda x, w: F.layer_norm(x, w.shape, w), ((A, (10,)), (B, (65,))))
case("layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), ((A,), (B,)))
case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), (((3, 4, 5), (4,), (4,)), ((2, 6, 4, 4), (6,), (6,))),
     number=2.0)
case("batch_norm", lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=True),
     (((6, 4), (4,), (4,), (4,), (4,)), ((3, 5, 4, 4), (5,), (5,), (5,), (5,))),
     kinds=["f", "fp32", "fp32", "fp32", "fp32"], grad=[True, True, True, False, False])
case("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), ((A, (10,)), (B, (65,))))
case("rms_norm", lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6), ((A,), (B,)))
unary("dropout", lambda x: F.dropout(x, 0.1), lambda x: F.dropout(x, 0.1, inplace=True), number=0.1)
unary("max_pool2d", lambda x: F.max_pool2d(x, 2), shapes=(((2, 3, 8, 8),), ((1, 2, 6, 10),)))
unary("avg_pool2d", lambda x: F.avg_pool2d(x, 2), shapes=(((2, 3, 8, 8),), ((1, 2, 6, 10),)))
case("grid_sample", lambda x, at: F.grid_sample(x, at, mode="bicubic", align_corners=False, padding_mode="border"),
     (((1, 4, 5, 6), (1, 7, 1, 2)),), grad=[True, False], dtypes=["fp32"])
unary("interpolate", lambda x: F.interpolate(x, scale_factor=2), shapes=(((2, 3, 8, 8),), ((1, 2, 6, 10),)))
unary("interpolate", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), shapes=(((2, 3, 8, 8),),))
for reduction in ("mean", "sum", "none"):
    both = ((A, A), (B, B))
    case("nll_loss", lambda x, t, r=reduction: F.nll_loss(x, t, reduction=r), ((A, (6,)), ((9, 33), (9,))),
         kinds=["f", "int64"], reduction=reduction)
    case("l1_loss", lambda x, t, r=reduction: F.l1_loss(x, t, reduction=r), both, reduction=reduction)
    case("mse_loss", lambda x, t, r=reduction: F.mse_loss(x, t, reduction=r), both, reduction=reduction)
    case("smooth_l1_loss", lambda x, t, r=reduction: F.smooth_l1_loss(x, t, reduction=r), both, reduction=reduction)
    case("binary_cross_entropy", lambda x, t, r=reduction: F.binary_cross_entropy(x, t, reduction=r), both,
         grad=[True, False], reduction=reduction)
    case("binary_cross_entropy_with_logits",
         lambda x, t, r=reduction: F.binary_cross_entropy_with_logits(x, t, reduction=r), both, grad=[True, False],
         reduction=reduction)
    case("kl_div", lambda x, t, r=reduction: F.kl_div(x, t, reduction=r), both, grad=[True, False], reduction=reduction)

# Without a gradient.
case("floor_divide", lambda x: torch.floor_divide(x, 3), ((A,), (B,)), grad=[False], number=3.0)
for name in ("ne", "eq", "ge", "gt"):
    case(name, getattr(torch, name), ((A, A), (B, (7, 1))), grad=[False, False])
case("all", lambda x: x.all(), ((A,), (B,)), kinds=["bool"], dtypes=["bool"])
case("all", lambda x: x.all(-1), ((A,), (B,)), kinds=["bool"], dtypes=["bool"])
case("histc", lambda x: torch.histc(x, bins=4, min=0, max=1), ((A,), (B,)), grad=[False], dtypes=["fp32"])
case("arange", lambda: torch.arange(60, device="cuda:0"), ((),), dtypes=["int64"])
case("arange", lambda: torch.arange(5, 4000, dtype=torch.int32, device="cuda:0"), ((),), dtypes=["int32"])
case("index_put", lambda x, i, v: x.index_put((i,), v), ((A, (4,), (4, 10)), (B, (2,), (2, 7, 65))),
     kinds=["f", "int64", "f"], grad=[False] * 3, in_place=lambda x, i, v: x.index_put_((i,), v))
