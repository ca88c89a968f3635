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


STAGES = ()
