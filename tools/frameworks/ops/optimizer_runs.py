"""The optimizer steps of tools/oracles/optimizers.py on a GPU: steps, clipping, zero_grad and the loss scaler, each
done twice. An entry of a log is "+BYTES" or "-BYTES"; of fake tensors, as there, "DTYPE BYTES" or "-BYTES"."""
import torch

import optimizers as oracle


def deferred(kinds, act, prepare=lambda parameters: None):
    """In place of the oracle's `run`: what to do, to be done when its turn comes."""
    return {"step": (kinds, act, prepare)}


def steps_of(device, make):
    """(key, function that gives the case's line). Call it before the next one is asked for: closures move on."""
    torch._C._ensureCUDADeviceGuardSet()
    fake = device == "fake"
    sources = [oracle.torch_cases, oracle.other_cases, oracle.clip_cases, oracle.zero_cases]
    for source in sources:
        yield from named(source.__name__, source(deferred), fake, make)
    scaler = (lambda: torch.amp.GradScaler("cuda")) if device == "cuda" else oracle.fake_scaler
    yield from named("scaler_cases", oracle.scaler_cases(deferred, scaler), fake, make)


def named(source, cases, fake, make):
    for index, case in enumerate(cases):
        kinds, act, prepare = case.pop("step")
        words = [str(value) for value in case.values()]
        yield (f"optimizers/{source}/{index}/" + "-".join(words).replace("/", "_"),
               lambda: {**case, **(oracle.run(kinds, act, prepare) if fake else run(kinds, act, prepare, make()))})


def run(kinds, act, prepare, recorder):
    with recorder:
        parameters = []
        for shape, dtype in kinds:
            given = recorder.like(torch.empty(shape, dtype=dtype, device="meta"))
            parameters.append(torch.nn.Parameter(given))
            parameters[-1].grad = recorder.like(given)
        recorder.take()
        live, parts = 0, []
        prepared = prepare(parameters)
        for step in range(3):
            if step > 0:
                act(parameters, prepared)
            moves = recorder.history.moves(recorder.take())
            peak = live
            for move in moves:
                live += move
                peak = max(peak, live)
            parts.append({"log": [f"{move:+d}" for move in moves], "peak": peak, "held": live})
        line = {"parameters": [{"shape": list(shape), "dtype": oracle.SHORT[dtype]} for shape, dtype in kinds],
                "constructed": parts[0]["log"], "first": parts[1], "second": parts[2]}
        if recorder.own:
            line["workspaces"] = recorder.own
        if recorder.history.faults:
            raise RuntimeError("; ".join(recorder.history.faults[:3]))
        return line
