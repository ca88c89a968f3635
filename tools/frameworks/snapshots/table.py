"""The runs that are recorded. Standard library only: who starts them needs no torch."""
import dataclasses

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Run:
    name: str
    about: str
    drive: str                # A function of drives.py.
    words: dict = dataclasses.field(default_factory=dict)
    conf: str = ""
    limit: int = 0            # Bytes that the process may reserve; 0: no limit.
    fails: bool = False       # Memory must run out at least once.
    alone: bool = False       # Takes the whole device.


EXPANDABLE = "expandable_segments:True"
VARYING = {"lengths": (700, 96, 512, 33, 640, 250, 1000, 18, 400, 128), "batch": 3}
LLAMA = {"family": "llama", "dtype": "bf16", "fused": True}

RUNS = [
    Run("gpt2", "three steps of a small gpt2 in fp32, foreach AdamW", "train"),
    Run("gpt2-expandable", "the same", "train", conf=EXPANDABLE),
    Run("llama", "three steps of a small llama in bf16, fused AdamW", "train", LLAMA),
    Run("llama-checkpointed", "the same, checkpointed", "train", {**LLAMA, "checkpointed": True}),
    Run("llama-expandable", "the same", "train", {**LLAMA, "checkpointed": True}, EXPANDABLE),
    Run("lengths", "ten steps of varying length", "train", {"family": "llama", **VARYING}),
    Run("lengths-expandable", "the same", "train", {"family": "llama", **VARYING}, EXPANDABLE),
    Run("lengths-split", "the same", "train", {"family": "llama", **VARYING}, "max_split_size_mb:24"),
    Run("lengths-roundup", "the same", "train", {"family": "llama", **VARYING}, "roundup_power2_divisions:4"),
    Run("lengths-emptied", "the same, empty_cache after every third step", "train",
        {"family": "gpt2", **VARYING, "empty_cache_after": (2, 5, 8)}),
    Run("fragments", "2000 tensors of all sizes", "fragment", {"seed": 1}),
    Run("fragments-expandable", "the same", "fragment", {"seed": 1}, EXPANDABLE),
    Run("fragments-split", "the same", "fragment", {"seed": 2}, "max_split_size_mb:32"),
    Run("fragments-rounding", "the same", "fragment", {"seed": 3}, "max_split_size_mb:32,max_non_split_rounding_mb:40"),
    Run("fragments-roundup", "the same", "fragment", {"seed": 4}, "roundup_power2_divisions:[64:8,256:4,>:1]"),
    Run("fragments-emptied", "the same, empty_cache now and then", "fragment", {"seed": 5, "empty_cache_every": 150}),
    Run("streams", "tensors of all sizes on four streams, used on others", "fragment", {"seed": 6, "streams": 4}),
    Run("streams-expandable", "the same", "fragment", {"seed": 6, "streams": 4}, EXPANDABLE),
    Run("prefetch", "batches and results copied on streams of their own", "prefetch"),
    Run("prefetch-expandable", "the same", "prefetch", conf=EXPANDABLE),
    Run("collected", "tensors of all sizes under a limit, with garbage collection", "fragment",
        {"seed": 7, "most_live": 600 * MIB}, "garbage_collection_threshold:0.6", limit=1024 * MIB),
    Run("retries", "tensors of all sizes under a limit: the cache is given back to fit", "fragment",
        {"seed": 8, "most_live": 500 * MIB}, limit=768 * MIB),
    Run("retries-expandable", "the same", "fragment", {"seed": 8, "most_live": 500 * MIB}, EXPANDABLE, 768 * MIB),
    Run("retries-streams", "the same on three streams", "fragment", {"seed": 9, "most_live": 500 * MIB, "streams": 3},
        limit=900 * MIB),
    Run("out-of-memory", "sequences grow until a step fails under a limit; two short steps after it",
        "until_out_of_memory", limit=2048 * MIB, fails=True),
    Run("out-of-memory-expandable", "the same", "until_out_of_memory", {}, EXPANDABLE, 2048 * MIB, True),
    Run("device-is-full", "the driver says no, three times", "device_is_full", fails=True, alone=True),
    Run("device-is-full-expandable", "the same", "device_is_full", {}, EXPANDABLE, fails=True, alone=True),
]


def run_named(name):
    return next(run for run in RUNS if run.name == name)
