#!/usr/bin/env python3
"""The matrix of jobs: what real PyTorch and DeepSpeed take on the dry device (docs/dry-device.md).

  tools/dry/matrix.py list [--match TEXT]
  tools/dry/run --world 1 -- python tools/dry/matrix.py run --out FOLDER [--match TEXT] [--limit SECONDS] [--every N]
  tools/dry/run --world 1 -- python tools/dry/matrix.py events --match TEXT --out FOLDER
                                                      (FOLDER/JOB.json: every event of the allocator, Python's frames)

A job that has a result in FOLDER is not run again. tools/dry/compare holds the results against predictions.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

from matrix import model_config, runner, tables


def emitted_checkpoints(job, dsplan):
    """The Python that checkpoints as dsplan understands the job's "checkpoint"."""
    from matrix import predict

    with tempfile.TemporaryDirectory() as folder:
        command = predict.command(job, dsplan, folder, "emit") + ["--format", "checkpointing"]
        told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode != 0:
        raise ValueError(f"{job['name']}: {next(line for line in told.stderr.splitlines() if ' error: ' in line)}")
    return told.stdout


def complete(job, dsplan):
    job = dict(job, config=model_config.config(job))
    wished = job["training"].get("checkpoint", "none")
    own = wished in ("none", "full", "nested") or wished.startswith("keep:linear/2")
    if not own and not job["training"].get("layers_require_grads"):
        job["checkpointing"] = emitted_checkpoints(job, dsplan)
    return job


def ready(jobs, dsplan):
    for job in jobs:
        try:
            yield complete(job, dsplan)
        except ValueError as error:
            print(f"left out: {error}", file=sys.stderr)


def events(jobs, given):
    os.makedirs(given.out, exist_ok=True)
    runner.imports(jobs)
    for job in jobs:
        answer = runner.measure(job, given.limit, events=os.path.join(given.out, job["name"] + ".json"))
        print(job["name"], answer.get("failed", "done"), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "events"))
    parser.add_argument("--match", default="", help="jobs whose name this regular expression finds")
    parser.add_argument("--out", default="dry-matrix")
    parser.add_argument("--every", type=int, default=1, help="one of N jobs of each stratum")
    parser.add_argument("--limit", type=float, default=90, help="seconds for one job")
    parser.add_argument("--again", help="jobs that are run although they have a result: a regular expression")
    parser.add_argument("--dsplan", default=str(model_config.ROOT / "build/release/dsplan"))
    given = parser.parse_args()
    jobs = [job for job in tables.jobs() if re.search(given.match, job["name"])]
    if given.what == "events":
        return events([*ready(jobs, given.dsplan)], given)
    jobs = [job for stratum in tables.strata(jobs) for job in stratum[:: given.every]]
    if given.what == "list":
        for job in jobs:
            print(json.dumps(job))
        print(f"{len(jobs)} jobs", file=sys.stderr)
        return
    runner.run([*ready(jobs, given.dsplan)], given.out, given.limit, given.again)


main()
