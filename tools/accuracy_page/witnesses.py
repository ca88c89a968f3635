"""What frameworks themselves said: counted from tests/witnesses and tests/data/allocator."""

import csv
import json

from . import tables


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def versions_of(values):
    """All versions of each package that stand in "versions" objects: "torch 2.11.0, transformers 4.57.6 and 5.17.0"."""
    seen = {}
    for value in values:
        for package, version in value.items():
            seen.setdefault(package, set()).add(version.split("+")[0])
    return ", ".join(f"{package} {' and '.join(sorted(found))}" for package, found in seen.items())


def parameters(root):
    listed = sorted((root / "tests/witnesses/parameters").glob("*.txt"))
    heads = set()
    for path in listed:
        with open(path, encoding="utf-8") as file:
            heads.add(file.readline().removeprefix("# ").strip())
    with open(root / "tests/witnesses/parameters-real.csv", encoding="utf-8", newline="") as file:
        real = sum(1 for _ in csv.DictReader(file))
    meaning = "every parameter and buffer: name, shape, owner, tie, order"
    return [("parameter lists", f"{len(listed)} small models", "; ".join(sorted(heads)), meaning),
            ("parameter lists", f"{real} models as published", "; ".join(sorted(heads)),
             "the same, by hash; the total")]


def steps(root):
    files = [load(path) for path in sorted((root / "tests/witnesses/memory").glob("*.json"))]
    return [("steps", f"{len(files)} training runs", versions_of(value["versions"] for value in files),
             "two optimizer steps under FakeTensor: every allocation and free, in order, in requested bytes")]


def operators(root):
    value = load(root / "tests/witnesses/operators.json")
    return [("operators", f"{len(value['cases']):,} cases", f"torch {value['torch'].split('+')[0]}",
             "one operator under FakeTensor, forward and backward: every allocation and free, in order")]


def optimizers(root):
    value = load(root / "tests/witnesses/optimizers.json")
    return [("optimizers", f"{len(value['cases'])} cases", versions_of([value["versions"]]),
             "two steps of an optimizer: every allocation and free, in order")]


def op_graphs(root):
    value = load(root / "tests/witnesses/op_graphs/answers.json")
    graphs = [key for key in value if key not in ("dsplan", "kind", "source", "versions", "artefacts")]
    return [("op-graphs", f"{len(graphs)} graphs", versions_of([value["versions"]]),
             "forward and backward of small computations: every allocation and free, in order")]


def allocator(root):
    traces = sorted((root / "tests/data/allocator").glob("*.trace"))
    return [("allocator", f"{len(traces)} traces", "torch 2.6",
             "the statistics after every call, of the real allocator on a stand-in CUDA runtime")]


def section(root):
    rows = []
    for part in (parameters, operators, steps, optimizers, op_graphs, allocator):
        rows += part(root)
    return ("## Witnesses\n\nAll of them agree: the test run fails where one does not. FakeTensor shows what operators "
            "return, not what\nkernels take inside; docs/operators.md says which rows no GPU has confirmed.\n\n"
            + tables.table(("witness", ">cases", "versions", "what equality means"), rows))


def bugs_section(root):
    bugs = load(root / "tests/witnesses/bugs.json")["bugs"]
    found = {}
    for bug in bugs:
        found.setdefault(bug["witness"], []).append(bug["what"])
    rows = [(witness, len(what), "; ".join(what)) for witness, what in found.items()]
    return ("## Bugs found per witness\n\nWhat each proof was worth: predictions that it showed to be wrong, and that "
            "were mended. The eager tape and\nthe auditor are the project's own.\n\n"
            + tables.table(("witness", ">bugs", "which"), rows))
