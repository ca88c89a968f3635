"""Allocator traces (tests/data/allocator; the format stands in docs/allocator.md and src/io/allocator_trace.h) driven
through PyTorch's allocator on a GPU: tensors of the given sizes on the given streams, its counters after each call.

A device of the trace's capacity is a limit on this process (a memory fraction); what was driven is written down as a
trace of its own, with this device's capacity and that fraction, for `dsplan replay` to answer. Where such a limit is no
other than a small device (`counts_as_expected`) the counters must also be those that the trace expects.

`events_ready 0` is a sleeping kernel that every stream waits for.
"""
import math
import time

COLUMNS = "allocated,requested,active,reserved,inactive_split,segments,retries,ooms"
STATISTICS = (("allocated_bytes", "all", "current"), ("requested_bytes", "all", "current"),
              ("active_bytes", "all", "current"), ("reserved_bytes", "all", "current"),
              ("inactive_split_bytes", "all", "current"), ("segment", "all", "current"), ("num_alloc_retries",),
              ("num_ooms",))


class Trace:
    def __init__(self, text):
        lines = [line.split() for line in text.splitlines() if line.strip()]
        settings = {words[0]: words[1] for words in lines if words[0] in ("capacity", "conf", "fraction")}
        self.conf = settings.get("conf", "")
        self.capacity = int(settings["capacity"]) if "capacity" in settings else None
        self.fraction = float(settings["fraction"]) if "fraction" in settings else None
        self.calls = [words for words in lines if words[0] not in ("capacity", "conf", "fraction")]

    def limit(self, total):
        """Bytes that may be reserved; None: as many as there are."""
        if self.capacity is None and self.fraction is None:
            return None
        return int((1.0 if self.fraction is None else self.fraction) * (self.capacity or total))

    def counts_as_expected(self, expected):
        """Whether a limit instead of the trace's own device changes nothing. It switches garbage collection on; and a
        device that is full fails in the middle of mapping pages, a limit before."""
        if self.fraction is not None or self.capacity is None:
            return True
        ran_short = expected.rstrip().splitlines()[-1].split(",")[6:] != ["0", "0"]
        return "garbage_collection_threshold" not in self.conf and \
            not ("expandable_segments:True" in self.conf and ran_short)

    def as_driven(self, total, fraction):
        lines = [f"capacity {total}"]
        if self.conf:
            lines.append(f"conf {self.conf}")
        if fraction is not None:
            lines.append(f"fraction {fraction!r}")
        return "\n".join(lines + [" ".join(words) for words in self.calls]) + "\n"


def fraction_of(limit, total):
    """The fraction that, multiplied with the capacity and rounded down, is the limit."""
    fraction = min(1.0, limit / total)
    while fraction < 1 and int(fraction * total) < limit:
        fraction = min(1.0, math.nextafter(fraction, 2))
    return fraction


class CudaAllocator:
    """What a trace's calls are on a GPU."""

    def __init__(self, seconds):
        import torch
        self.torch, self.seconds = torch, seconds
        torch.cuda.init()
        self.total = torch.cuda.mem_get_info(0)[1]
        self.streams = {0: torch.cuda.default_stream(0)}
        self.gate_stream, self.gate = torch.cuda.Stream(), None

    def set_fraction(self, fraction):
        self.torch.cuda.set_per_process_memory_fraction(fraction, 0)

    def stream(self, number):
        if number not in self.streams:
            self.streams[number] = self.torch.cuda.Stream()
            if len({stream.cuda_stream for stream in self.streams.values()}) < len(self.streams):
                raise RuntimeError("more streams than PyTorch keeps apart")
            if self.gate is not None:
                self.streams[number].wait_event(self.gate)
        return self.streams[number]

    def allocate(self, size, stream):
        """A tensor, or None where memory ran out."""
        try:
            with self.torch.cuda.stream(self.stream(stream)):
                return self.torch.empty(size, dtype=self.torch.uint8, device="cuda:0")
        except self.torch.OutOfMemoryError:
            return None

    def record_stream(self, tensor, stream):
        tensor.record_stream(self.stream(stream))

    def empty_cache(self):
        self.torch.cuda.empty_cache()

    def synchronize(self):
        self.torch.cuda.synchronize(0)

    def close_gate(self):
        """From here on no stream gets on until the sleep is over."""
        cycles = int(self.seconds * 1.5e9)  # Clocks are a little faster; what counts is checked by `gate_is_open`.
        with self.torch.cuda.stream(self.gate_stream):
            self.torch.cuda._sleep(cycles)
            self.gate = self.torch.cuda.Event()
            self.gate.record(self.gate_stream)
        for stream in self.streams.values():
            stream.wait_event(self.gate)

    def open_gate(self):
        self.gate = None
        self.synchronize()

    def gate_is_open(self):
        return self.gate.query()

    def row(self):
        stats = self.torch.cuda.memory_stats_as_nested_dict(0)
        values = []
        for path in STATISTICS:
            value = stats
            for key in path:
                value = value[key]
            values.append(value)
        return values


class Late(Exception):
    """The gate opened while it should have been closed, because it took too long or because the allocator gave memory
    back to the driver, which waits for all streams: the counters may be wrong."""

    def __str__(self):
        return "the streams did not wait as long as they should"


def readiness(calls):
    """For each call whether recorded uses count as over at the first allocation at or behind it: the allocator asks at
    allocations only, and then of all events, those of frees before an `events_ready 0` among them."""
    states, ready = [], True
    for words in calls:
        if words[0] == "events_ready":
            ready = words[1] == "1"
        states.append(ready)
    following, last = [], True
    for words, state in zip(reversed(calls), reversed(states)):
        last = state if words[0] == "alloc" else last
        following.append(last)
    return following[::-1]


class Driver:
    """One trace on one allocator; `rows` are its counters after each call. `waiting`: the gate should be closed."""

    def __init__(self, allocator):
        self.allocator, self.tensors, self.rows, self.waiting = allocator, {}, [], False

    def run(self, calls):
        for words, ready in zip(calls, readiness(calls)):
            if words[0] == "events_ready":  # Has no row.
                continue
            self.set_gate(ready)
            self.call(*words)
            row = self.allocator.row()
            before = self.rows[-1] if self.rows else [0] * len(row)
            self.rows.append(row)
            # What gives everything back waits for all streams first; they then wait anew.
            if self.waiting and (words[0] == "empty_cache" or row[6:] != before[6:]):
                self.waiting = False
            self.check()

    def set_gate(self, ready):
        if ready:
            if self.waiting:
                self.allocator.open_gate()
            self.allocator.synchronize()  # What was recorded is done.
        elif not self.waiting:
            self.allocator.close_gate()
        self.waiting = not ready
        self.check()

    def check(self):
        if self.waiting and self.allocator.gate_is_open():
            raise Late()

    def call(self, what, *words):
        numbers = [int(word) for word in words]
        if what == "alloc":
            self.tensors[numbers[0]] = self.allocator.allocate(numbers[1], numbers[2])
        elif what == "free":
            self.tensors.pop(numbers[0], None)
        elif what == "record_stream":
            if self.tensors.get(numbers[0]) is not None:
                self.allocator.record_stream(self.tensors[numbers[0]], numbers[1])
        elif what == "empty_cache":
            self.allocator.empty_cache()
        else:
            raise ValueError(f"no call of a trace: {what}")


def csv_of(rows):
    return COLUMNS + "\n" + "".join(",".join(str(value) for value in row) + "\n" for row in rows)


def first_difference(ours, theirs):
    """"row 12: measured ..., expected ...", or None."""
    ours, theirs = ours.splitlines(), theirs.splitlines()
    for at in range(max(len(ours), len(theirs))):
        pair = [lines[at] if at < len(lines) else "nothing" for lines in (ours, theirs)]
        if pair[0] != pair[1]:
            return f"row {at}: measured {pair[0]}, expected {pair[1]}"
    return None


def drive(text, expected, allocator):
    """The entry of the index, the trace as driven, and the counters."""
    trace = Trace(text)
    limit = trace.limit(allocator.total)
    fraction = None if limit is None else fraction_of(limit, allocator.total)
    if fraction is not None:
        allocator.set_fraction(fraction)
    started = time.monotonic()
    driver = Driver(allocator)
    driver.run(trace.calls)
    measured = csv_of(driver.rows)
    # Frees wait no longer, whatever the trace ended with.
    allocator.open_gate()
    row = {"conf": trace.conf, "limit_bytes": limit, "calls": len(trace.calls),
           "seconds": round(time.monotonic() - started, 3), "comparable": trace.counts_as_expected(expected),
           "difference": first_difference(measured, expected)}
    return row, trace.as_driven(allocator.total, fraction), measured
