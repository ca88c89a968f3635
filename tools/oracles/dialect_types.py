"""Writes src/core/dialects/key_types.cpp: of which type the values of other projects' inert keys are.

    python tools/oracles/dialect_types.py SITE_PACKAGES

Types are those of tests/witnesses/dialects/fields.json; the words of enumerations are transformers' own, from
SITE_PACKAGES. Which keys are inert says docs/scope.md.
"""
import ast
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "src/core/dialects/key_types.cpp"
# A group of the table, the dumps that it is made of, and the sections of docs/scope.md that its keys stand in.
GROUPS = (("Trainer", ("transformers-5", "transformers-4"), ("TrainingArguments", "TRL", "LLaMA-Factory")),
          ("Trl", ("trl-sft", "trl-dpo", "trl-kto", "trl-reward"), ("TRL",)),
          ("Factory", ("llama-factory",), ("LLaMA-Factory",)),
          ("FactoryV1", ("llama-factory-v1",), ("LLaMA-Factory v1",)),
          ("Axolotl", ("axolotl",), ("axolotl",)),
          ("Torchtitan", ("torchtitan", "torchtitan-1"), ("torchtitan",)))
SIMPLE = {"bool": "b", "int": "i", "float": "f", "str": "s", "list": "l", "dict": "d", "None": ""}
HEAD = """// Of which type the values of inert keys are, by the projects' own annotations. Written by
// tools/oracles/dialect_types.py.
#include "core/dialects/dialects.h"

namespace dsplan::detail {
namespace {

"""
TAIL = """}  // namespace

std::span<const Names> key_types(TypesOf whose) {
  switch (whose) {
%s  }
  return {};
}

}  // namespace dsplan::detail
"""


def enumerations(site):
    tree = ast.parse((site / "transformers/trainer_utils.py").read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "ExplicitEnum" for base in node.bases):
            found[node.name] = [item.value.value for item in node.body if isinstance(item, ast.Assign)]
    return found


class Unknown(Exception):
    pass


def parts(node, enums):
    """The letters and words of an annotation."""
    if isinstance(node, ast.Constant) and node.value is None:
        return []
    if isinstance(node, ast.BinOp):
        return parts(node.left, enums) + parts(node.right, enums)
    if isinstance(node, ast.Name):
        if node.id in SIMPLE:
            return [SIMPLE[node.id]]
        if node.id in enums:
            return ["=" + word for word in enums[node.id]]
        raise Unknown(node.id)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name = getattr(node.value, "id", "")
        if name in ("Optional", "Union"):
            return [part for one in inner for part in parts(one, enums)]
        if name == "Literal":
            return ["=" + one.value if isinstance(one.value, str) else "b" for one in inner]
        if name in ("list", "tuple", "Sequence"):
            return ["l"]
        if name == "dict":
            return ["d"]
    raise Unknown(ast.unparse(node))


def type_of(annotations, enums):
    """"is": an integer or a text; "=no|steps": one of these words. Empty: nothing is known."""
    found = []
    for annotation in annotations:
        try:
            found += parts(ast.parse(annotation, mode="eval").body, enums)
        except (Unknown, SyntaxError):
            return ""
    words = list(dict.fromkeys(part[1:] for part in found if part.startswith("=")))
    letters = "".join(sorted({part for part in found if len(part) == 1 and part != "="}))
    if words:
        letters = letters.replace("s", "")  # Beside an enumeration it is the text of one of its words.
    return letters + ("=" + "|".join(words) if words else "")


def inert_keys():
    keys, section, inert = {}, "", False
    for line in (ROOT / "docs/scope.md").read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").split(" (")[0]
        elif line.startswith("| ") and line.count(" | ") == 1 and "---" not in line:
            inert = line.startswith("| inert:") or (inert and not line.endswith("| keys |"))
            if inert:
                keys.setdefault(section, set()).update(re.findall(r"`([^`]+)`", line.split(" | ")[1]))
        else:
            inert = inert and line.startswith("|---")
    return keys


def group(name, dumps, sections, fields, inert, enums):
    annotations = {}
    for dump in dumps:
        for key, field in fields[dump]["fields"].items():
            if field.get("type") and any(key in inert[section] for section in sections):
                annotations.setdefault(key, []).append(field["type"])
    by_type = {}
    for key, said in sorted(annotations.items()):
        kind = type_of(said, enums)
        if kind:
            by_type.setdefault(kind, []).append(key)
    rows = "".join(f'    {{"{kind}", "{" ".join(keys)}"}},\n' for kind, keys in sorted(by_type.items()))
    return f"constexpr Names kTypesOf{name}[] = {{\n{rows}}};\n\n"


def main(site):
    fields = json.loads((ROOT / "tests/witnesses/dialects/fields.json").read_text())
    enums = enumerations(pathlib.Path(site))
    inert = inert_keys()
    text = HEAD + "".join(group(*one, fields, inert, enums) for one in GROUPS)
    text += TAIL % "".join(f"    case TypesOf::{name}: return kTypesOf{name};\n" for name, _, _ in GROUPS)
    TARGET.write_text(text)
    subprocess.run(["clang-format", "-i", str(TARGET)], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
