"""The part of docs/accuracy.md that is of the dry device: how many rows of the committed receipts are equal, and why the others part."""

import re
import statistics

from .verdicts import COMPARED, SMALL

BEGINS = "<!-- written by tools/dry/compare --page -->"
ENDS = "<!-- until here -->"

# Why requested or allocated bytes of a job part, or reserved ones by more than a thousandth, and where else in DeepSpeed or PyTorch it stands. The first that finds
# the job's name counts; a row that parts without a reason fails the check.
REASONS = [
    (
        r"^(axolotl|cut)/.*-sent-w24-",
        "into which free blocks the shards are put that rank 0 sends, where some are padded; what is asked for is equal",
    ),
    (r"^families/.*-hy3-.*-zero[23]$|^families/.*-granite-swash-2b-.*-zero3$", "not traced: up to 192 bytes of what is asked for; what is allocated is equal"),
    (
        r"^families/.*-ernie-3.0-base-zh-.*-full-a100$",
        "ernie makes the embedding of task types behind its buffers, and it is predicted before them: traced; what is asked for and allocated is equal",
    ),
    (r"^families/.*-dinov2-", "the workspace of a convolution, which cuDNN alone knows and was not asked for these pictures"),
    (
        r"^families/.*-(lfm2-.*b-(?!.*zero3)|nemotron-h-.*-(full|host)|nemotron-3-)|/chance-[78]-granite-4.0-h-|/chance-8-mamba2-130m-",
        "the convolution along a sequence first copies its input so that each channel's tokens lie together, and frees the copy when it has run: "
        "traced, not predicted; what is asked for at the peaks is equal",
    ),
    (
        r"^families/.*-lfm2-",
        "not traced: into which free blocks tensors are put; what is asked for is equal",
    ),
    (
        r"/.*gemma-4-26b-a4b-(text-s1024-b1|text-s500-b3-full|s600-)",
        "two runs of the same job part by 2 MiB: when Python's collector comes",
    ),
    (r"^families/.*-nemotron-h-56b-.*-zero3$", "not traced: 16 KiB of the first backward under ZeRO-3"),
    (r"^families/.*-deberta-v3-small-.*-convolved-full$", "not traced: 2 MiB of reserved memory; what is asked for and allocated is equal"),
    (
        r"^families/.*-(gemma-4|gemma-3n|nemotron-3|nemotron-h)-|^pictures/.*-gemma-4-.*-padded-",
        "not traced: into which free blocks tensors are put; what is asked for is equal",
    ),
    (r"/zero3-.*-qwz|/chance-7-phi-3-medium-", "into which free blocks quantized gathers are put: rests that are too small to be split off"),
    (
        r"/families-deepseek-v2-lite-s500-b3-full|/chance-deepseek-v2-lite-s3840-b1-59-",
        "not traced: into which free blocks tensors are put under checkpoints",
    ),
    (
        r"/fsdp-t5-base-.*-two-stacks-",
        "not traced: into which free blocks tensors are put where a decoder's groups are given what an encoder has made",
    ),
    (r"/pictures-llama-3.2-11b-vision-.*-crossing-zero3-clipped", "not traced: into which free blocks mllama's tensors are put in the second backward; what is asked for is equal"),
    (r"/pictures-llama-4-", "not traced: into which free blocks tensors are put from the first; what is asked for is equal"),
    (
        r"/(pictures|factory-pictures|chance-6|families)-(llava|mistral-small-3|glm-4.[156]v|idefics3)",
        "the dry device runs operators on small whole numbers a second time where a model sees pictures, and holds an operator's operands "
        "until it has returned: into which free blocks tensors are put",
    ),
    (
        r"/mixtures-qwen1.5-moe-.*-loop-zero3",
        "DeepSpeed waits for the parameters of a leaf module in the order of a Python set, which is that of their addresses: "
        "taken by their numbers all rows are equal, another order holds the buffers of several calls at once",
    ),
    (
        r"^mixtures/",
        "the dry device says by tensors of its own which tokens an expert is given, where PyTorch looks for them: into which free blocks the tensors "
        "of a loop over many experts are put",
    ),
    (
        r"/chance-4-olmo-2-13b-s3864-",
        "autocast copies a leaf once for all who read it, and the input of a reentrant checkpoint is a leaf while it runs again: "
        "traced, not predicted (layers whose products read that input itself)",
    ),
    (
        r"/chance-5-.*-qlora",
        "reference cycles of LLM.int8 that Python's collector has not found yet: with a collection at each phase's end all rows are equal",
    ),
    (
        r"/chance-5-moonlight-16b-a3b-",
        "init alone: zero.Init makes the routers' biases in bf16, and they are in fp32 here from the first",
    ),
    (
        r"/chance-6-whisper-.*-53-",
        "the leaf that a reentrant checkpoint recomputes from lies channel by channel, as whisper's convolution leaves it, and its gradient "
        "is copied into that order in every layer: traced, not predicted",
    ),
    (r"/chance-6-vit-", "not traced: one rounded block of a step"),
    (r"/families-olmo-3-7b-s512-b2-fsdp2", "the sum behind the gradient of a norm over all heads takes 33,554,560 bytes for a moment, which no rule here says"),
    (r"/chance-7-m2m100-", "layers are left out at random (layerdrop): the steps that are predicted run all of them, and take more"),
    (r"/chance-7-bert-base", "not traced: into which free blocks tensors are put; what is asked for is equal"),
    (
        r"/chance-8-(granite-3.1-3b-a800m|deepseek-v2)-|/chance-10-(llama-4-scout-text|olmo-2-1b-s3333)-",
        "events pending: what a copy's or NCCL's stream still uses is held until the host waits for it (DeepSpeed's engine of offloaded "
        "arguments; DDP's first bucket, which NCCL's watchdog keeps past the rebuilding)",
    ),
    (
        r"/chance-8-starcoder2-7b-",
        "reference cycles of quantized gathers that Python's collector has not found yet: two runs of the same job part by it",
    ),
    (
        r"/chance-8-gemma-4-26b-",
        "not traced: as much as three masks of eager attention, in forward",
    ),
    (
        r"/chance-8-(mistral-small-3|qwen2-vl|qwen2.5-vl|internvl)",
        "into which free blocks tensors are put behind a convolution's workspace, which cuDNN alone knows",
    ),
    (r"/chance-8-(ernie-4.5-21b|glm-4.7-flash)-", "not traced: tens of bytes of one step, and what a device's init holds for a moment"),
    (
        r"/chance-8-(whisper-tiny|mamba2-130m|qwen3-next|mt5|deepseek|minimax)",
        "not traced: into which free blocks tensors are put; what is asked for is equal",
    ),
    (
        r"/chance-9-gemma-2b-.*-qlora",
        "two bytes: the embedding's factor stays in the dtype that packed weights were loaded beside, and is in fp32 here",
    ),
    (
        r"/chance-9-(nllb-200|olmo-1b)-",
        "not traced: 8-bit Lion beside a hook that compresses in DistributedDataParallel, from the second step on",
    ),
    (
        r"/chance-9-llama-3.2-1b-|/chance-10-(gemma-4-e4b|qwen2-57b)",
        "not traced: into which free blocks tensors are put; what is asked for is equal",
    ),
    (
        r"/(adapters-.*-z3-save-ends|chance-3-stablelm-3b|zero3-.*-pending|zero3-families-qwen1.5-moe)",
        "not traced: into which free blocks tensors are put under ZeRO-3; what is asked for is equal",
    ),
    (r"^cut/cut-(ministral-3-3b|qwen3.5-9b)-.*-shown|^cut/cut-qwen2-7b-.*-qlora", "not traced: into which free blocks tensors are put; what is asked for is equal"),
    (r"^cut/cut-llama-3.2-1b-.*-a100-accum2", "not traced: into which free blocks tensors are put; what is asked for is equal"),
    (r"^heldout/", "not traced: rests of free blocks under ZeRO-3 on 32 ranks"),
]


def parts(row, what):
    return sum(measured != ours for measured, ours in (values[what] for values in row["phases"].values()))


def reserved_parts(row):
    """Phases whose reserved bytes part by more than a thousandth."""
    pairs = [values["reserved"] for values in row["phases"].values()]
    return sum(1000 * abs(measured - ours) > measured for measured, ours in pairs)


def most(row):
    pairs = [values[what] for values in row["phases"].values() for what in COMPARED[:2]]
    return max(abs(ours - measured) for measured, ours in pairs)


def reason_of(row):
    named = f"{row['stratum']}/{row['name']}"
    return next((why for pattern, why in REASONS if re.search(pattern, named)), None)


def counted(rows):
    """By stratum, then all: jobs, outcomes and rows that are equal."""
    yield "| stratum | jobs | outcome | requested | allocated | reserved |"
    yield "|---|---|---|---|---|---|"
    rows = [row for row in rows if "timed" not in row]
    for stratum in sorted({row["stratum"] for row in rows}) + ["all"]:
        mine = [row for row in rows if stratum in ("all", row["stratum"])]
        judged = [row["outcome"] for row in mine if "outcome" in row]
        all_rows = sum(len(row["phases"]) for row in mine)
        cells = [f"{all_rows - sum(parts(row, what) for row in mine):,} of {all_rows:,}" for what in COMPARED]
        equal = sum(a == b for a, b in judged)
        yield f"| {stratum} | {len(mine):,} | {equal:,} of {len(judged):,} | " + " | ".join(cells) + " |"


GROUPS = ("one GPU, all weights", "one GPU, adapters", "DDP", "ZeRO-0", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP2 and HSDP", "FSDP1")


def group_of(job):
    """The runtime of a job, and whether it has adapters: a row of the page's first table."""
    training = job["training"]
    if training.get("runtime") in ("fsdp1", "fsdp2", "hsdp"):
        return "FSDP1" if training["runtime"] == "fsdp1" else "FSDP2 and HSDP"
    if "deepspeed" in job:
        return f"ZeRO-{job['deepspeed'].get('zero_optimization', {}).get('stage', 0)}"
    if job.get("world", 1) > 1:
        return "DDP"
    return "one GPU, adapters" if training.get("lora") or training.get("quantization") else "one GPU, all weights"


def by_runtime(rows):
    """Rows that are equal by runtime, and the median and the worst error of all of them."""
    yield "| runtime | jobs | rows | requested: equal | median, worst | allocated: equal | median, worst | reserved: equal | median, worst |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for group in GROUPS:
        mine = [values for row in rows if "timed" not in row and group_of(row["job"]) == group for values in row["phases"].values()]
        jobs = sum("timed" not in row and bool(row["phases"]) and group_of(row["job"]) == group for row in rows)
        cells = []
        for what in COMPARED:
            errors = [100 * (ours - measured) / measured for measured, ours in (values[what] for values in mine) if measured]
            equal = sum(values[what][0] == values[what][1] for values in mine)
            worst = max(errors, key=abs, default=0)
            cells += [f"{equal:,}", f"{statistics.median(errors) if errors else 0:.2g} %, {worst:+.2g} %"]
        yield f"| {group} | {jobs:,} | {len(mine):,} | " + " | ".join(cells) + " |"


def explained(rows):
    found = {}
    for row in rows:
        differ = [parts(row, what) for what in COMPARED[:2]] + [reserved_parts(row)]
        if any(differ):
            found.setdefault(reason_of(row) or f"unexplained: {row['name']}", []).append((row["name"], differ, most(row)))
    yield "| rows: requested | allocated | by at most, bytes | reserved, by more than 0.1 % | jobs | why |"
    yield "|---|---|---|---|---|---|"
    for why, jobs in sorted(found.items(), key=lambda item: (-sum(d[0] for _, d, _ in item[1]), item[0])):
        sums = [sum(differ[at] for _, differ, _ in jobs) for at in (0, 1, 2)]
        names = f"`{jobs[0][0]}`" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
        by = max(bytes for _, _, bytes in jobs)
        yield f"| {sums[0]} | {sums[1]} | {by:,} | {sums[2]} | {names} | {why} |"


def pinned(rows):
    """PyTorch's own count of the host's pinned blocks; before 2.10 it counts requests of them."""
    pairs = [row["pinned"] for row in rows if row["phases"] and row["torch"].startswith(("2.10", "2.11"))]
    return f"Pinned bytes of the host under PyTorch 2.10 and 2.11: within 64 KiB in {sum(abs(a - b) < SMALL for a, b in pairs):,} of {len(pairs):,} jobs."


def between(rows):
    """Jobs on the dry device's clock: how far the expected reserved peak and the two ends are off."""
    jobs = [(row["name"], row["timed"]) for row in rows if "timed" in row]
    yield "| job | measured | expected | low end | high end |"
    yield "|---|---|---|---|---|"
    for name, (measured, *ours) in jobs:
        cells = " | ".join(f"{100 * (one - measured) / measured:+.1f} %" for one in ours)
        yield f"| `{name}` | {measured:,} | {cells} |"
    offs = [[abs(one - measured) / measured for one in ours] for _, (measured, *ours) in jobs]
    medians = [statistics.median(column) for column in zip(*offs)] if offs else []
    yield "| median, either way | | " + " | ".join(f"{100 * one:.1f} %" for one in medians) + " |"


def text(rows):
    left = [row for row in rows if row["status"] == "not predicted"]
    lines = [BEGINS, "", *counted(rows), "", "By runtime:", "", *by_runtime(rows), "", pinned(rows), "", "What parts in requested or allocated bytes, or in reserved ones by more than a thousandth, by name:", "", *explained(rows)]
    lines += ["", "Not predicted, as the prediction says: " + ", ".join(sorted(f"`{r['name']}`" for r in left)) + ".", ""]
    lines += ["Reserved bytes with `--events timed`, and what `reserved_expected` and the two ends say:", "", *between(rows)]
    return "\n".join([*lines, "", ENDS])


def put_into(page, rows):
    before, rest = page.split(BEGINS, 1)
    return before + text(rows) + rest.split(ENDS, 1)[1]
