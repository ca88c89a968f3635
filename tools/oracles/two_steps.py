"""What oracles share that train two steps on the dry device: a row for each phase, the events behind it, and a process of
its own for each case.

A row is a phase, the peaks of requested, allocated and reserved bytes since it began, and what is requested at its end.
"""

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tempfile

import torch


class Phases:
    """Made before anything is on the device. `events`: the file for all that the allocator is asked; None: none is written."""

    def __init__(self, events=None):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.rows, self.events = [], events

    def record(self):
        if self.events:
            torch.cuda.memory._record_memory_history(max_entries=10_000_000, context="all", stacks="python")

    def mark(self, phase):
        s = torch.cuda.memory_stats()
        self.rows.append([phase, *(s[f"{what}_bytes.all.peak"] for what in ("requested", "allocated", "reserved")),
                          s["requested_bytes.all.current"]])
        torch.cuda.reset_peak_memory_stats()

    def train(self, optimizer, batch, loss_of, after_backward=lambda: None):
        """`batch` makes what `loss_of` is given, for each step anew."""
        inputs = batch()
        self.mark("batch")
        for step in ("1", "2"):
            if step == "2":
                inputs = batch()
            loss = loss_of(inputs)
            self.mark(step + ".forward")
            loss.backward()
            del loss
            after_backward()
            self.mark(step + ".backward")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            self.mark(step + ".step")
        self.write_events()
        return self.rows

    def write_events(self):
        if not self.events:
            return
        with open(self.events, "w", encoding="utf-8") as out:
            for e in torch.cuda.memory._snapshot()["device_traces"][0]:
                frames = [f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}" for f in e.get("frames", [])[:7]]
                out.write(f"{e['action']} {e['size']} {' < '.join(frames)}\n")


def tagged_rows(rows, order):
    """aten::nonzero of KTO's tags, which no kernel has negated: half of so many rows are desirable ("c"), the others are not
    ("r"), asked for in this order again and again. All other flags are set. Memory is asked for as Nonzero.cu does."""
    from dsplan_dry import answers

    counts = itertools.cycle((rows + 1) // 2 if word == "c" else rows // 2 for word in order)

    def nonzero(flags):
        n = flags.numel()
        chosen = next(counts) if flags.dim() == 1 and n == rows else n
        empty = lambda size: torch.empty(size, dtype=torch.uint8, device=flags.device)  # noqa: E731
        count = empty(4)
        parts = -(-n // 4096)
        counting = empty(1 if parts < 2 else 8 * parts)
        del counting
        places = torch.empty((flags.dim(), chosen), dtype=torch.int64, device=flags.device)
        selecting = empty(1023)
        del selecting, count
        return places.t()

    answers.LIBRARIES.pop()._destroy()  # Which says that all are set.
    library = torch.library.Library("aten", "IMPL")
    library.impl("nonzero", nonzero, "CUDA")
    return library


def fused_adam(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)


def run_cases(script, cases, measure, packages, usual=None):
    """OUT.json [NAME...], each case in a process of its own; or --events OUT.txt NAME. `usual`: the cases without a NAME."""
    words = sys.argv[1:]
    if words[0] == "--one":
        with open(words[2], "w", encoding="utf-8") as out:
            json.dump(measure(cases[words[1]], words[3] if len(words) > 3 else None), out)
        return
    if words[0] == "--events":
        out, name = words[1:]
        subprocess.run([sys.executable, script, "--one", name, out + ".json", out], check=True)
        return
    out, names = words[0], words[1:] or list(usual or cases)
    found = json.load(open(out)) if os.path.exists(out) else {"cases": {}}
    found["versions"] = {name: importlib.metadata.version(name).partition("+")[0] for name in packages}
    for name in names:
        with tempfile.NamedTemporaryFile(suffix=".json") as rows:
            done = subprocess.run([sys.executable, script, "--one", name, rows.name], capture_output=True, text=True)
            if done.returncode != 0:
                print(name, done.stderr[-600:], file=sys.stderr)
                continue
            found["cases"][name] = {**cases[name], "rows": json.load(open(rows.name))}
        print(name, file=sys.stderr, flush=True)
    with open(out, "w") as file:
        file.write("{" + f'"versions": {json.dumps(found["versions"])},\n"cases": {{\n')
        file.write(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found["cases"].items()) + "\n}}\n")
