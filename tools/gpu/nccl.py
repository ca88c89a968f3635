#!/usr/bin/env python3
"""Starts dsplan's executor as processes, as torchrun would, and says what came of each way to do so.

  tools/gpu/nccl.py --dsplan build/release/dsplan --backend cuda --seconds 200
  tools/gpu/nccl.py --dsplan build/release/dsplan --backend host --seconds 100

With cuda: NCCL's calls with a communicator of one rank, with the most blocks that it likes and with one; two processes
on one GPU whose NCCL_HOSTID says that they are two hosts (reference: NCCL 2.28, init.cc: a pair of host and bus must not
come twice; undocumented for this use); the switch of NCCL 2.30 for several ranks on a GPU; one process on each GPU where
there are several. With host: connections between two and four processes. Every way may fail: each is a row, with its
last words, and none lasts longer than its time. The last line begins with "finding:". Exit code: 0, whatever the rows
say; 4 where connections between processes of a host fail, which need no GPU. Standard library only.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLAN = "tiny-llama --micro-batch 1 --seq 64 --dtype bf16 --grad-accum 2"


def launch(program, ranks, words, seconds, each=lambda rank: {}):
    """(exit codes, what rank 0 said or the first that failed) of one run of `ranks` processes."""
    port = random.randrange(20000, 32000)
    processes = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost",
               "MASTER_PORT": str(port), **each(rank)}
        line = [program, "run", *words.split(), "--ranks", str(ranks), "--timeout", str(max(5, int(seconds) - 10))]
        processes.append(subprocess.Popen(line, env={**os.environ, **own}, cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT))
    until = time.monotonic() + seconds
    codes, texts = [], []
    for process in processes:
        try:
            texts.append(process.communicate(timeout=max(1, until - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(process.communicate()[0] + "\nended: out of time")
        codes.append(process.returncode)
    said = next((text for code, text in zip(codes, texts) if code != 0 and text.strip()), texts[0])
    return codes, said


def last_words(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it says nothing"


def gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def alone(program, seconds):
    """NCCL's calls with one rank, by the tests of the plugin's table: (ok, text)."""
    folder = pathlib.Path(program).resolve().parent
    tests = next((p for p in (folder / "dsplan_device_tests", folder / "tests/dsplan_device_tests") if p.exists()), None)
    plugin = folder / "libdsplan_cuda.so"
    if tests is None or not plugin.exists():
        return False, "no dsplan_device_tests or no plugin beside dsplan"
    try:
        done = subprocess.run([tests, "--no-intro", "--test-case=*communicator of one rank*", "--success=false"],
                              env={**os.environ, "DSPLAN_TEST_BACKEND": str(plugin)}, capture_output=True, text=True,
                              check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False, "out of time"
    took = [line.split("MESSAGE: ", 1)[1] for line in done.stdout.splitlines() if "MESSAGE: " in line]
    return done.returncode == 0, "; ".join(took) or last_words(done.stdout + done.stderr)


def ways(backend):
    """(name, ranks, options, variables of a rank)."""
    if backend == "host":
        for ranks, stage in ((2, 3), (4, 2)):
            yield (f"tcp-w{ranks}-z{stage}", ranks, f"{PLAN} --backend host --transport tcp --zero-stage {stage}",
                   lambda rank: {})
        return
    nccl = f"{PLAN} --backend cuda --transport nccl --nccl-max-ctas 1 "
    loop = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    one = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    for stage in (1, 3):
        yield (f"two-hosts-on-one-gpu-z{stage}", 2, nccl + f"--zero-stage {stage}",
               lambda rank: {**loop, **one, "NCCL_HOSTID": f"host-{rank}"})
    yield ("several-ranks-on-one-gpu", 2, nccl + "--zero-stage 1",
           lambda rank: {**loop, **one, "NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    count = gpus()
    for ranks in sorted({2, count} if count > 1 else ()):
        for stage in (1, 2, 3):
            yield (f"{ranks}-gpus-z{stage}", ranks, f"{PLAN} --backend cuda --transport nccl --zero-stage {stage}",
                   lambda rank: {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dsplan", required=True)
    parser.add_argument("--backend", choices=("cuda", "host"), required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--each", type=float, default=60, help="seconds that one way may take")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    good, rows = 0, 0
    if given.backend == "cuda":
        ok, text = alone(given.dsplan, min(given.each, given.seconds))
        print(f"{'ok' if ok else 'no':3} one-rank: {text}", flush=True)
        good, rows = good + ok, rows + 1
    for name, ranks, words, each in ways(given.backend):
        left = min(given.each, until - time.monotonic())
        rows += 1
        if left < 5:
            print(f"no  {name}: no time was left", flush=True)
            continue
        codes, text = launch(str(pathlib.Path(given.dsplan).resolve()), ranks, words, left, each)
        ok = not any(codes)
        good += ok
        took = [line for line in text.splitlines() if line.startswith("communicators of rank 0")]
        print(f"{'ok' if ok else 'no':3} {name}: {(took or ['all agree'])[0] if ok else f'exit codes {codes}: {last_words(text)}'}",
              flush=True)
    print(f"finding: {good} of {rows} ways to run ranks as processes went through")
    return 4 if given.backend == "host" and good < rows else 0


if __name__ == "__main__":
    sys.exit(main())
