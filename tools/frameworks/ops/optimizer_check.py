"""Optimizer steps on a GPU against those of fake tensors (tests/witnesses/optimizers.json, with which dsplan's
prediction agrees to the byte: tests/optimizer_witness_test.cpp).

    python tools/frameworks/ops/optimizer_check.py MEASURED [WITNESS]

Prints each step whose allocations differ, both sides; exit 4 if there is one. Frees between two allocations are sorted,
since they follow from how Python takes a list apart; what frees follow the last allocation counts too. What a kernel
takes inside is seen on a GPU only and is such a difference. Standard library only.
"""
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
WITNESS = os.path.join(ROOT, "tests", "witnesses", "optimizers.json")
PARTS = ("constructed", "first", "second")


def moves_of(log):
    """Bytes with a sign, of both notations ("fp32 1024", "+1024"), frees between two allocations in order of size."""
    moves = []
    frees = []
    for word in log:
        size = int(word.split()[-1])
        if size < 0:
            frees.append(size)
            continue
        moves += sorted(frees)
        frees = []
        moves.append(size)
    return moves + sorted(frees)


def parts_of(case):
    return {part: moves_of(case[part] if part == "constructed" else case[part]["log"]) for part in PARTS}


def title_of(case):
    """What tells a case from its neighbours."""
    words = {key: value for key, value in case.items() if key not in PARTS + ("workspaces", "parameters")}
    return json.dumps(words, sort_keys=True)


def compare(measured, witness):
    """(equal, [(title, part, expected, measured)], titles that the witness lacks)"""
    known = {title_of(case): case for case in witness["cases"]}
    equal, different, unknown = 0, [], []
    for case in measured["optimizers"]:
        title = title_of(case)
        if title not in known:
            unknown.append(title)
            continue
        ours, theirs = parts_of(known[title]), parts_of(case)
        rows = [(title, part, ours[part], theirs[part]) for part in PARTS if ours[part] != theirs[part]]
        different += rows
        equal += not rows
    return equal, different, unknown


def main(words):
    with open(words[0], encoding="utf-8") as file:
        measured = json.load(file)
    with open(words[1] if len(words) > 1 else WITNESS, encoding="utf-8") as file:
        equal, different, unknown = compare(measured, json.load(file))
    titles = {row[0] for row in different}
    print(f"{equal} optimizer steps equal, {len(titles)} different, {len(unknown)} without a witness")
    for title, part, ours, theirs in different:
        print(f"{title}\n  {part}\n    expected {' '.join(f'{move:+d}' for move in ours)}"
              f"\n    measured {' '.join(f'{move:+d}' for move in theirs)}")
    return 4 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
