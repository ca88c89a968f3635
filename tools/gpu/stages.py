"""The stages of tools/gpu/validate, as data: change them here.

A stage is a list of command lines for bash, run from the root of the tree. A line that begins with "-" may fail without
failing its stage. In a line: {python} the interpreter that holds torch, {dsplan} the program, {here} the stage's own
folder, {device} cuda, cpu or fake, {measurer} the same without fake, for tools that need numbers, {seconds} what a tool
may take before the stage's limit comes, {tiny} --tiny when there is no GPU, else nothing.

A command says how it went by its exit code: 0 well, 4 a comparison came out unequal, 77 skipped, 124 out of time,
anything else failed. The last line of its output that begins with "finding:", else its last line, is shown in the table.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Stage:
    number: int
    name: str
    what: str
    expected: int  # seconds on an H100 or H200, guessed until measured
    limit: int  # seconds after which it is ended; under ten minutes
    priority: int  # lower runs first when time is short
    commands: tuple
    needs_dsplan: bool = False
    environment: tuple = ()  # ("NAME", "value") pairs, exported around the commands


OPS = "{python} tools/frameworks/ops {here}/operators.json --device {device} --seconds {seconds} {tiny}"
SNAPSHOTS = "{python} tools/frameworks/snapshots --out {here} --device {device} --seconds {seconds} {tiny} --kind"
MATRIX = "{python} tools/frameworks/matrix --out {here} --device {device} --seconds {seconds} {tiny}"
PYTORCH = MATRIX + " tools/frameworks/matrix_pytorch.json"
DEEPSPEED = MATRIX + " tools/frameworks/matrix_deepspeed.json"
VERDICTS = "{python} tools/frameworks/verdicts --out {here} --device {device} --seconds {seconds} {tiny} --dsplan {dsplan}"
CONSTANTS = "{python} tools/frameworks/constants --out {here} --device {measurer} --seconds {seconds} {tiny}"
REPLAY = "for file in {here}/*.snapshot.pickle.xz; do xz -dkf $file && {dsplan} replay ${{file%.xz}}; done"

STAGES = (
    Stage(1, "environment", "GPU, driver, versions, tools, what dsplan finds", 20, 120, 1, (
        "-nvidia-smi",
        "-nvcc --version; cmake --version; c++ --version; nproc; free -g; df -h .; uname -r; ulimit -l",
        "-{python} -m pip list --disable-pip-version-check",
        "-{dsplan} doctor",
        "{python} tools/gpu/probe.py --device {device}")),
    Stage(2, "dsplan", "the program: packed, or built from source here", 15, 590, 2, (
        "[ -x {dsplan} ] || {{ cmake -S . -B build/gpu -DCMAKE_BUILD_TYPE=Release -DDSPLAN_TESTS=OFF && "
        "cmake --build build/gpu --target dsplan -j $(nproc); }}",
        "{dsplan} --version",
        "{dsplan} simulate llama-3-8b --zero-stage 3 --gpus 8 --hardware h200")),
)
