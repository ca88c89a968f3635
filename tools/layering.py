#!/usr/bin/env python3
"""Holds the tree to the drawing in docs/architecture.md.

  tools/layering.py              checks; prints every fault; exit 1 if there is one
  tools/layering.py --tighten    lowers the figures in tools/ratchet.txt to what the code needs today
  tools/layering.py --large      prints what is above the limits today, as tools/ratchet.txt writes it
  tools/layering.py --self-test  makes a small tree for each rule, breaks the rule, and expects to be told

Checked: who includes whom; which third-party header is used where; that only the command line prints and exits; that
the readers of schedules know nothing of ZeRO; that only lowering makes events; that the pages name files that exist;
how large and tangled functions, classes, folders and lists of includes are. Standard library only.

A function's complexity counts what a reader has to keep in mind, as cognitive complexity does: one for each `if`, `for`,
`while`, `do`, `switch`, `catch` and `?:`, and one more for each of these, or lambda, that it stands in; one for each
`else`; one for each run of `&&` or of `||` in a condition.
"""
import pathlib
import re
import sys
import tempfile

# Each room with the rooms that it may include.
ROOMS = {
    "core": {"core"},
    "model": {"core", "model"},
    "sim": {"core", "sim"},
    "planner": {"core", "model", "sim", "planner"},
    "exec": {"core", "sim", "exec"},
    # The plugin: a program of its own, that shares the host executor's reading of launches.
    "cuda": {"core", "exec", "cuda"},
    # Libraries that stand in for CUDA's, in programs that are not ours.
    "dry": {"dry"},
    "io": {"core", "io"},
    "report": {"core", "model", "sim", "planner", "io", "report"},
    "cli": {"core", "model", "sim", "planner", "exec", "io", "report", "cli"},
}
# The planner's own rooms, which share one library, with those of them that each may include. The first three hold facts:
# pure functions of a job. Advice predicts and searches, and a prediction carries advice: the one circle.
FACTS = {"fsdp", "libraries", "zero"}
PLANNER = {
    "fsdp": {"fsdp"},
    "libraries": {"libraries"},
    "zero": {"zero"},
    "resolve": FACTS | {"resolve"},
    "lower": FACTS | {"lower"},
    "time": FACTS | {"lower", "time"},
    "predict": FACTS | {"lower", "time", "predict", "advise"},
    "plan": FACTS | {"resolve", "lower", "time", "predict", "plan"},
    "advise": FACTS | {"resolve", "lower", "predict", "plan", "advise"},
}
# Where a third-party header may be included: a pattern over the path from the root.
CONFINED = {
    # It takes seconds to compile: one reader has it. Tests parse what the binary prints with a reader that is not ours.
    "nlohmann/": r"src/io/json_parse\.cpp|tests/.*\.cpp",
    "yaml.h": r"src/io/.*\.cpp",
    "toml++/": r"src/io/dialects/toml\.cpp",
    "CLI/": r"src/cli/.*",
    "doctest/": r"tests/.*",
    "benchmark/": r"bench/.*",
    "fmt/": r"src/core/format\.cpp",
    "cuda.h": r"src/cuda/plugin/.*|tests/dry/abi_check\.cpp",
    "cuda_runtime.h": r"src/cuda/grid.h",
    "cuda_runtime_api.h": r"src/cuda/plugin/.*|tests/dry/abi_check\.cpp",
    "cublasLt.h": r"src/cuda/plugin/cublas.cpp",
    "nccl.h": r"src/cuda/plugin/nccl_prototypes.cpp",
}
# A second derivation is worth what it does not share: what those files may not reach, by any chain of includes.
INDEPENDENT = {r"src/planner/predict/footprint.*": r"planner/(zero|fsdp|lower)/.*"}
PRINTS_OR_EXITS = re.compile(
    r"\bstd::(cout|cerr|clog|exit|_Exit|quick_exit|printf|puts)\b|\bfmt::print\b|\bf?printf\s*\(|\bf?puts\s*\(|"
    r"(^|[;{})]|(?<!\w)::)\s*_?exit\s*\(")
KNOWS_ZERO = re.compile(r"ZeroStage|zero\.stage|\bzero\(\)|\bZero\b")
MAKES_EVENTS = re.compile(r"events\.(push_back|emplace_back|insert)\b")

NAMES_A_PATH = re.compile(r"(?<![\w/.-])(?:src|tests|tools|bench|docs|configs|models|cmake)/[\w.*/-]*\w")

# What is measured: its unit, and how much of it is fine.
LIMITS = {
    "function": ("lines", 70),
    "complexity": ("points of complexity", 25),
    "class": ("methods", 15),
    "folder": ("files", 40),
    "includes": ("includes", 20),
}
RATCHET = "tools/ratchet.txt"
FUNCTION_KEYWORDS = re.compile(r"^(if|for|while|switch|catch|do|else|try|return)\b")


def blank_out(text):
    """The text with comments, strings and characters blanked, line by line as before."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    pattern = re.compile(
        r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
        r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)
    return pattern.sub(blank, text)


def code_of(text):
    """The text with the preprocessor's lines blanked, too."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), blank_out(text),
                  flags=re.M)


def functions(text):
    """(name, lines, body) of every outermost function of a C++ file; `text` is what `code_of` gave."""
    code = text
    found = []
    scopes = []  # "container" or ("function", name, line)
    start = 0    # Where the current declaration began.
    for at, character in enumerate(code):
        if character == "{":
            head = code[start:at].strip()
            inside = any(scope != "container" for scope in scopes)
            if not inside and is_function(head):
                first = code.count("\n", 0, start + len(code[start:at]) - len(code[start:at].lstrip())) + 1
                scopes.append((name_of(head), first, at + 1))
            elif inside or not is_braced_value(head):
                scopes.append("inner" if inside else "container")
            else:
                scopes.append("value")
            if scopes[-1] != "value":
                start = at + 1
        elif character == "}":
            scope = scopes.pop() if scopes else "container"
            if isinstance(scope, tuple):
                name, first, body = scope
                found.append((name, code.count("\n", 0, at) + 2 - first, code[body:at]))
            if scope != "value":
                start = at + 1
        elif character == ";" and not (scopes and scopes[-1] == "value"):
            start = at + 1
    return found


def is_braced_value(head):
    return bool(re.search(r"(=|return|\(|,)$", head)) or bool(re.search(r"[\w>]\s*$", head) and "(" not in head and
                not re.search(r"\b(namespace|class|struct|union|enum|extern)\b", head) and head != "")


def is_function(head):
    if "(" not in head or FUNCTION_KEYWORDS.match(head):
        return False
    if re.search(r"=\s*$", head) or re.search(r"^\s*(template\s*<[^{]*>\s*)?(class|struct|enum|namespace|union)\b", head):
        return False
    return True


def name_of(head):
    head = re.sub(r"\b(alignas|decltype|requires|noexcept)\s*\(", " ", head)
    match = re.search(r"(operator\s*[^\s(]+|operator\s*\(\s*\)|[~\w:]+)\s*\(", head)
    name = match.group(1) if match else "?"
    if name == "TEST_CASE":
        return "TEST_CASE"
    return re.sub(r"\s+", "", name)


class Complexity:
    """Reads one function's body, statement by statement, and adds up its points."""
    TOKEN = re.compile(r"[A-Za-z_]\w*|::|->|\|\||(?<=\s)&&|[{}()\[\];:?,]")

    def __init__(self, body):
        self.tokens = self.TOKEN.findall(body)
        self.at = 0
        self.points = 0
        while self.at < len(self.tokens):
            self.statement(0)

    def next(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *words):
        if self.next() not in words:
            return False
        self.at += 1
        return True

    def statement(self, depth):
        word = self.next()
        if word in ("if", "for", "while", "switch", "catch"):
            self.points += 1 + depth
            self.structure(depth)
        elif self.take("do"):
            self.points += 1 + depth
            self.statement(depth + 1)
            self.take("while")
            self.expression(depth)
        elif self.take("try"):
            self.statement(depth)
        elif self.take("{"):
            self.block(depth)
        elif self.take("case", "default"):
            while self.at < len(self.tokens) and not self.take(":"):
                self.at += 1
        else:
            self.expression(depth)

    def structure(self, depth):
        word = self.next()
        self.at += 1
        self.take("constexpr")
        if self.take("("):
            self.inside(depth, ")")
        self.statement(depth + 1)
        if word == "if" and self.take("else"):
            self.points += 1
            if self.next() == "if":
                self.structure(depth)
            else:
                self.statement(depth + 1)

    def block(self, depth):
        while self.at < len(self.tokens) and not self.take("}"):
            self.statement(depth)

    def expression(self, depth):
        self.inside(depth, ";")

    def inside(self, depth, end):
        """Up to and with `end`: conditions cost, and so does what lambdas hold. A "}" that closes a block stays."""
        last = ""
        while self.at < len(self.tokens):
            word = self.next()
            if word == "}" and end == ";":
                return
            before = self.tokens[self.at - 1] if self.at else ""
            self.at += 1
            if word == end:
                return
            if word == "?":
                self.points += 1 + depth
            elif word in ("&&", "||"):
                self.points += word != last
                last = word
            elif word in (";", ","):
                last = ""
            elif word in ("(", "["):
                self.inside(depth, {"(": ")", "[": "]"}[word])
            elif word == "{":
                if before in (")", "]", "mutable", "noexcept") or self.tokens[max(0, self.at - 3)] == "->":
                    self.block(depth + 1)
                else:
                    self.inside(depth, "}")


def closing(code, opened):
    depth = 0
    for at in range(opened, len(code)):
        depth += {"{": 1, "}": -1}.get(code[at], 0)
        if depth == 0:
            return at
    return len(code)


def classes(code):
    """(name, methods) of every class of a C++ file; what `code_of` gave. Constructors, destructors and operators are none;
    a friend function that is given the class itself, and so sees its inside, is one."""
    head = re.compile(r"\b(?<!enum )(?:class|struct)\s+(?:alignas\([^)]*\)\s*)?([\w:]+)(?:\s+final)?(?:\s*:[^;{}()]*)?\s*\{")
    for match in head.finditer(code):
        name = match.group(1).split("::")[-1]
        body = code[match.end():closing(code, match.end() - 1)]
        # What stands in braces becomes the end of a declaration, what stands in angle brackets goes.
        while re.search(r"\{[^{}]*\}", body):
            body = re.sub(r"\{[^{}]*\}", ";", body)
        while re.search(r"<[^<>;]*>", body):
            body = re.sub(r"<[^<>;]*>", " ", body)
        body = re.sub(r"\[\[.*?\]\]|\b(public|private|protected)\s*:(?!:)|\b(alignas|noexcept|explicit)\s*\([^()]*\)", " ", body)
        methods = 0
        for declaration in body.split(";"):
            if re.match(rf"\s*friend\b[^()]*\b(?!operator)\w+\s*\(\s*(?:const\s+)?{re.escape(name)}\s*&", declaration):
                methods += "operator" not in declaration
            words = re.match(r"(?!\s*(?:using|friend|typedef|static_assert|enum)\b)\s*[^=()]*?(~?\w+)\s*\((?!\s*\*)", declaration)
            if words and "operator" not in declaration and words.group(1).lstrip("~") != name:
                methods += 1
        yield name, methods


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)

    def sources(self, *folders):
        for folder in folders:
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in (".cpp", ".h", ".cu", ".cuh") and path.is_file():
                    yield path.relative_to(self.root).as_posix(), path.read_text(encoding="utf-8")


def check_includes(tree, faults):
    for path, text in tree.sources("src", "tests", "bench"):
        room = path.split("/")[1] if path.startswith("src/") else None
        if room is not None and room not in ROOMS:
            faults.append(f"{path}: src/{room} is no room of docs/architecture.md")
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if not match:
                continue
            quoted, target = match.group(1) == '"', match.group(2)
            for header, allowed in CONFINED.items():
                if target == header or (header.endswith("/") and target.startswith(header)):
                    if not re.fullmatch(allowed, path):
                        faults.append(f"{path}:{number}: <{target}> belongs into {allowed} only")
            if room is None or not quoted:
                continue
            other = target.split("/")[0]
            if other not in ROOMS:
                faults.append(f'{path}:{number}: "{target}" is not written from src/')
            elif other not in ROOMS[room]:
                faults.append(f"{path}:{number}: {room} must not include {other}")
            elif room == other == "planner":
                check_planner(path, number, target, faults)


def check_planner(path, number, target, faults):
    inner, other = path.split("/")[2], target.split("/")[1]
    if inner not in PLANNER:
        faults.append(f"{path}: src/planner/{inner} is no room of docs/architecture.md")
    elif other not in PLANNER[inner]:
        faults.append(f"{path}:{number}: planner/{inner} must not include planner/{other}")


def check_independence(tree, faults):
    texts = dict(tree.sources("src"))
    for path in texts:
        banned = [target for source, target in INDEPENDENT.items() if re.fullmatch(source, path)]
        seen, ahead = set(), [path] if banned else []
        while ahead:
            at = ahead.pop()
            for target in re.findall(r'^\s*#\s*include\s*"([^"]+)"', texts.get(at, ""), flags=re.M):
                if any(re.fullmatch(one, target) for one in banned):
                    faults.append(f'{path}: derives for itself, and must not reach "{target}" ({at})')
                elif target not in seen:
                    seen.add(target)
                    ahead.append("src/" + target)


def check_words(tree, faults):
    for path, text in tree.sources("src"):
        room = path.split("/")[1]
        for number, line in enumerate(blank_out(text).splitlines(), 1):
            if room != "cli" and PRINTS_OR_EXITS.search(line):
                faults.append(f"{path}:{number}: only src/cli prints or exits")
            if room in ("sim", "exec") and KNOWS_ZERO.search(line):
                faults.append(f"{path}:{number}: {room} must know nothing of ZeRO")
            if room in ("sim", "exec", "io", "cli", "model") and MAKES_EVENTS.search(line):
                faults.append(f"{path}:{number}: only planner/lower makes events")


def check_pages(tree, faults):
    """Every path of the tree that a page names, and every relative link, leads somewhere."""
    pages = [path for pattern in ("*.md", "docs/**/*.md", "tests/**/*.md") for path in tree.root.glob(pattern)]
    for page in sorted(pages):
        name = page.relative_to(tree.root).as_posix()
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for path in NAMES_A_PATH.findall(line):
                if "NAME" not in path and not list(tree.root.glob(path.rstrip("/."))):
                    faults.append(f"{name}:{number}: {path} does not exist")
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", line):
                if not (page.parent / link).exists():
                    faults.append(f"{name}:{number}: the link to {link} leads nowhere")


def measures(tree):
    """{(kind of LIMITS, path, name): figure} of everything that is measured; of two with one name, the larger."""
    found = {}

    def note(kind, path, name, figure):
        found[kind, path, name] = max(figure, found.get((kind, path, name), 0))

    for path, text in tree.sources("src", "tests", "bench"):
        code = code_of(text)
        folder = path.rsplit("/", 1)[0]
        if folder.startswith("src/"):  # A test is found by the name of its topic, however many there are.
            note("folder", folder, "-", found.get(("folder", folder, "-"), 0) + 1)
        note("includes", path, "-", len(re.findall(r"^\s*#\s*include\b", text, re.M)))
        for name, lines, body in functions(code):
            note("function", path, name, lines)
            note("complexity", path, name, Complexity(body).points)
        for name, methods in classes(code):
            note("class", path, name, methods)
    return found


def sizes(tree):
    """What is larger than LIMITS allow."""
    return {key: figure for key, figure in measures(tree).items() if figure > LIMITS[key[0]][1]}


def read_ratchet(tree):
    listed = {}
    path = tree.root / RATCHET
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.strip() and not line.startswith("#"):
            kind, file, name, lines = line.split()
            listed[kind, file, name] = int(lines)
    return listed


def check_sizes(tree, faults):
    listed = read_ratchet(tree)
    for key, figure in sorted(sizes(tree).items()):
        kind, path, name = key
        unit, limit = LIMITS[kind]
        most = listed.get(key, limit)
        if figure > most:
            faults.append(f"{path}{'' if name == '-' else ': ' + name}: {figure} {unit}; at most {most}")


def tighten(tree):
    path = tree.root / RATCHET
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#") or not line.strip()]
    now = sizes(tree)
    kept = [f"{' '.join(key)} {min(most, now[key])}" for key, most in sorted(read_ratchet(tree).items()) if key in now]
    path.write_text("\n".join(head + kept) + "\n", encoding="utf-8")


def check(root):
    tree = Tree(root)
    faults = []
    for rule in (check_includes, check_independence, check_words, check_pages, check_sizes):
        rule(tree, faults)
    return faults


def self_test():
    long_body = "  f();\n" * 80
    cases = [
        ("src/core/a.cpp", '#include "sim/b.h"\n', "core must not include sim"),
        ("src/sim/a.cpp", '#include "planner/b.h"\n', "sim must not include planner"),
        ("src/io/a.cpp", '#include "model/b.h"\n', "io must not include model"),
        ("src/core/a.cpp", '#include "b.h"\n', "not written from src/"),
        ("src/io/a.h", "#include <nlohmann/json.hpp>\n", "belongs into"),
        ("src/cli/a.cpp", "#include <nlohmann/json.hpp>\n", "belongs into"),
        ("tests/a.h", "#include <nlohmann/json.hpp>\n", "belongs into"),
        ("src/cli/a.cpp", "#include <yaml.h>\n", "belongs into"),
        ("src/core/a.cpp", "#include <CLI/CLI.hpp>\n", "belongs into"),
        ("src/cli/a.cpp", "#include <doctest/doctest.h>\n", "belongs into"),
        ("src/planner/predict/footprint_a.cpp", '#include "planner/zero/zero_facts.h"\n', "must not reach"),
        ("src/planner/predict/footprint.cpp", '#include "planner/lower/a.h"\n', "must not reach"),
        ("src/report/a.cpp", "#include <nlohmann/json.hpp>\n", "belongs into"),
        ("src/attic/a.cpp", "\n", "is no room"),
        ("src/planner/attic/a.cpp", '#include "planner/zero/b.h"\n', "is no room"),
        ("src/planner/lower/a.cpp", '#include "planner/predict/b.h"\n', "planner/lower must not include planner/predict"),
        ("src/planner/zero/a.cpp", '#include "planner/lower/b.h"\n', "planner/zero must not include planner/lower"),
        ("src/core/a.cpp", "void f() { std::exit(1); }\n", "only src/cli prints or exits"),
        ("src/io/a.cpp", "void f() {\n  exit(1);\n}\n", "only src/cli prints or exits"),
        ("src/io/a.cpp", 'void f() { fmt::print("x"); }\n', "only src/cli prints or exits"),
        ("src/sim/a.cpp", "int f(const Job& j) { return j.training.zero.stage; }\n", "know nothing of ZeRO"),
        ("src/exec/a.cpp", "ZeroStage s;\n", "know nothing of ZeRO"),
        ("src/exec/a.cpp", '#include "cuda/b.h"\n', "exec must not include cuda"),
        ("src/cuda/a.cpp", "#include <cublasLt.h>\n", "belongs into"),
        ("src/sim/a.cpp", "void f() { events.push_back(e); }\n", "only planner/lower"),
        ("src/core/a.cpp", "namespace n {\nvoid Room::f(int a) const {\n" + long_body + "}\n}\n", "Room::f: 82 lines"),
        ("tests/a.cpp", 'TEST_CASE("x") {\n' + long_body + "}\n", "82 lines"),
        ("src/core/a.cpp", "int f() {\n" + "  if (a) b();\n" * 26 + "}\n", "f: 26 points"),
        ("src/core/a.cpp", "int f() {\n" + "  if (a) {\n    for (;;) b();\n  }\n" * 9 + "}\n", "f: 27 points"),
        ("src/core/a.cpp", "int f() {\n" + "  g([&](int i) { return i ? 1 : 2; });\n" * 13 + "}\n", "f: 26 points"),
        ("src/core/a.cpp", "int f() {\n" + "  x = a && b && c || d;\n" * 13 + "}\n", "f: 26 points"),
        ("src/core/a.cpp", "int f() {\n" + "  if (a) b();\n  else if (c) d();\n  else e();\n" * 9 + "}\n", "f: 27 points"),
        ("src/core/a.h", "class C {\n" + "  [[nodiscard]] std::vector<int> f(int a = g()) const { return {}; }\n" * 16 + "};\n",
         "C: 16 methods"),
        ("src/core/a.h", "class C {\n" + "  [[nodiscard]] friend int f(const C& c, int a);\n" * 16 + "};\n", "C: 16 methods"),
        ("src/core/a.h", '#include "core/b.h"\n' * 21, "21 includes"),
        ("README.md", "see `src/core/gone.h`\n", "src/core/gone.h does not exist"),
        ("docs/a.md", "see [b](b.md)\n", "leads nowhere"),
    ]
    clean = [
        ("src/cli/a.cpp", '#include <CLI/CLI.hpp>\n#include "io/b.h"\nint main() { std::exit(0); }\n'),
        ("src/io/json_parse.cpp", "#include <nlohmann/json.hpp>\n// std::exit(1), fmt::print\n"),
        ("tests/a.cpp", "#include <nlohmann/json.hpp>\n"),
        ("src/planner/advise/footprint.cpp", '#include "planner/zero/zero_facts.h"\n'),
        ("src/core/a.h", "struct R {\n  virtual void exit(int) {}\n};\nvoid f(R& r) { r.exit(1); }\n"),
        ("src/sim/a.cpp", '// ZeroStage\nconst char* t = "zero.stage";\n'),
        ("src/core/a.cpp", "constexpr int kTable[] = {\n" + "  1,\n" * 90 + "};\nint f() { return 1; }\n"),
        ("src/core/a.cpp", ("int f() {\n" + "  g();\n" * 30 + "}\n") * 40),
        ("src/core/a.cpp", "int f() {\n  for (const auto& [a, b] : c) use(std::forward<T&&>(a));\n" + "  g(T{1, h()});\n" * 50 +
         "  switch (x) {\n" + "    case A: return 1;\n" * 5 + "  }\n}\n"),
        ("src/core/a.h", "class C {\n  C();\n  explicit C(int);\n  ~C();\n  C& operator=(const C&);\n" +
         "  std::function<int(int)> f_;\n  void (*p)(int);\n  int x = g();\n  int y{g()};\n  using T = int(int);\n" * 4 +
         "  int f();\n" * 15 + "};\n"),
        ("src/core/a.h", "struct A {\n" + "  int f();\n" * 10 + "  struct B {\n" + "    int f();\n" * 10 + "  };\n};\n"),
    ]
    wrong = []
    for path, text, expected in cases + [(path, text, None) for path, text in clean]:
        with tempfile.TemporaryDirectory() as root:
            file = pathlib.Path(root) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            faults = check(root)
            if expected is None and faults:
                wrong.append(f"clean {path} is refused: {faults}")
            if expected is not None and not any(expected in fault for fault in faults):
                wrong.append(f"{path}: expected \"{expected}\", told {faults}")
    with tempfile.TemporaryDirectory() as root:
        for room, files in (("core", 41), ("sim", 40)):
            for number in range(files):
                file = pathlib.Path(root) / f"src/{room}/a{number}.h"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n", encoding="utf-8")
        if check(root) != ["src/core: 41 files; at most 40"]:
            wrong.append(f"41 files in a folder: told {check(root)}")
        (pathlib.Path(root) / "tools").mkdir()
        (pathlib.Path(root) / RATCHET).write_text("# Head.\nfolder src/core - 43\n", encoding="utf-8")
        tighten(Tree(root))
        kept = (pathlib.Path(root) / RATCHET).read_text(encoding="utf-8")
        if check(root) or kept != "# Head.\nfolder src/core - 41\n":
            wrong.append(f"the ratchet of 41 files: told {check(root)}, tightened to {kept}")
    return wrong


def main(arguments):
    root = pathlib.Path(__file__).resolve().parent.parent
    if arguments == ["--self-test"]:
        faults = self_test()
    elif arguments == ["--tighten"]:
        tighten(Tree(root))
        return 0
    elif arguments == ["--large"]:
        print("\n".join(f"{' '.join(key)} {figure}" for key, figure in sorted(sizes(Tree(root)).items())))
        return 0
    elif not arguments:
        faults = check(root)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    for fault in faults:
        print(fault)
    print(f"layering: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
