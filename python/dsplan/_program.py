"""Finds the program and calls it."""
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, List, Optional, Sequence, Tuple, Union


class Error(Exception):
    """What the program said, and its exit code where it ended with one (README.md lists them)."""

    def __init__(self, message: str, code: Optional[int] = None, command: str = ""):
        super().__init__(message)
        self.message, self.code, self.command = message, code, command


class Refused(Error):
    """Exit code 2: wrong usage, an invalid input, or something that is not modelled; file, line and rule in the message."""


class MachineError(Error):
    """Exit code 6: the machine lacks what a run needs, or failed in it."""


class ProgramError(Error):
    """Exit code 1: a bug in dsplan."""


ERRORS = {1: ProgramError, 2: Refused, 6: MachineError}


def program() -> str:
    """The path of the program: $DSPLAN_BINARY, or where this package was installed, or the first in PATH."""
    if chosen := os.environ.get("DSPLAN_BINARY"):
        return chosen
    name, package = "dsplan", pathlib.Path(__file__).resolve().parent
    schemes = ["venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix", "posix_prefix", "posix_user"]
    folders = [sysconfig.get_path("scripts")] + [sysconfig.get_path("scripts", scheme) for scheme in schemes]
    folders += [os.path.dirname(sys.executable), str(package.parent / "bin")]  # The last of pip install --target.
    for folder in folders:
        path = os.path.join(folder or "", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if found := shutil.which(name):
        return found
    raise Error("the program dsplan is not installed beside this package, and not in PATH; DSPLAN_BINARY names it")


@dataclasses.dataclass(frozen=True)
class File:
    """An input that has no file yet. It is written to a folder of its own for each call."""

    name: str
    text: str


Word = Union[str, File]


def as_file(value: Any, name: str) -> Word:
    """A path or a bundled name stays what it is; a dict, or an object that can say itself as one, becomes a file."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if not isinstance(value, dict):
        for method in ("to_dict", "model_dump"):
            if callable(getattr(value, method, None)):
                value = getattr(value, method)()
                break
        else:
            if isinstance(getattr(value, "config", None), dict):  # HfDeepSpeedConfig
                value = value.config
            else:
                raise TypeError(f"{name}: a path, a name, a dict or an object with to_dict(), not {type(value).__name__}")
    return File(name, json.dumps(value, indent=2, default=str) + "\n")


def option_words(options: Any) -> List[Word]:
    """`micro_batch=4` is `--micro-batch 4`; True is the option alone, None and False nothing, a list the option repeated."""
    words: List[Word] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, dict):
            for key, one in value.items():
                words += [option, f"{key}={one}"]
        else:
            for one in value if isinstance(value, (list, tuple)) else [value]:
                words += [option, os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
    return words


def axis_values(values: Any) -> str:
    """The values of an axis as --vary reads them."""
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        return str(values)
    words = [str(value) for value in values]
    for word in words:
        if "," in word:
            raise TypeError(f"a comma separates values, and cannot be in one: {word}")
    return ",".join(words)


@dataclasses.dataclass(frozen=True)
class Call:
    """A command line, whose files that are no files yet come along."""

    words: Tuple[Word, ...]
    launch: Tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """As one would type it, files that were dicts by their names."""
        words = [word if isinstance(word, str) else word.name for word in self.words]
        return shlex.join(["dsplan", *words, *(["--", *self.launch] if self.launch else [])])

    def asking(self, *words: str, instead: Optional[str] = None) -> "Call":
        """The same with more options, or of another command."""
        kept = self.words if instead is None else (instead, *self.words[1:])
        return dataclasses.replace(self, words=(*kept, *words))

    def run(self, accept: Sequence[int] = (0,)) -> str:
        """Standard output. Raises what the program says where it ends with another code than those in `accept`."""
        with tempfile.TemporaryDirectory(prefix="dsplan-") as folder:
            words = []
            for word in self.words:
                if isinstance(word, File):
                    path = pathlib.Path(folder, word.name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(word.text, encoding="utf-8")
                    word = str(path)
                words.append(word)
            command = [program(), *words, *(["--", *self.launch] if self.launch else [])]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
            if done.returncode in accept:
                return done.stdout
            said = done.stderr.strip().replace(folder + "/", "") or f"ended with exit code {done.returncode}"
            raise ERRORS.get(done.returncode, Error)(said, done.returncode, self.command)
