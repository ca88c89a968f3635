"""The op-graph files of tests/witnesses/op_graphs: every operator of docs/op-graphs.md, and how tensors live and die."""

CASES = {}
# Where fake tensors go another way than tensors on a GPU: name of the case, what is not compared, and why.
ARTEFACTS = {}


def tensor(shape, dtype="float32", grad=None):
    grad = dtype.startswith(("float", "bfloat")) if grad is None else grad
    return {"shape": list(shape), "dtype": dtype, **({"requires_grad": True} if grad else {})}


def op(name, inputs, output, **attributes):
    inputs = inputs.split()
    outputs = output.split()
    made = {"output": outputs[0]} if len(outputs) == 1 else {"outputs": outputs}
    return {"op": name, "inputs": inputs, **attributes, **made}


def case(name, tensors, ops, outputs, artefact=None, **more):
    CASES[name] = {"dsplan": 1, "kind": "graph", "source": "tools/oracles/op_graph_cases.py", "tensors": tensors,
                   "ops": ops, "outputs": outputs.split(), **more}
    if artefact:
        ARTEFACTS[name] = artefact


def chain(name, shape, steps, dtype="float32", **tensors):
    """One operator after the other, from x; each step is a name or (name, attributes)."""
    ops = []
    for i, step in enumerate(steps):
        what, attributes = (step, {}) if isinstance(step, str) else step
        ops.append(op(what, "x" if i == 0 else f"t{i - 1}", f"t{i}", **attributes))
    case(name, {"x": tensor(shape, dtype), **tensors}, ops, f"t{len(steps) - 1}")


# Of one tensor.
chain("unary-smooth", (64, 32), ["exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid"])
chain("unary-activations", (64, 32), ["neg", "abs", "relu", "leaky_relu", "elu", "gelu", "silu", "mish", "hardswish",
                                      "softplus", "logsigmoid"], dtype="bfloat16")
chain("unary-in-place", (64, 32), [
    ("mul_scalar", {"value": 2.0}), ("exp", {"in_place": True}), ("neg", {}), ("sigmoid", {"in_place": True}),
    ("mul_scalar", {"value": 2.0}), ("relu", {"in_place": True}), ("add_scalar", {}), ("tanh", {"in_place": True}),
    ("sub_scalar", {}), ("neg", {"in_place": True}), ("leaky_relu", {"in_place": True})])
chain("glu-and-dropout", (6, 40, 64), ["neg", "glu", ("dropout", {"p": 0.1}), "exp", ("glu", {"dim": 1}),
                                       ("dropout", {"p": 0.5, "in_place": True}), ("dropout", {"p": 0.0})])
chain("casts", (64, 32), [("to", {"dtype": "bfloat16"}), "exp", ("to", {"dtype": "float32"}), "sin",
                          ("to", {"dtype": "float32"}), ("to", {"dtype": "float16"})])
chain("numbers", (64, 32), [("add_scalar", {"value": 1.5}), ("sub_scalar", {"value": 1.5}), ("div_scalar", {"value": 3.0}),
                            ("rdiv_scalar", {"value": 2.0}), ("rsub_scalar", {"value": 2.0}), ("pow", {"exponent": 3}),
                            ("pow", {"exponent": 2}), ("clamp", {"min": -1.0, "max": 1.0}), ("clamp", {"min": -1.0}),
                            ("pow", {"exponent": 0.5})])

# Of several.
A, ROW, COLUMN = tensor((64, 32)), tensor((32,)), tensor((64, 1))
case("broadcast", {"x": A, "r": ROW, "c": COLUMN}, [
    op("add", "x r", "a"), op("sub", "c a", "b"), op("mul", "b r", "d"), op("div", "d c", "e"), op("div", "r e", "f"),
    op("mul", "c r", "g"), op("add", "f g", "z")], "z")
case("choices", {"x": A, "y": A, "m": tensor((64, 32), "bool"), "row": tensor((32,), "bool")}, [
    op("maximum", "x y", "a"), op("minimum", "a x", "b"), op("where", "m a b", "c"),
    op("masked_fill", "c row", "d", value=0.0), op("neg", "d", "e"), op("eq", "e a", "same"),
    op("masked_fill", "e same", "f", value=1.0, in_place=True), op("ge", "f y", "over"), op("ne", "f x", "other"),
    op("where", "over f y", "z")], "z")
case("weights-elementwise", {"x": A, "p": ROW, "y": A, "w": ROW}, [
    op("prelu", "x p", "a"), op("addcmul", "a y w", "b", value=0.5), op("addcmul", "w a b", "z")], "z")
case("in-place-pairs", {"x": A, "y": A, "r": ROW}, [
    op("neg", "x", "a"), op("add", "a y", "b", in_place=True), op("neg", "b", "c"), op("sub", "c r", "d", in_place=True),
    op("neg", "d", "e"), op("clamp", "e", "f", min=0.0), op("add_scalar", "f", "z", in_place=True)], "z")
case("mixed-precision", {"x": tensor((64, 32), "bfloat16"), "y": A, "h": tensor((64, 32), "float16")}, [
    op("mul", "x y", "a"), op("add", "x h", "b"), op("mul", "a b", "c"), op("add", "c h", "z")], "z")

# Views.
case("views", {"x": tensor((6, 8, 10))}, [
    op("view", "x", "a", shape=[48, 10]), op("t", "a", "b"), op("mul_scalar", "b", "c"),
    op("reshape", "c", "d", shape=[10, 6, 8]), op("transpose", "d", "e", dim0=0, dim1=2), op("exp", "e", "f"),
    op("permute", "f", "g", dims=[1, 2, 0]), op("flatten", "g", "h", start_dim=1), op("unsqueeze", "h", "i", dim=1),
    op("squeeze", "i", "j", dim=1), op("contiguous", "j", "z")], "z")
case("reshape-copies", {"x": tensor((6, 8, 10))}, [
    op("transpose", "x", "a", dim0=0, dim1=1), op("reshape", "a", "b", shape=[48, 10]), op("exp", "b", "c"),
    op("view", "c", "d", shape=[8, 60]), op("t", "d", "e"), op("reshape", "e", "z", shape=[-1])], "z")
case("slices", {"x": tensor((12, 20))}, [
    op("slice", "x", "a", dim=0, start=2, end=10), op("exp", "a", "b"), op("narrow", "b", "c", dim=1, start=0, length=10),
    op("mul", "c c", "d"), op("select", "d", "e", dim=0, index=3), op("select", "d", "f", dim=0, index=4),
    op("mul", "e f", "z")], "z")
case("splits", {"x": tensor((12, 30))}, [
    op("exp", "x", "a"), op("split", "a", "b c d", split_size=[10, 5, 15], dim=1), op("sin", "b", "e"),
    op("sin", "d", "f"), op("cat", "e c f", "g", dim=1), op("chunk", "g", "h i", chunks=2, dim=0),
    op("mul", "h i", "j"), op("unbind", "j", "k l m n o p"), op("mul", "k m", "q"), op("mul", "q p", "z")], "z")
case("expanded", {"x": tensor((1, 20)), "y": tensor((12, 20))}, [
    op("expand", "x", "a", shape=[12, 20]), op("exp", "a", "b"), op("mul", "a b", "c"), op("mul", "c y", "z")], "z")
case("detached", {"x": A, "y": A}, [
    op("exp", "x", "a"), op("detach", "a", "b"), op("mul", "a b", "c"), op("sin", "b", "d"), op("mul", "c d", "z")], "z")

# Copies and joins.
chain("copies", (10, 8), ["exp", "clone", ("pad", {"pad": [1, 2]}), ("roll", {"shifts": [1], "dims": [0]}),
                          ("flip", {"dims": [0]}), "tril", ("triu", {"diagonal": 1}), ("repeat", {"repeats": [2, 1]}),
                          ("repeat_interleave", {"repeats": 3, "dim": 0}), "neg"])
case("joins", {"x": tensor((8, 10)), "y": tensor((8, 10)), "c": tensor((8, 10), grad=False)}, [
    op("cat", "x y", "a", dim=0), op("cat", "a c", "b"), op("exp", "b", "d"), op("chunk", "d", "e f g", chunks=3),
    op("stack", "e f", "h", dim=1), op("stack", "h h", "z")], "z")

# Products.
case("linear-folded", {"x": tensor((4, 6, 32)), "w": tensor((16, 32)), "b": tensor((16,)), "v": tensor((8, 16))}, [
    op("linear", "x w b", "a"), op("gelu", "a", "c"), op("linear", "c v", "z")], "z")
case("linear-frozen", {"x": tensor((24, 32)), "w": tensor((16, 32), grad=False), "v": tensor((8, 16))}, [
    op("linear", "x w", "a"), op("linear", "a v", "z")], "z")
case("linear-transposed", {"x": tensor((6, 4, 32)), "w": tensor((16, 32)), "b": tensor((16,))}, [
    op("transpose", "x", "a", dim0=0, dim1=1), op("exp", "a", "c"), op("linear", "c w b", "d"), op("linear", "a w", "e"),
    op("add", "d e", "z")], "z")
case("matrices", {"x": tensor((24, 32)), "w": tensor((32, 16)), "b": tensor((16,)), "v": tensor((24, 16))}, [
    op("addmm", "b x w", "a"), op("t", "v", "c"), op("mm", "a c", "d"), op("matmul", "d x", "z")], "z")
case("batched", {"x": tensor((2, 4, 6, 8)), "y": tensor((2, 4, 8, 10)), "w": tensor((10, 12))}, [
    op("matmul", "x y", "a"), op("matmul", "a w", "b"), op("flatten", "b", "c", start_dim=0, end_dim=1),
    op("transpose", "c", "d", dim0=1, dim1=2), op("bmm", "c d", "z")], "z")
case("batched-transposed-leaf", {"x": tensor((2, 4, 6, 8)), "y": tensor((2, 4, 10, 8))}, [
    op("transpose", "y", "t", dim0=2, dim1=3), op("matmul", "x t", "z")], "z")
case("batched-permuted-leaf", {"x": tensor((2, 6, 4, 8)), "y": tensor((2, 10, 4, 8))}, [
    op("transpose", "x", "a", dim0=1, dim1=2), op("permute", "y", "b", dims=[0, 2, 3, 1]), op("matmul", "a b", "z")], "z")
case("matrix-transposed-leaf", {"x": tensor((24, 32)), "y": tensor((10, 32)), "v": tensor((32, 10))}, [
    op("t", "y", "t"), op("mm", "x t", "a"), op("mm", "a y", "b"), op("mm", "b v", "z")], "z")
case("permuted-leaf", {"x": tensor((6, 8)), "y": tensor((8, 6))}, [
    op("t", "x", "a"), op("mul", "a y", "b"), op("exp", "b", "z")], "z")
case("permuted-leaf-used-twice", {"x": tensor((2, 4, 6, 8)), "y": tensor((2, 4, 10, 8))}, [
    op("transpose", "y", "t", dim0=2, dim1=3), op("matmul", "x t", "a"), op("matmul", "a y", "z")], "z")
case("batched-broadcast", {"x": tensor((3, 2, 6, 8)), "y": tensor((2, 8, 10))}, [
    op("matmul", "x y", "a"), op("exp", "a", "z")], "z")
case("convolutions", {"x": tensor((2, 3, 16, 16)), "w": tensor((6, 3, 3, 3)), "b": tensor((6,)), "v": tensor((8, 6, 2, 2))}, [
    op("conv2d", "x w b", "a", padding=1), op("relu", "a", "c"), op("conv2d", "c v", "z", stride=2)], "z")

case("patches", {"x": tensor((2, 3, 16, 12))}, [
    op("exp", "x", "a"), op("unfold", "a", "b", kernel_size=3, padding=1), op("sin", "b", "z")], "z")
case("pooled", {"x": tensor((2, 3, 16, 12))}, [
    op("exp", "x", "a"), op("max_pool2d", "a", "b", kernel_size=3, stride=2, padding=1),
    op("interpolate", "b", "c", scale_factor=2), op("interpolate", "c", "d", size=[20, 10], mode="bilinear"),
    op("sin", "d", "z")], "z")
case("batch-norm", {"x": tensor((6, 4)), "w": tensor((4,)), "b": tensor((4,)), "m": tensor((4,), grad=False),
                    "v": tensor((4,), grad=False)}, [
    op("exp", "x", "a"), op("batch_norm", "a w b m v", "c"), op("sin", "c", "z")], "z")
case("batch-norm-images", {"x": tensor((3, 4, 6, 5), "bfloat16"), "w": tensor((4,)), "b": tensor((4,), grad=False),
                           "m": tensor((4,), grad=False), "v": tensor((4,), grad=False)}, [
    op("exp", "x", "a"), op("batch_norm", "a w b m v", "c"), op("sin", "c", "z")], "z")
case("grouped", {"x": tensor((32, 16), "bfloat16"), "w": tensor((4, 16, 64), "bfloat16"), "o": tensor((4,), "int32")}, [
    op("exp", "x", "a"), op("grouped_mm", "a w o", "b"), op("sin", "b", "z")], "z")

# Attention.
for kernel in ("flash", "mem-efficient", "cudnn", "eager"):
    q = tensor((2, 4, 128, 64), "bfloat16")
    case(f"attention-{kernel}", {"q": q, "k": q, "v": q}, [
        op("exp", "q", "a"), op("scaled_dot_product_attention", "a k v", "b", kernel=kernel,
                                **({} if kernel == "eager" else {"is_causal": True})), op("neg", "b", "z")], "z")
for name, dtype, heads, more in (
        ("half", "bfloat16", 4, {}), ("half-causal", "float16", 4, {"is_causal": True}), ("single", "float32", 4, {}),
        ("single-causal", "float32", 4, {"is_causal": True}), ("grouped", "bfloat16", 2, {"enable_gqa": True}),
        ("single-grouped-causal", "float32", 2, {"enable_gqa": True, "is_causal": True}),
        ("dropout", "bfloat16", 4, {"is_causal": True, "dropout_p": 0.1}), ("single-dropout", "float32", 4, {"dropout_p": 0.1})):
    k = tensor((2, heads, 48, 16), dtype)
    case(f"attention-math-{name}", {"q": tensor((2, 4, 40, 16), dtype), "k": k, "v": k}, [
        op("exp", "q", "a"), op("exp", "k", "b"), op("scaled_dot_product_attention", "a b v", "c", kernel="math", **more),
        op("neg", "c", "z")], "z")
case("attention-math-transposed", {"q": tensor((2, 40, 4, 16)), "k": tensor((2, 48, 4, 16)), "v": tensor((2, 48, 4, 16))}, [
    op("transpose", "q", "a", dim0=1, dim1=2), op("transpose", "k", "b", dim0=1, dim1=2),
    op("transpose", "v", "c", dim0=1, dim1=2),
    op("scaled_dot_product_attention", "a b c", "d", kernel="math"), op("transpose", "d", "e", dim0=1, dim1=2),
    op("reshape", "e", "z", shape=[2, 40, 64])], "z")
case("attention-math-no-gradient", {n: tensor((2, 4, 40, 16), "bfloat16", grad=False) for n in "qkv"}, [
    op("scaled_dot_product_attention", "q k v", "z", kernel="math", is_causal=True)], "z")

# Reductions and scans.
case("reductions", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("sum", "a", "b", dim=0), op("mean", "a", "c", dim=1, keepdim=True), op("mul", "b c", "d"),
    op("amax", "d", "e", dim=1), op("amin", "d", "f", dim=1), op("mul", "e f", "g"), op("norm", "d", "h", dim=1),
    op("add", "g h", "i"), op("mean", "i", "z")], "z")
case("reductions-statistics", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("std", "a", "b", dim=1), op("var", "a", "c", dim=1), op("logsumexp", "a", "d", dim=1),
    op("mul", "b c", "e"), op("mul", "e d", "f"), op("sum", "f", "z")], "z")
case("reductions-all", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("max", "a", "b"), op("min", "a", "c"), op("norm", "a", "d"), op("std", "a", "e"),
    op("mul", "b c", "f"), op("mul", "d e", "g"), op("mul", "f g", "z")], "z")
case("scans", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("cumsum", "a", "b", dim=1), op("cumsum", "b", "c", dim=0), op("sin", "c", "z")], "z")
case("products-of-elements", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("prod", "a", "b", dim=1), op("cumprod", "b", "c", dim=0), op("sin", "c", "z")], "z",
    artefact="prod_backward and cumprod_backward: fake: whole products; else zeros are counted on the host")

# By index.
INDEX = tensor((5, 7), "int64")
case("embeddings", {"w": tensor((40, 16)), "i": INDEX, "v": tensor((16, 16))}, [
    op("embedding", "i w", "a"), op("linear", "a v", "b"), op("embedding", "w i", "c"), op("mul", "b c", "z")], "z")
case("picked-rows", {"x": tensor((12, 20)), "i": tensor((5,), "int64")}, [
    op("exp", "x", "a"), op("index", "a i", "b"), op("index_select", "b i", "c", dim=1), op("sin", "c", "z")], "z")
case("picked-elements", {"x": tensor((12, 20)), "i": tensor((12, 4), "int64"), "s": tensor((12, 4))}, [
    op("exp", "x", "a"), op("gather", "a i", "b", dim=1), op("mul", "b s", "c"), op("scatter", "a i c", "d", dim=1),
    op("scatter_add", "d i s", "e", dim=1), op("sin", "e", "z")], "z")
case("ranked", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("topk", "a", "b i", k=4), op("sort", "b", "c j", descending=True), op("sin", "c", "z")], "z")
case("extremes-over-a-dimension", {"x": tensor((12, 20))}, [
    op("exp", "x", "a"), op("max", "a", "b i", dim=1), op("min", "a", "c j", dim=1, keepdim=True),
    op("mul", "c b", "z")], "z")

# Norms and losses.
case("softmaxes", {"x": tensor((12, 20), "float16")}, [
    op("softmax", "x", "a"), op("softmax", "a", "b", dim=0, dtype="float32"), op("log_softmax", "b", "z")], "z")
case("softmax-cast", {"x": tensor((12, 20), "bfloat16")}, [
    op("exp", "x", "a"), op("softmax", "a", "b", dtype="float32"), op("to", "b", "c", dtype="bfloat16"),
    op("log_softmax", "c", "z", dtype="float32")], "z")
case("layer-norm", {"x": tensor((4, 6, 32)), "w": ROW, "b": ROW}, [
    op("exp", "x", "a"), op("layer_norm", "a w b", "c"), op("sin", "c", "z")], "z")
case("rms-norms", {"x": tensor((4, 6, 32), "bfloat16"), "w": tensor((32,), "bfloat16")}, [
    op("exp", "x", "a"), op("rms_norm", "a w", "b"), op("rms_norm", "b w", "c", implementation="huggingface"),
    op("neg", "c", "z")], "z")
case("group-norm", {"x": tensor((3, 8, 5, 5)), "w": tensor((8,)), "b": tensor((8,))}, [
    op("exp", "x", "a"), op("group_norm", "a w b", "c", num_groups=2), op("sin", "c", "z")], "z")
case("rms-norm-single", {"x": tensor((4, 6, 32)), "w": ROW}, [
    op("exp", "x", "a"), op("rms_norm", "a w", "b", implementation="huggingface"), op("rms_norm", "b", "c"),
    op("neg", "c", "z")], "z")
case("cross-entropy", {"x": tensor((24, 16)), "w": tensor((50, 16)), "t": tensor((24,), "int64")}, [
    op("linear", "x w", "a"), op("cross_entropy", "a t", "z")], "z")
case("cross-entropy-upcast", {"x": tensor((24, 16), "bfloat16"), "w": tensor((50, 16), "bfloat16"), "t": tensor((24,), "int64")}, [
    op("linear", "x w", "a"), op("to", "a", "b", dtype="float32"), op("cross_entropy", "b t", "z", reduction="sum")], "z")
for reduction in ("mean", "sum", "none"):
    case(f"losses-{reduction}", {"x": A, "y": A, "w": ROW}, [
        op("exp", "x", "a"), op("l1_loss", "a y", "b", reduction=reduction), op("mse_loss", "a y", "c", reduction=reduction),
        op("smooth_l1_loss", "a y", "d", reduction=reduction), op("add", "b c", "e"), op("add", "e d", "z")], "z")
    case(f"entropies-{reduction}", {"x": A, "y": tensor((64, 32), grad=False)}, [
        op("sigmoid", "x", "a"), op("binary_cross_entropy", "a y", "b", reduction=reduction),
        op("kl_div", "a y", "c", reduction=reduction), op("add", "b c", "z")], "z")
    case(f"logits-{reduction}", {"x": A, "y": tensor((64, 32), grad=False)}, [
        op("neg", "x", "a"), op("binary_cross_entropy_with_logits", "a y", "z", reduction=reduction)], "z",
        artefact="its backward: fake: out of place; else in place on sigmoid(input)")
case("nll-none", {"x": tensor((24, 16)), "t": tensor((24,), "int64")}, [
    op("log_softmax", "x", "a"), op("nll_loss", "a t", "z", reduction="none")], "z")

# Lifetimes.
case("held", {"x": A}, [op("exp", "x", "a"), op("neg", "a", "b"), op("neg", "b", "c"), op("neg", "c", "d"),
                        op("neg", "d", "z")], "z", hold={"b": 3})
case("two-outputs", {"x": A, "y": A}, [op("exp", "x", "a"), op("mul", "a y", "b"), op("sin", "a", "c")], "b c")
case("kept-outputs", {"x": A}, [op("exp", "x", "a"), op("neg", "a", "z")], "a z", keep_outputs=True)
case("unused-branch", {"x": A}, [op("exp", "x", "a"), op("sin", "a", "b"), op("cos", "b", "c"), op("neg", "x", "z")], "z")
case("no-grad-inside", {"x": A, "y": A}, [op("exp", "x", "a", no_grad=True), op("mul", "a y", "b"), op("sin", "b", "z")], "z")
case("leaf-used-four-times", {"x": A}, [op("mul", "x x", "a"), op("add", "a x", "b"), op("mul", "b x", "z")], "z")
case("gradient-passed-on", {"x": A, "y": A, "c": ROW}, [op("add", "x y", "a"), op("add", "a x", "b"), op("add", "b c", "z")], "z")
case("expanded-gradient", {"x": A, "y": A}, [op("add", "x y", "a"), op("sum", "a", "b"), op("mean", "y", "c"), op("add", "b c", "z")], "z")


def region(inputs, output, ops, **attributes):
    return {"op": "checkpoint", "inputs": inputs.split(), "outputs": output.split(), **attributes, "ops": ops}


for reentrant in (False, True):
    how = "reentrant" if reentrant else "not-reentrant"
    case(f"checkpoint-{how}", {"x": A, "w": tensor((48, 32)), "v": tensor((32, 48))}, [
        op("neg", "x", "h"),
        region("h", "b", [op("linear", "h w", "a"), op("gelu", "a", "g"), op("linear", "g v", "b")], reentrant=reentrant),
        region("b", "d", [op("linear", "b w", "c"), op("gelu", "c", "i"), op("linear", "i v", "d")], reentrant=reentrant),
        op("sin", "d", "z")], "z")
    case(f"checkpoint-two-{how}", {"x": A, "y": A}, [
        op("exp", "x", "h"),
        region("h y", "b c", [op("mul", "h y", "a"), op("sin", "a", "b"), op("cos", "a", "c")], reentrant=reentrant),
        op("mul", "b c", "z")], "z")
case("checkpoint-selective", {"x": A, "w": tensor((48, 32)), "v": tensor((32, 48))}, [
    region("x", "b", [op("linear", "x w", "a"), op("gelu", "a", "g"), op("linear", "g v", "b")], save=["mm"]),
    op("sin", "b", "z")], "z")
case("checkpoint-dropout", {"x": A}, [
    region("x", "c", [op("exp", "x", "a"), op("dropout", "a", "b", p=0.1), op("exp", "b", "c")]), op("sin", "c", "z")], "z")
case("custom-two-outputs", {"x": A, "y": A}, [
    {"op": "custom", "inputs": ["x", "y"], "saves": ["x", "b"], "outputs": ["b", "c"],
     "ops": [op("exp", "x", "a"), op("mul", "a y", "b"), op("sin", "a", "c")]}, op("mul", "b c", "z")], "z")
