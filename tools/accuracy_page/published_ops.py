"""Published figures of single operators (Liger's benchmark), written as op-graphs.

That benchmark calls forward and backward several times over: gradients of the time before are still there, and
swiglu's backward starts from a tensor of random numbers of the output's size.
"""

import re

DTYPES = {"bfloat16": ("bfloat16", 2), "fp32 logits": ("float32", 4)}


def numbers_of(row):
    """B, T, H, V, BT, ... as the row's model and remarks name them."""
    named = re.findall(r"\b([A-Za-z_]+)=(\d+)", row["model"] + " " + row["other"])
    return {name: int(value) for name, value in named}


def tensor(shape, dtype, requires_grad=False):
    return {"shape": shape, "dtype": dtype, "requires_grad": True} if requires_grad else {"shape": shape, "dtype": dtype}


def graph(leaves, others, ops, output):
    """`leaves`: tensors that get gradients, each with the one of the time before."""
    tensors = {name: tensor(shape, dtype, True) for name, (shape, dtype) in leaves.items()}
    tensors.update({"gradient_of_" + name: tensor(shape, dtype) for name, (shape, dtype) in leaves.items()})
    tensors.update({name: tensor(shape, dtype) for name, (shape, dtype) in others.items()})
    return {"dsplan": 1, "kind": "graph", "source": "Liger's benchmark", "tensors": tensors, "ops": ops,
            "outputs": [output]}


def cross_entropy(row):
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    tokens = sizes["B"] * sizes["T"]
    return graph({"x": ([tokens, sizes["V"]], dtype)}, {"target": ([tokens], "int64")},
                 [{"op": "cross_entropy", "inputs": ["x", "target"], "output": "loss"}], "loss")


def head_and_loss(row, fused):
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    leaves = {"x": ([sizes["BT"], sizes["H"]], dtype), "weight": ([sizes["V"], sizes["H"]], dtype)}
    if fused:
        ops = [{"op": "liger_fused_linear_cross_entropy", "inputs": ["x", "weight", "target"], "output": "loss"}]
    else:
        ops = [{"op": "linear", "inputs": ["x", "weight"], "output": "logits"},
               {"op": "cross_entropy", "inputs": ["logits", "target"], "output": "loss"}]
    others = {"target": ([sizes["BT"]], "int64"), "head_of_the_other": leaves["weight"]}  # Both modules are made.
    return graph(leaves, others, ops, "loss")


def swiglu(row):
    sizes, (dtype, _) = numbers_of(row), DTYPES[row["precision"]]
    hidden, wide = sizes["hidden_size"], sizes["intermediate_size"]
    x = [sizes["B"], sizes["T"], hidden]
    leaves = {"x": (x, dtype), "gate": ([wide, hidden], dtype), "up": ([wide, hidden], dtype),
              "down": ([hidden, wide], dtype)}
    ops = [{"op": "linear", "inputs": ["x", "gate"], "output": "a"}, {"op": "silu", "inputs": ["a"], "output": "b"},
           {"op": "linear", "inputs": ["x", "up"], "output": "c"}, {"op": "mul", "inputs": ["b", "c"], "output": "d"},
           {"op": "linear", "inputs": ["d", "down"], "output": "y"}]
    return graph(leaves, {"seed": (x, dtype)}, ops, "y")


def graph_of(row):
    """The row's op-graph; None where it is an operator of Liger's that is not modelled."""
    name = row["model"].removeprefix("op ")
    if name.startswith("cross_entropy (huggingface)"):
        return cross_entropy(row)
    if name.startswith("fused_linear_cross_entropy"):
        return head_and_loss(row, "(liger)" in name)
    if name.startswith("swiglu (huggingface)"):
        return swiglu(row)
    return None
