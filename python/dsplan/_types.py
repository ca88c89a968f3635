"""Results, as the program's schema describes them. Made by tools/python_types; edit that."""
from dataclasses import dataclass
from typing import Literal, Mapping, Optional, Tuple, Union

from ._record import Record
from ._view import ComparisonView, PredictionView, SearchView, SweepPointView, SweepView

__all__ = [
    "AboveInputs",
    "Advice",
    "AllocatorRemedy",
    "Assumption",
    "Change",
    "Collective",
    "ComparedRank",
    "ComparedReceipt",
    "ComparedRow",
    "Comparison",
    "Fragmentation",
    "HeldForBackward",
    "HostMemory",
    "Impossible",
    "LiveBuffer",
    "LongRun",
    "LossSpike",
    "Memory",
    "MemoryPhase",
    "ModuleBytes",
    "NotModelled",
    "OtherWay",
    "ParameterCounts",
    "PeakMemory",
    "PersistentMemory",
    "PhaseMark",
    "PhasePart",
    "PhaseTime",
    "PinningBlock",
    "Plan",
    "PlanChange",
    "PlanSettings",
    "PlanTime",
    "PlannedArena",
    "Prediction",
    "PrintedUsage",
    "RoleBytes",
    "SavedTensor",
    "Search",
    "SearchAxis",
    "SearchCounts",
    "SearchSpace",
    "Segment",
    "StateCounts",
    "States",
    "StepTime",
    "Strata",
    "Sweep",
    "SweepAxis",
    "SweepPoint",
    "TrafficTerm",
    "Uncertainty"
]


@dataclass(frozen=True)
class ParameterCounts(Record):
    """Units:

    total: parameters.
    trainable: parameters.
    """

    total: int
    trainable: int


@dataclass(frozen=True)
class States(Record):
    """Parameters, gradients and optimizer states.

    parameters: bytes.
    gradients: bytes.
    optimizer: bytes.
    total: bytes.
    """

    parameters: int
    gradients: int
    optimizer: int
    total: int


@dataclass(frozen=True)
class PersistentMemory(Record):
    """What stays between steps, by role.

    total: bytes.
    parameters: bytes.
    gradients: bytes.
    optimizer: bytes.
    runtime_buffers: bytes.
    activations: bytes.
    temporaries: bytes.
    inputs: bytes.
    module_buffers: bytes.
    workspace: bytes.
    allocated: bytes.
    """

    total: int
    parameters: int
    gradients: int
    optimizer: int
    runtime_buffers: int
    activations: int
    temporaries: int
    inputs: int
    module_buffers: int
    workspace: int
    allocated: Optional[int]


@dataclass(frozen=True)
class RoleBytes(Record):
    """Units:

    parameters: bytes.
    gradients: bytes.
    optimizer: bytes.
    runtime_buffers: bytes.
    activations: bytes.
    temporaries: bytes.
    inputs: bytes.
    module_buffers: bytes.
    workspace: bytes.
    """

    parameters: int
    gradients: int
    optimizer: int
    runtime_buffers: int
    activations: int
    temporaries: int
    inputs: int
    module_buffers: int
    workspace: int


@dataclass(frozen=True)
class ModuleBytes(Record):
    """Units:

    bytes: bytes.
    """

    module: str
    bytes: int


@dataclass(frozen=True)
class LiveBuffer(Record):
    """Units:

    bytes: bytes.
    count: buffers.
    """

    name: str
    module: str
    role: str
    bytes: int
    count: int
    rule: str


@dataclass(frozen=True)
class SavedTensor(Record):
    """Units:

    bytes: bytes.
    count: buffers.
    counted_bytes: bytes.
    """

    node: str
    module: str
    name: str
    tensor: str
    bytes: int
    count: int
    counted_bytes: int
    storage: Literal["own", "shared", "parameter"]


@dataclass(frozen=True)
class HeldForBackward(Record):
    """What forward leaves for backward.

    total: bytes.
    """

    total: int
    by_role: RoleBytes
    by_module: Tuple[ModuleBytes, ...]
    largest: Tuple[LiveBuffer, ...]
    saved: Optional[Tuple[SavedTensor, ...]] = None


@dataclass(frozen=True)
class PeakMemory(Record):
    """The moment at which most is requested. `process` is what the driver shows.

    requested: bytes.
    allocated: bytes.
    active: bytes.
    reserved: bytes.
    reserved_low: bytes.
    process: bytes.
    process_high: bytes.
    event_index: index of the schedule's event.
    reserved_expected: bytes.
    """

    requested: int
    allocated: int
    active: int
    reserved: Optional[int]
    reserved_low: Optional[int]
    process: Optional[int]
    process_high: Optional[int]
    phase: str
    event: str
    event_index: int
    by_role: RoleBytes
    live: Tuple[LiveBuffer, ...]
    reserved_expected: Optional[int] = None


@dataclass(frozen=True)
class LossSpike(Record):
    """Units:

    requested: bytes.
    """

    requested: int
    at: str
    live: Tuple[LiveBuffer, ...]


@dataclass(frozen=True)
class PhasePart(Record):
    """Units:

    peak_requested: bytes.
    peak_allocated: bytes.
    peak_active: bytes.
    peak_reserved: bytes.
    """

    name: str
    peak_requested: int
    peak_allocated: int
    peak_active: int
    peak_reserved: int


@dataclass(frozen=True)
class PhaseMark(Record):
    """A moment of a phase, between which no peak is hidden.

    requested: bytes.
    allocated: bytes.
    active: bytes.
    reserved: bytes.
    """

    name: str
    requested: int
    allocated: int
    active: int
    reserved: int


@dataclass(frozen=True)
class PrintedUsage(Record):
    """What DeepSpeed's see_memory_usage prints.

    allocated: bytes.
    max_allocated: bytes.
    reserved: bytes.
    max_reserved: bytes.
    """

    name: str
    allocated: int
    max_allocated: int
    reserved: int
    max_reserved: int


@dataclass(frozen=True)
class MemoryPhase(Record):
    """Initialisation, the first step, or each step after.

    peak_requested: bytes.
    peak_allocated: bytes.
    peak_active: bytes.
    peak_reserved: bytes.
    requested_total: bytes.
    allocations: allocations.
    host_requested_total: bytes.
    """

    name: str
    parts: Tuple[PhasePart, ...]
    marks: Tuple[PhaseMark, ...]
    see_memory_usage: Tuple[PrintedUsage, ...]
    peak_requested: int
    peak_allocated: int
    peak_active: int
    peak_reserved: int
    requested_total: Optional[int]
    allocations: Optional[int]
    host_requested_total: Optional[int]


@dataclass(frozen=True)
class HostMemory(Record):
    """Memory and files of the host, of one rank and of its node.

    pinned: bytes.
    pinned_requested: bytes.
    pageable: bytes.
    peak: bytes.
    per_node: bytes.
    nvme: bytes.
    nvme_per_node: bytes.
    nvme_read: bytes.
    nvme_written: bytes.
    """

    pinned: Optional[int]
    pinned_requested: Optional[int]
    pageable: Optional[int]
    peak: Optional[int]
    per_node: Optional[int]
    nvme: Optional[int]
    nvme_per_node: Optional[int]
    nvme_read: Optional[int]
    nvme_written: Optional[int]
    verdict: Literal["fits", "does_not_fit", "unknown"]
    verdict_reason: str
    nvme_verdict: Literal["fits", "does_not_fit", "unknown"]
    nvme_verdict_reason: str


@dataclass(frozen=True)
class PinningBlock(Record):
    """Units:

    address: address in the device's memory.
    requested: bytes.
    size: bytes.
    """

    name: str
    module: str
    role: str
    address: int
    requested: int
    size: int


@dataclass(frozen=True)
class Segment(Record):
    """Units:

    address: address in the device's memory.
    size: bytes.
    free: bytes.
    blocks: blocks.
    """

    address: int
    size: int
    free: int
    blocks: int
    pins: Tuple[PinningBlock, ...]


@dataclass(frozen=True)
class AllocatorRemedy(Record):
    """Units:

    reserved: bytes.
    """

    conf: str
    reserved: int
    fits: Optional[bool]


@dataclass(frozen=True)
class Fragmentation(Record):
    """What lies between requested and reserved bytes.

    event_index: index of the schedule's event.
    reserved: bytes.
    requested: bytes.
    slack: bytes.
    awaiting: bytes.
    inactive_split: bytes.
    cached: bytes.
    segments_in_use: bytes.
    """

    event: str
    event_index: int
    reserved: int
    requested: int
    slack: int
    awaiting: int
    inactive_split: int
    cached: int
    segments_in_use: int
    segments: Tuple[Segment, ...]
    remedies: Tuple[AllocatorRemedy, ...]


@dataclass(frozen=True)
class PlannedArena(Record):
    """Units:

    height: bytes.
    lower_bound: bytes.
    reserved: bytes.
    saved: bytes.
    buffers: buffers.
    """

    height: int
    lower_bound: int
    reserved: int
    saved: int
    buffers: int


@dataclass(frozen=True)
class Memory(Record):
    states: States
    persistent: PersistentMemory
    held_for_backward: Optional[HeldForBackward]
    peak: Optional[PeakMemory]
    loss_spike: Optional[LossSpike]
    phases: Optional[Tuple[MemoryPhase, ...]]
    host: HostMemory
    fragmentation: Optional[Fragmentation] = None
    planned: Optional[PlannedArena] = None


@dataclass(frozen=True)
class Collective(Record):
    """Calls of one kind in one optimizer step.

    calls: calls of one optimizer step.
    payload_bytes: bytes.
    wire_bytes: bytes.
    """

    collective: Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv"]
    group: Literal["dp", "tp", "sp", "ep", "dp_intra", "dp_inter"]
    phase: Literal["init", "forward", "backward", "step", "save"]
    dtype: str
    kind: Literal["data", "control"]
    calls: int
    payload_bytes: int
    wire_bytes: int


@dataclass(frozen=True)
class PhaseTime(Record):
    """Units:

    seconds: seconds.
    compute_seconds: seconds.
    recompute_seconds: seconds.
    launch_seconds: seconds.
    exposed_seconds: seconds.
    hidden_seconds: seconds.
    host_seconds: seconds.
    """

    name: Literal["forward", "backward", "step"]
    seconds: float
    compute_seconds: float
    recompute_seconds: float
    launch_seconds: float
    exposed_seconds: float
    hidden_seconds: float
    host_seconds: float


@dataclass(frozen=True)
class StepTime(Record):
    """One optimizer step, estimated from `low_seconds` to `high_seconds`.

    seconds: seconds.
    low_seconds: seconds.
    high_seconds: seconds.
    tokens_per_second: tokens per second.
    model_flops: FLOPs of one optimizer step.
    hardware_flops: FLOPs of one optimizer step.
    mfu: share of the device's peak rate.
    hfu: share of the device's peak rate.
    """

    basis: str
    calibrated: bool
    seconds: float
    low_seconds: float
    high_seconds: float
    tokens_per_second: float
    model_flops: float
    hardware_flops: float
    mfu: float
    hfu: float
    phases: Tuple[PhaseTime, ...]


@dataclass(frozen=True)
class Advice(Record):
    """Units:

    costs_bytes: bytes.
    """

    rule: str
    key: str
    costs_bytes: int
    text: str


@dataclass(frozen=True)
class Assumption(Record):
    """An input that nobody gave, and the option that gives it."""

    name: str
    value: str
    reason: str
    option: str


@dataclass(frozen=True)
class NotModelled(Record):
    """What the prediction leaves out, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class Uncertainty(Record):
    """Units:

    bytes: bytes.
    """

    what: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Change(Record):
    """Units:

    process: bytes.
    speed: speed as a share of this job's.
    """

    options: str
    verdict: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "unknown"]
    process: int
    speed: Optional[float]
    note: str


@dataclass(frozen=True)
class LongRun(Record):
    """Units:

    steps: optimizer steps.
    period: optimizer steps.
    reserved: bytes.
    retries: allocator retries.
    retries_period: allocator retries.
    first_retry_step: optimizer step from 1, 0 for none.
    failed_step: optimizer step from 1, 0 for none.
    """

    steps: int
    repeats: bool
    period: int
    reserved: int
    retries: int
    retries_period: int
    first_retry_step: int
    failed_step: int
    verdict: Literal["fits", "fits_with_retries", "does_not_fit", "unknown"]


@dataclass(frozen=True)
class AboveInputs(Record):
    """Units:

    after_forward: bytes.
    forward_peak: bytes.
    backward_peak: bytes.
    after_backward: bytes.
    """

    after_forward: int
    forward_peak: int
    backward_peak: Optional[int]
    after_backward: Optional[int]


@dataclass(frozen=True)
class TrafficTerm(Record):
    """Units:

    wire_bytes: bytes.
    """

    what: str
    wire_bytes: int
    why: str


@dataclass(frozen=True, repr=False)
class Prediction(PredictionView):
    """What one rank takes: the answer of `dsplan simulate`.

    world_size: ranks.
    rank: index from 0.
    uncertainty_bytes: bytes.
    retries: allocator retries.
    retries_low: allocator retries.
    capacity_bytes: bytes.
    reserve_bytes: bytes.
    context_bytes: bytes.
    communicators_bytes: bytes.
    needed_bytes: bytes.
    shortfall_bytes: bytes.
    retries_expected: allocator retries.
    """

    schema: Literal["dsplan.prediction/1"]
    fingerprint: str
    model: str
    world_size: int
    rank: int
    verdict: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "unknown"]
    verdict_reason: str
    fits: Optional[bool]
    host_verdict: str
    uncertainty_bytes: int
    retries: int
    retries_low: int
    capacity_bytes: Optional[int]
    reserve_bytes: int
    context_bytes: Optional[int]
    communicators_bytes: Optional[int]
    parameters: ParameterCounts
    memory: Memory
    communication: Optional[Tuple[Collective, ...]]
    time: Optional[StepTime]
    advice: Tuple[Advice, ...]
    assumptions: Tuple[Assumption, ...]
    not_modelled: Tuple[NotModelled, ...]
    needed_bytes: Optional[int] = None
    shortfall_bytes: Optional[int] = None
    first_failure: Optional[str] = None
    uncertainty: Optional[Tuple[Uncertainty, ...]] = None
    changes: Optional[Tuple[Change, ...]] = None
    retries_expected: Optional[int] = None
    long_run: Optional[LongRun] = None
    long_run_expected: Optional[LongRun] = None
    above_inputs: Optional[AboveInputs] = None
    traffic_terms: Optional[Tuple[TrafficTerm, ...]] = None


@dataclass(frozen=True)
class StateCounts(Record):
    """Units:

    equal: rows of the table.
    within: rows of the table.
    differs: rows of the table.
    not_measured: rows of the table.
    not_predicted: rows of the table.
    """

    equal: int
    within: int
    differs: int
    not_measured: int
    not_predicted: int


@dataclass(frozen=True)
class ComparedRow(Record):
    """Units:

    predicted: bytes, a count or a word, as `kind` says.
    measured: bytes, a count or a word, as `kind` says.
    explained: in the unit of `kind`.
    unexplained: in the unit of `kind`.
    tolerance: in the unit of `kind`.
    """

    row: str
    kind: Literal["requested", "allocated", "active", "reserved", "process", "host", "calls", "payload", "wire", "parameters", "verdict"]
    predicted: Optional[Union[int, str]]
    measured: Optional[Union[int, str]]
    explained: Optional[int]
    by: Tuple[str, ...]
    unexplained: Optional[int]
    tolerance: Optional[int]
    state: Literal["equal", "within", "differs", "not_measured", "not_predicted"]
    note: str


@dataclass(frozen=True)
class ComparedRank(Record):
    """Units:

    rank: index from 0.
    """

    rank: int
    counts: StateCounts
    rows: Tuple[ComparedRow, ...]


@dataclass(frozen=True)
class ComparedReceipt(Record):
    receipt: str
    path: str
    source: str
    level: str
    device: str
    part: str
    strata: Tuple[str, ...]
    fingerprint: str
    complete: bool
    outcome: str
    verdict: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "unknown"]
    refused: Optional[str]
    differs: bool
    notes: Tuple[str, ...]
    stale: Tuple[str, ...]
    ranks: Tuple[ComparedRank, ...]


@dataclass(frozen=True)
class Strata(Record):
    """Units:

    cases: compared jobs.
    equal: compared jobs.
    unexplained: compared jobs.
    median_percent: percent.
    worst_percent: percent.
    """

    stratum: str
    device: str
    row: str
    cases: int
    equal: int
    unexplained: int
    median_percent: Optional[float]
    worst_percent: Optional[float]
    evidence: Literal["sufficient", "insufficient"]


@dataclass(frozen=True, repr=False)
class Comparison(ComparisonView):
    """The answer of `dsplan compare --re-predict`: measured against predicted, row by row."""

    schema: Literal["dsplan.comparison/1"]
    differs: bool
    receipts: Tuple[ComparedReceipt, ...]
    strata: Tuple[Strata, ...]


@dataclass(frozen=True)
class SearchAxis(Record):
    values: Tuple[Union[str, int], ...]
    origin: Literal["given", "derived", "assumed"]
    reason: str


@dataclass(frozen=True)
class SearchSpace(Record):
    """Units:

    global_batch: rows of one optimizer step.
    """

    gpus: SearchAxis
    zero_stage: SearchAxis
    offload: SearchAxis
    tp: SearchAxis
    loss: SearchAxis
    reduce_bucket_size: SearchAxis
    micro_batch: SearchAxis
    checkpoint: SearchAxis
    global_batch: Optional[int]


@dataclass(frozen=True)
class Impossible(Record):
    """Units:

    count: candidates.
    """

    why: str
    count: int


@dataclass(frozen=True)
class SearchCounts(Record):
    """Units:

    candidates: candidates.
    impossible: candidates.
    too_large_by_bound: candidates.
    slower: candidates.
    simulated: candidates.
    """

    candidates: int
    impossible: int
    too_large_by_bound: int
    slower: int
    simulated: int
    why_impossible: Tuple[Impossible, ...]


@dataclass(frozen=True)
class PlanSettings(Record):
    """Units:

    gpus: GPUs.
    zero_stage: ZeRO stage, or fsdp2 or hsdp.
    tp: ranks of a tensor-parallel group.
    reduce_bucket_size: elements.
    micro_batch: rows.
    grad_accum: micro-batches.
    seq: tokens.
    """

    gpus: int
    zero_stage: Union[int, str]
    offload: str
    tp: int
    loss: str
    reduce_bucket_size: int
    micro_batch: int
    checkpoint: str
    grad_accum: int
    seq: int


@dataclass(frozen=True)
class PlanTime(Record):
    """Units:

    total_s: seconds.
    low_s: seconds.
    high_s: seconds.
    tokens_per_second: tokens per second.
    mfu: share of the device's peak rate.
    hfu: share of the device's peak rate.
    """

    total_s: float
    low_s: float
    high_s: float
    tokens_per_second: float
    mfu: float
    hfu: float
    kind: Literal["estimated", "calibrated"]


@dataclass(frozen=True)
class Plan(Record):
    """One configuration of a search and how it ended.

    world_size: ranks.
    dp: ranks.
    least_process_bytes: bytes.
    process_bytes: bytes.
    missing_bytes: bytes.
    host_bytes_per_node: bytes.
    nvme_bytes_per_node: bytes.
    wire_bytes_per_step: bytes.
    """

    settings: PlanSettings
    world_size: int
    dp: int
    fate: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "too_large", "unknown", "refused", "slower"]
    reason: str
    time: Optional[PlanTime]
    least_process_bytes: Optional[int]
    process_bytes: Optional[int]
    missing_bytes: Optional[int]
    host_bytes_per_node: Optional[int]
    nvme_bytes_per_node: Optional[int]
    wire_bytes_per_step: Optional[int]


@dataclass(frozen=True)
class PlanChange(Record):
    """A plan that differs from the chosen one in `changed`.

    speed: speed as a share of the chosen plan's.
    world_size: ranks.
    dp: ranks.
    least_process_bytes: bytes.
    process_bytes: bytes.
    missing_bytes: bytes.
    host_bytes_per_node: bytes.
    nvme_bytes_per_node: bytes.
    wire_bytes_per_step: bytes.
    """

    changed: Tuple[str, ...]
    speed: float
    settings: PlanSettings
    world_size: int
    dp: int
    fate: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "too_large", "unknown", "refused", "slower"]
    reason: str
    time: Optional[PlanTime]
    least_process_bytes: Optional[int]
    process_bytes: Optional[int]
    missing_bytes: Optional[int]
    host_bytes_per_node: Optional[int]
    nvme_bytes_per_node: Optional[int]
    wire_bytes_per_step: Optional[int]


@dataclass(frozen=True)
class OtherWay(Record):
    """Units:

    process_bytes: bytes.
    """

    options: str
    verdict: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "unknown"]
    process_bytes: int
    note: str


@dataclass(frozen=True, repr=False)
class Search(SearchView):
    """The answer of `dsplan plan`: the fastest configuration that fits, and what else there is.

    found: of what the objective counts.
    budget_bytes: bytes.
    limit_bytes: bytes.
    """

    schema: Literal["dsplan.search/1"]
    model: str
    objective: Literal["tokens_per_second", "gpus", "micro_batch", "seq", "layers"]
    found: Optional[int]
    feasible: bool
    complete: bool
    budget_bytes: Optional[int]
    limit_bytes: int
    space: SearchSpace
    counts: SearchCounts
    chosen: Optional[Plan]
    prediction: Optional[Prediction]
    tight: Optional[Plan]
    next: Tuple[Plan, ...]
    neighbours: Tuple[PlanChange, ...]
    front: Tuple[Plan, ...]
    nearest: Optional[Plan]
    states: str
    remedies: Tuple[PlanChange, ...]
    other_ways: Tuple[OtherWay, ...]
    assumed: Tuple[str, ...]
    not_searched: Tuple[str, ...]
    advice: Tuple[Advice, ...]


@dataclass(frozen=True)
class SweepAxis(Record):
    """What changes from point to point, and its values as they were written."""

    name: str
    values: Tuple[str, ...]


@dataclass(frozen=True, repr=False)
class SweepPoint(SweepPointView):
    """One combination: `values` by axis, and what it takes. Figures of a refused one are None, with its `reason`.

    process_bytes: bytes.
    needed_bytes: bytes.
    shortfall_bytes: bytes.
    persistent_bytes: bytes.
    host_bytes_per_node: bytes.
    wire_bytes_per_step: bytes.
    tokens_per_second: tokens per second.
    step_seconds: seconds.
    capacity_bytes: bytes.
    uncertainty_bytes: bytes.
    retries: allocator retries.
    """

    values: Mapping[str, str]
    verdict: Literal["fits", "tight", "fits_with_retries", "does_not_fit", "unknown", "refused"]
    process_bytes: Optional[int]
    needed_bytes: Optional[int]
    shortfall_bytes: Optional[int]
    persistent_bytes: Optional[int]
    host_bytes_per_node: Optional[int]
    wire_bytes_per_step: Optional[int]
    tokens_per_second: Optional[float]
    step_seconds: Optional[float]
    reason: str
    capacity_bytes: Optional[int]
    uncertainty_bytes: Optional[int]
    retries: Optional[int]
    fingerprint: Optional[str]


@dataclass(frozen=True, repr=False)
class Sweep(SweepView):
    """The answer of `dsplan sweep`: every combination of values along axes, in their order, the last axis first."""

    schema: Literal["dsplan.sweep/1"]
    model: str
    axes: Tuple[SweepAxis, ...]
    points: Tuple[SweepPoint, ...]


#: The class of each schema.
SCHEMAS = {"dsplan.prediction/1": Prediction, "dsplan.comparison/1": Comparison, "dsplan.search/1": Search, "dsplan.sweep/1": Sweep}
