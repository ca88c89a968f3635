"""Published figures of single operators (Liger's benchmark), written as op-graphs.

That benchmark calls forward and backward several times over: gradients of the time before are still there, backward
of what is no loss starts from a tensor of random numbers of the output's size, and keeps the graph (retain_graph).
Products leave cuBLAS's workspace behind in forward's thread and another one in backward's, which an op-graph does not
count. On the dry device the benchmark takes what was published, to the last digit (docs/accuracy.md).
"""

import re

DTYPES = {"bfloat16": ("bfloat16", 2), "fp32 logits": ("float32", 4)}
WORKSPACES = {f"workspace_of_{thread}": ([8519680], "uint8") for thread in ("forward", "backward")}  # sm_80: 8.125 MiB.


def numbers_of(row):
    """B, T, H, V, BT, ... as the row's model and remarks name them."""
    named = re.findall(r"\b([A-Za-z_]+)=(\d+)", row["model"] + " " + row["other"])
    return {name: int(value) for name, value in named}


def tensor(shape, dtype, requires_grad=False):
    return {"shape": shape, "dtype": dtype, "requires_grad": True} if requires_grad else {"shape": shape, "dtype": dtype}


def graph(leaves, others, ops, output, retained=()):
    """`leaves`: tensors that get gradients, each with the one of the time before. `retained`: what the graph
    holds after backward as well."""
    tensors = {name: tensor(shape, dtype, True) for name, (shape, dtype) in leaves.items()}
    tensors.update({"gradient_of_" + name: tensor(shape, dtype) for name, (shape, dtype) in leaves.items()})
    tensors.update({name: tensor(shape, dtype) for name, (shape, dtype) in others.items()})
    kept = [{"op": "detach", "inputs": [name], "output": "held_" + name} for name in retained]
    value = {"dsplan": 1, "kind": "graph", "source": "Liger's benchmark", "tensors": tensors, "ops": [*ops, *kept],
             "outputs": [output, *("held_" + name for name in retained)]}
    return {**value, "keep_outputs": True} if retained else value


def added_to(*names):
    """Operators before those that read `names`: their gradients are added to what is there and go at once, where a
    leaf's first one would stay. What a name reads from counts as the gradient of the time before."""
    return {name: {"op": "add", "inputs": ["gradient_of_" + name, "nothing"], "output": name} for name in names}


def retaining(tensors, ops, retained):
    """An op-graph whose `tensors` get gradients that are there already (`added_to`), and that backward leaves whole."""
    given = {"gradient_of_" + name: one for name, one in tensors.items()}
    value = graph({}, given, ops, "y", retained)
    value["tensors"]["nothing"] = tensor([1], "bfloat16", True)
    return value


def cross_entropy(row):
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    tokens = sizes["B"] * sizes["T"]
    return graph({"x": ([tokens, sizes["V"]], dtype)}, {"target": ([tokens], "int64")},
                 [{"op": "cross_entropy", "inputs": ["x", "target"], "output": "loss"}], "loss")


def chunks_of_then(tokens, hidden, vocabulary):
    """What Liger's loop of 2024 (0.3.1, read) holds of a chunk's logits beside today's one tensor: their copy in fp32,
    and the scaled gradient of the chunk before."""
    parts = -(-vocabulary // hidden)
    rows = 1 << (-(-tokens // parts) - 1).bit_length()
    return {"chunk_in_fp32": ([rows, vocabulary], "float32"),
            "gradient_of_chunk_before": ([rows, vocabulary], "bfloat16")}


def head_and_loss(row, fused):
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    leaves = {"x": ([sizes["BT"], sizes["H"]], dtype), "weight": ([sizes["V"], sizes["H"]], dtype)}
    if fused:
        ops = [{"op": "liger_fused_linear_cross_entropy", "inputs": ["x", "weight", "target"], "output": "loss"}]
    else:
        ops = [{"op": "linear", "inputs": ["x", "weight"], "output": "logits"},
               {"op": "cross_entropy", "inputs": ["logits", "target"], "output": "loss"}]
    others = {"target": ([sizes["BT"]], "int64"), "head_of_the_other": leaves["weight"],  # Both modules are made.
              **WORKSPACES}
    if fused:
        others |= chunks_of_then(sizes["BT"], sizes["H"], sizes["V"])
    return graph(leaves, others, ops, "loss")


def gated(row, activation):
    """LlamaMLP, and Gemma's with gelu."""
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    hidden, wide = sizes["hidden_size"], sizes["intermediate_size"]
    x = [sizes.get("B") or sizes["bsz"], sizes["T"], hidden]
    tensors = {"x": (x, dtype), "gate": ([wide, hidden], dtype), "up": ([wide, hidden], dtype),
               "down": ([hidden, wide], dtype)}
    there = added_to(*tensors)
    ops = [there["x"], there["gate"], {"op": "linear", "inputs": ["x", "gate"], "output": "a"},
           {**activation, "inputs": ["a"], "output": "b"},
           there["up"], {"op": "linear", "inputs": ["x", "up"], "output": "c"},
           {"op": "mul", "inputs": ["b", "c"], "output": "d"},
           there["down"], {"op": "linear", "inputs": ["d", "down"], "output": "y"}]
    value = retaining(tensors, ops, (*tensors, *"abcd"))
    seeds = {"seed": (x, dtype), **WORKSPACES}
    value["tensors"] |= {name: tensor(*one) for name, one in seeds.items()}
    return value


def rms_norm(row):
    """LlamaRMSNorm, in the operators that it is written in; its weight is in fp32, and so is what it returns."""
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    tensors = {"x": ([sizes["M"], sizes["H"]], dtype), "weight": ([sizes["H"]], "float32")}
    there = added_to(*tensors)
    ops = [there["x"], {"op": "to", "dtype": "float32", "inputs": ["x"], "output": "a"},
           {"op": "pow", "exponent": 2, "inputs": ["a"], "output": "b"},
           {"op": "mean", "dim": [-1], "keepdim": True, "inputs": ["b"], "output": "c"},
           {"op": "add_scalar", "value": 1e-6, "inputs": ["c"], "output": "d"},
           {"op": "rsqrt", "inputs": ["d"], "output": "e"}, {"op": "mul", "inputs": ["a", "e"], "output": "f"},
           {"op": "to", "dtype": dtype, "inputs": ["f"], "output": "g"},
           there["weight"], {"op": "mul", "inputs": ["weight", "g"], "output": "y"}]
    value = retaining(tensors, ops, (*tensors, *"aceg"))
    value["tensors"] |= {"seed": tensor(*tensors["x"]), "seed_in_fp32": tensor(tensors["x"][0], "float32")}
    return value


def graph_of(row):
    """The row's op-graph; text where there is none, which says why."""
    name = row["model"].removeprefix("op ")
    if name.startswith("cross_entropy (huggingface)"):
        return cross_entropy(row)
    if name.startswith("fused_linear_cross_entropy"):
        return head_and_loss(row, "(liger)" in name)
    if name.startswith("swiglu (huggingface)"):
        return gated(row, {"op": "silu"})
    if name.startswith("geglu (huggingface)"):
        return gated(row, {"op": "gelu", "approximate": "tanh"})
    if name.startswith("rms_norm (huggingface)"):
        return rms_norm(row)
    if "(liger)" in name:
        return "an operator of Liger's whose backward writes over what forward saved, which no op-graph says"
    return "an operator whose published bytes hold gigabytes of something that the row does not name"
