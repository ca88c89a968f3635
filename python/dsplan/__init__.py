"""dsplan from Python: what a training job will take, before it starts.

    import dsplan
    p = dsplan.simulate("llama-3-8b", deepspeed="zero3.json", gpus=8, hardware="h100-sxm")
    p.fits, p.memory.peak.process        # True, bytes of the fullest moment as the driver shows them
    print(p)                             # the program's report

Everything is computed by the program `dsplan`, which comes with this package. Errors are exceptions with its message.
"""
import json
import os
import pathlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _types
from ._program import Call, Error, File, MachineError, ProgramError, Refused, Word, as_file, axis_values, option_words, program
from ._record import SchemaError
from ._types import *  # noqa: F403
from ._types import Comparison, Prediction, Search, Sweep

__all__ = ["simulate", "simulate_ranks", "plan", "sweep", "compare", "version", "program", "read_prediction", "Call", "Error", "MachineError",
           "ProgramError", "Refused", "SchemaError", *_types.__all__]

Path = Union[str, "os.PathLike[str]"]
Model = Union[Path, Mapping[str, Any], Any]

# What the package itself says to the program.
_OURS = {"format": "the package asks for JSON", "out": "the result is returned",
         "explain": "it adds to the printed report: print(result) after `Call.asking`", "help": "see `dsplan simulate --help`"}


def _model(model: Model) -> Word:
    """A name or a path; a dict, a configuration of transformers or a model that has one becomes a config.json."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    config = model if isinstance(model, dict) else getattr(model, "config", model)
    if callable(getattr(config, "to_json_string", None)):
        config = json.loads(config.to_json_string(use_diff=False))
    elif isinstance(config, Mapping):
        config = dict(config)
    said = str(config.get("_name_or_path") or config.get("model_type") or "model") if isinstance(config, dict) else "model"
    word = as_file(config, "config.json")
    return File(f"{pathlib.PurePath(said).name or 'model'}/config.json", word.text) if isinstance(word, File) else word


def _call(command: str, model: Optional[Model], deepspeed: Any, training: Any, gpus: Optional[int], hardware: Any,
          launch: Optional[Sequence[str]], options: Dict[str, Any]) -> Call:
    for name in options:
        if name in _OURS:
            raise TypeError(f"{name} is no option here: {_OURS[name]}")
    words: List[Word] = [command, *([] if model is None else [_model(model)])]
    for option, value in (("deepspeed", deepspeed), ("training", training), ("hardware", hardware)):
        if value is not None:
            words += ["--" + option, as_file(value, option + ".json")]
    words += option_words({"gpus": gpus, **options})
    return Call(tuple(words), tuple(launch or ()))


def simulate(model: Model, *, deepspeed: Any = None, training: Any = None, gpus: Optional[int] = None, hardware: Any = None,
             launch: Optional[Sequence[str]] = None, **options: Any) -> Prediction:
    """Predicts the memory, the traffic and the time of one configuration. Sizes are bytes of one rank, times seconds.

    model: a bundled name (`dsplan show models`), a config.json, a folder with one, an id in the local Hugging Face cache; or
        a dict, a configuration of transformers, or a model that has one.
    deepspeed: the DeepSpeed JSON: a path, a bundled name, a dict, or what holds one.
    training: a training file or transformers' TrainingArguments: a path, a dict, or the object itself.
    gpus: all ranks.
    hardware: one device: a bundled name (`dsplan show hardware`), a path or a dict.
    launch: the command that starts the job, as a list of words (torchrun, ...).
    options: the program's own, with underscores: micro_batch=4, seq=8192, checkpoint="full", cluster="8xh100", strict=True,
        freeze=["*.bias"]. `dsplan simulate --help` lists them.

    What is not given is assumed, and stands in `assumptions`. A job that does not fit is an answer (`fits` is False), not an
    error. Refused is raised with the program's message where an input is wrong or not modelled.
    """
    if options.get("rank") == "all":
        raise TypeError('rank="all" gives many predictions: simulate_ranks')
    call = _call("simulate", model, deepspeed, training, gpus, hardware, launch, options)
    return Prediction.from_json(json.loads(call.asking("--format", "json").run(accept=(0, 3))), call)


def simulate_ranks(model: Model, *, deepspeed: Any = None, training: Any = None, gpus: Optional[int] = None,
                   hardware: Any = None, launch: Optional[Sequence[str]] = None, **options: Any) -> Tuple[Prediction, ...]:
    """`simulate` of every rank, in order; the same arguments without `rank`. Sizes are bytes of that rank."""
    call = _call("simulate", model, deepspeed, training, gpus, hardware, launch, options)
    answer = json.loads(call.asking("--rank", "all", "--format", "json").run(accept=(0, 3)))
    return tuple(Prediction.from_json(one, call.asking("--rank", str(one["rank"]))) for one in answer["ranks"])


def plan(model: Model, *, deepspeed: Any = None, training: Any = None, gpus: Optional[int] = None, hardware: Any = None,
         launch: Optional[Sequence[str]] = None, **options: Any) -> Search:
    """Finds the fastest configuration of a model that fits. Sizes are bytes of the worst rank, times seconds.

    Arguments are those of `simulate`, which pin what they say, and the program's own of a search: vary=["micro_batch=1,2,4"],
    budget="70GiB", maximize="seq", minimize="gpus", pareto=True, timeout=10 (seconds). `dsplan plan --help` lists them.

    Where nothing fits, `chosen` is None, `nearest` is what misses least and `remedies` what would do.
    """
    call = _call("plan", model, deepspeed, training, gpus, hardware, launch, options)
    return Search.from_json(json.loads(call.asking("--format", "json").run(accept=(0, 5))), call)


def sweep(model: Optional[Model] = None, *, vary: Mapping[str, Any], deepspeed: Any = None, training: Any = None,
          gpus: Optional[int] = None, hardware: Any = None, launch: Optional[Sequence[str]] = None, **options: Any) -> Sweep:
    """Predicts every combination of values along axes, in parallel. Sizes are bytes of the worst rank, times seconds.

    vary: the axes, options of `simulate` or "model", each with its values: a list, a range, or what the program reads.
        vary={"micro_batch": range(1, 9), "checkpoint": ["none", "full"], "seq": "1024..8192*2"}
    The other arguments are those of `simulate`. `model` may be left out where it is an axis.

    A combination that cannot be is a point with the verdict "refused" and its reason, not an error.
    """
    call = _call("sweep", model, deepspeed, training, gpus, hardware, launch, options)
    axes = [word for name, values in vary.items() for word in ("--vary", f"{name}={axis_values(values)}")]
    return Sweep.from_json(json.loads(call.asking(*axes, "--format", "json").run()), call.asking(*axes))


def compare(*receipts: Path, tolerance: Sequence[str] = (), **options: Any) -> Comparison:
    """Predicts each receipt's job anew and compares with what was measured (docs/comparing.md).

    receipts: files or folders, as `dsplan.receipt` and the measuring tools write them.
    tolerance: KIND=N, in bytes or percent: ["allocated=1048576", "reserved=2%"].
    """
    words = ["compare", "--re-predict", *(os.fspath(path) for path in receipts)]
    call = Call((*words, *option_words({"tolerance": list(tolerance), **options})))
    return Comparison.from_json(json.loads(call.asking("--format", "json").run(accept=(0, 4))), call)


def read_prediction(path: Path) -> Prediction:
    """What `dsplan simulate --format json --out FILE` wrote."""
    with open(path, encoding="utf-8") as file:
        return Prediction.from_json(json.load(file))


def version() -> str:
    """The program's."""
    return Call(("--version",)).run().split()[1]
