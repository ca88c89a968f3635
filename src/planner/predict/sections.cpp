#include "planner/predict/sections.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/format.h"
#include "planner/libraries/library_memory.h"
#include "planner/predict/live_buffers.h"
#include "planner/predict/traffic_terms.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// Of several middle steps the first stands for all, as its marks do.
void add_prints(const Schedule& schedule, const Placement& placement, Phase& phase) {
  const std::size_t begin = phase.marks.front().event;
  const std::size_t end = phase.marks.back().event;
  for (std::size_t at = 0; at < placement.prints.size(); ++at) {
    const FrameworkPrint& print = schedule.prints[at];
    if (print.event <= begin || print.event > end) continue;
    const PlacementPrint& seen = placement.prints[at];
    phase.prints.push_back({print.text, seen.allocated, seen.peak_allocated, seen.reserved, seen.peak_reserved});
  }
}

void raise(Stretched& to, const Stretched& by) {
  to.requested = std::max(to.requested, by.requested);
  to.allocated = std::max(to.allocated, by.allocated);
  to.active = std::max(to.active, by.active);
  to.reserved = std::max(to.reserved, by.reserved);
}

// What goes on up to a mark, by that mark; empty: no part of a step.
std::string_view part_before(std::string_view mark) {
  if (mark == name(Moment::ForwardBegins) || mark == name(Moment::ForwardEnds)) return name(StepPart::Forward);
  if (mark == name(Moment::BackwardBegins)) return name(StepPart::OutputsReleased);
  if (mark == name(Moment::BackwardEnds)) return name(StepPart::Backward);
  if (mark == name(Moment::StepEnds)) return name(StepPart::Step);
  return {};
}

void add_parts(Phase& phase) {
  for (const PhaseMark& mark : phase.marks) {
    const std::string_view part = part_before(mark.name);
    if (part.empty()) continue;
    const auto known =
        std::find_if(phase.parts.begin(), phase.parts.end(), [part](const PhasePart& one) { return one.name == part; });
    if (known != phase.parts.end()) {
      raise(known->peak, mark.since);
    } else {
      phase.parts.push_back({std::string(part), mark.since});
    }
  }
}

}  // namespace

Phase part_of(const Phase& phase, StepPart part) {
  Phase only;
  only.name = name(part);
  for (std::size_t at = 0; at < phase.marks.size(); ++at) {
    if (part_before(phase.marks[at].name) != name(part)) continue;
    // The level at which it begins, then where it ends.
    if (only.marks.empty() || only.marks.back().event != phase.marks[at - 1].event) {
      only.marks.push_back(phase.marks[at - 1]);
    }
    only.marks.push_back(phase.marks[at]);
  }
  for (const PhasePart& one : phase.parts) {
    if (one.name != name(part)) continue;
    only.parts.push_back(one);
    only.peak_requested = one.peak.requested;
    only.peak_allocated = one.peak.allocated;
    only.peak_active = one.peak.active;
    only.peak_reserved = one.peak.reserved;
  }
  return only;
}

std::optional<Phase> recording_micro_batch(const std::vector<Phase>& phases) {
  const auto first = std::find_if(phases.begin(), phases.end(),
                                  [](const Phase& phase) { return phase.name == name(Stretch::FirstStep); });
  if (first == phases.end()) return std::nullopt;
  Phase record;
  record.name = kRecord;
  Stretched peak;
  for (const PhaseMark& mark : first->marks) {
    record.marks.push_back(mark);
    if (record.marks.size() > 1) raise(peak, mark.since);
    if (mark.name == name(Moment::BackwardEnds)) break;
  }
  record.peak_requested = peak.requested;
  record.peak_allocated = peak.allocated;
  record.peak_active = peak.active;
  record.peak_reserved = peak.reserved;
  add_parts(record);
  return record;
}

std::vector<Phase> with_allocator(std::vector<Phase> phases, const Schedule& schedule, const Placement& placement,
                                  PlacementKind kind) {
  const bool frees_wait = kind == PlacementKind::Caching;
  std::map<std::size_t, const PlacementMark*> at;
  for (const PlacementMark& mark : placement.marks) at[mark.event] = &mark;
  for (Phase& phase : phases) {
    for (PhaseMark& mark : phase.marks) {
      const PlacementMark& seen = *at.at(mark.event);
      if (frees_wait) {
        mark.requested = seen.requested;
        mark.since.requested = std::max(mark.since.requested, seen.since.requested);
      }
      mark.allocated = seen.allocated;
      mark.active = seen.active;
      mark.reserved = seen.reserved;
      mark.since.allocated = std::max(mark.since.allocated, seen.since.allocated);
      mark.since.active = std::max(mark.since.allocated, seen.since.active);
      mark.since.reserved = seen.since.reserved;
    }
    add_parts(phase);
    add_prints(schedule, placement, phase);
    for (std::size_t i = 0; i < kStretches; ++i) {
      if (phase.name != name(static_cast<Stretch>(i))) continue;
      const PlacementPeaks& most = placement.by_stretch[i];
      if (frees_wait) phase.peak_requested = std::max(phase.peak_requested, most.requested);
      phase.peak_allocated = std::max(phase.peak_allocated, most.allocated);
      phase.peak_active = std::max(phase.peak_allocated, most.active);
      phase.peak_reserved = most.reserved;
    }
  }
  return phases;
}

namespace {

const std::optional<Window> kWholeRun;

const std::optional<Window>& window_of(const Evidence& evidence) {
  return evidence.readings ? evidence.readings->only : kWholeRun;
}

// Traffic of a step in steady state, as far as it is of this part: the moment at which outputs are released has none.
bool is_of(StepPart part, const TrafficRow& row) {
  switch (row.phase) {
    case Pass::Forward: return part == StepPart::Forward;
    case Pass::Backward:
    case Pass::Recompute: return part == StepPart::Backward;
    case Pass::Step: return part == StepPart::Step;
    default: return false;
  }
}

// Of initialisation, of saving or of a step.
Stretch stretch_of(const TrafficRow& row) {
  return row.phase == Pass::Setup ? Stretch::Init : row.phase == Pass::Save ? Stretch::Save : Stretch::SecondStep;
}

}  // namespace

bool leaves_second_step_out(const Evidence& evidence) {
  const std::optional<Window>& only = window_of(evidence);
  return only && !only->part && only->stretch != Stretch::SecondStep;
}

Persistent persistent_of(const Evidence& evidence) {
  const SharedEvidence& shared = evidence.shared;
  const bool by_rank = footprints_differ(shared.job.training);
  Persistent persistent{
      by_rank ? footprint(shared.model, shared.job, evidence.rank).persistent : shared.formulas.persistent,
      std::nullopt};
  // A schedule ends with the last step's last mark.
  if (evidence.readings) persistent.allocated = evidence.readings->placements.asked.marks.back().allocated;
  return persistent;
}

std::optional<HeldForBackward> held_of(const Evidence& evidence) {
  if (!evidence.readings || leaves_second_step_out(evidence)) return std::nullopt;
  if (!tells_what(evidence.shared.detail)) return HeldForBackward();
  return held_for_backward(evidence.readings->schedule, evidence.shared.model);
}

Bytes expected_reserved(const Readings& readings) {
  if (readings.expected) return peaks_of(readings.schedule, *readings.expected, readings.only).reserved;
  PlacementOptions timed = readings.options;
  timed.times = &*readings.times;
  return peaks_of(readings.schedule, place_again(readings.schedule, readings.placements, timed), readings.only)
      .reserved;
}

Peak peak_in(const Readings& readings, const ModelSpec& model, const DeviceRoom& room,
             const std::optional<PlannedArena>& arena) {
  const MemoryMeter& meter = readings.memory;
  const BothEnds& ends = readings.ends;
  const Bytes allocated = std::max(meter.peak_allocated(), ends.asked.allocated);
  return {
      .requested = meter.peak_requested(),
      .allocated = allocated,
      .active = std::max(allocated, ends.asked.active),
      .reserved = arena ? arena->height : ends.high.reserved,
      .reserved_low = arena ? arena->height : ends.low.reserved,
      .reserved_expected = arena || !readings.expected ? std::nullopt : std::optional(expected_reserved(readings)),
      .process = (arena ? arena->height : ends.asked.reserved) + room.beside(),
      .process_high = (arena ? arena->height : ends.high.reserved) + room.beside(),
      .phase = std::string(name(meter.peak_stretch())),
      .event = describe_moment(readings.schedule, model, meter.peak_event()),
      .event_index = meter.peak_event(),
      .by_role = meter.peak_by_role(),
      .live = tells_what(readings.detail)
                  ? group_live(readings.schedule, model, live_after(readings.schedule, meter.peak_event()))
                  : std::vector<LiveBuffer>(),
  };
}

std::optional<Peak> peak_of(const Evidence& evidence, const std::optional<PlannedArena>& arena) {
  if (!evidence.readings) return std::nullopt;
  return peak_in(*evidence.readings, evidence.shared.model, evidence.shared.room, arena);
}

std::optional<LossSpike> loss_spike_of(const Evidence& evidence) {
  if (!evidence.readings) return std::nullopt;
  if (!tells_what(evidence.shared.detail)) return LossSpike();
  return loss_spike(evidence.readings->schedule, evidence.shared.model);
}

std::optional<Fragmentation> fragmentation_of(const Evidence& evidence) {
  const SharedEvidence& shared = evidence.shared;
  if (!evidence.readings || !shared.job.explain_fragmentation) return std::nullopt;
  const Readings& readings = *evidence.readings;
  return explain_fragmentation(readings.schedule, shared.model, shared.job, readings.options, readings.ends.asked,
                               verdict_limit(shared.room));
}

std::optional<PlannedArena> arena_of(const Evidence& evidence) {
  if (!evidence.readings || evidence.shared.job.placement != PlacementKind::Planned) return std::nullopt;
  return plan_arena(evidence.readings->schedule, evidence.readings->placements.asked.peak.reserved);
}

// --phase: peaks and marks of one phase.
std::vector<Phase> phases_of(const Evidence& evidence) {
  if (!evidence.readings) return {};
  const Readings& readings = *evidence.readings;
  std::vector<Phase> phases = with_allocator(readings.memory.phases(), readings.schedule, readings.placements.asked,
                                             evidence.shared.job.placement);
  const Training& training = evidence.shared.job.training;
  const bool records = training.runtime == Runtime::DeepSpeed && training.zero.stage == 3;
  if (std::optional<Phase> record = records ? recording_micro_batch(phases) : std::nullopt) {
    const auto first = std::find_if(phases.begin(), phases.end(),
                                    [](const Phase& phase) { return phase.name == name(Stretch::FirstStep); });
    phases.insert(first + 1, std::move(*record));
  }
  if (!readings.only) return phases;
  const Window& only = *readings.only;
  std::erase_if(phases, [&](const Phase& phase) {
    if (phase.name == kRecord) return only.stretch != Stretch::FirstStep;
    return only.recording || phase.name != name(only.stretch);
  });
  if (!only.part) return phases;
  for (Phase& phase : phases) phase = part_of(phase, *only.part);
  return phases;
}

// --phase: the traffic of initialisation, of saving or of a step. No step is one that records.
std::optional<std::vector<TrafficRow>> communication_of(const Evidence& evidence) {
  const std::optional<Window>& only = window_of(evidence);
  if (!evidence.readings || (only && only->recording)) return std::nullopt;
  std::vector<TrafficRow> rows = evidence.traffic;
  if (!only) return rows;
  const bool step = only->stretch != Stretch::Init && only->stretch != Stretch::Save;
  const Stretch stretch = step ? Stretch::SecondStep : only->stretch;
  std::erase_if(
      rows, [&](const TrafficRow& row) { return only->part ? !is_of(*only->part, row) : stretch_of(row) != stretch; });
  return rows;
}

// They add up to a whole step.
std::vector<TrafficTerm> terms_of(const Evidence& evidence) {
  const std::optional<Window>& only = window_of(evidence);
  if (!evidence.readings || (only && (only->part || only->recording))) return {};
  return traffic_terms(evidence.shared.model, evidence.shared.job, evidence.traffic);
}

// What a prediction leaves out or leaves null, each with its reason.

namespace {

void list_tensor_parallel(const ModelSpec& model, const Job& job, std::vector<Absence>& not_modelled) {
  const Training& t = job.training;
  if (job.parallelism.tp == 1) return;
  if (model.dims.kv_heads % job.parallelism.tp != 0) {
    not_modelled.push_back({"communication.tp", "how ranks that share a key-value head bring its gradients together"});
  }
  if (t.runtime == Runtime::DeepSpeed && t.zero.stage == 0 && t.dtype != DType::Float32) {
    not_modelled.push_back({"memory.peak.temporaries",
                            "on tensor-parallel ranks other than the first, FP16_Optimizer masks what is replicated "
                            "when it takes the norm (runtime/utils.py, get_flattened_grad_norm)"});
  }
}

// Whatever the schedule.
void list_what_is_missing(const ModelSpec& model, const Job& job, std::vector<Absence>& not_modelled) {
  if (job.training.level == Level::Dispatch) {
    not_modelled.push_back({"kernel temporaries", "left out by --level dispatch"});
    not_modelled.push_back({"workspace", "the libraries' workspaces are left out by --level dispatch"});
  } else if (!job.hardware) {
    not_modelled.push_back(
        {"workspace", "no device is named: the size of cuBLAS's and cuBLASLt's workspaces depends on it"});
  } else if (model.recording) {
    not_modelled.push_back({"workspace", "the libraries' workspaces of a recorded module"});
  } else if (!library_workspaces(job)) {
    not_modelled.push_back({"workspace", formatted("the libraries' workspaces on {}", job.hardware->architecture)});
  }
  if (!job.context) {
    not_modelled.push_back({"context", "no device is named: an uncalibrated 600 MiB stand for its CUDA context"});
  }
  if (job.training.runtime == Runtime::DeepSpeed) {
    not_modelled.push_back({"eval", "forwards without gradients between steps; under ZeRO-3 they break the trace"});
    not_modelled.push_back({"resume", "loading a checkpoint, in which its tensors stand beside the engine's"});
  }
  if (job.training.zero.stage == 3 && job.training.zero.module_granularity_threshold > Elements(0)) {
    not_modelled.push_back({"stand-ins",
                            "under stage3_module_granularity_threshold a tensor of 4 bytes takes the place "
                            "of what a leaf module lets go of"});
  }
  if (ranks_differ(job.training, job.parallelism) && job.parallelism.nodes > 1 && offloads_optimizer(job.training)) {
    not_modelled.push_back({"memory.host.per_node", "ranks differ, and so do nodes: it is that of this rank's node"});
  }
  list_tensor_parallel(model, job, not_modelled);
}

void list_without_schedule(const SharedEvidence& shared, std::vector<Absence>& not_modelled) {
  const std::string& why = *shared.unsupported;
  not_modelled.push_back({"memory.host", why});
  if (!shared.formulas.batch_known) {
    not_modelled.push_back({"memory.persistent.inputs", formatted("the batch of the {} family", shared.model.family)});
  }
  not_modelled.push_back({"memory.held_for_backward", why});
  not_modelled.push_back({"memory.peak", why});
  not_modelled.push_back({"memory.loss_spike", why});
  not_modelled.push_back({"memory.phases", why});
  not_modelled.push_back({"memory.persistent.allocated", why});
  not_modelled.push_back({"communication", why});
  not_modelled.push_back({"time", why});
}

}  // namespace

std::vector<Absence> absences_of(const Evidence& evidence) {
  const SharedEvidence& shared = evidence.shared;
  std::vector<Absence> not_modelled;
  list_what_is_missing(shared.model, shared.job, not_modelled);
  if (!evidence.readings) {
    list_without_schedule(shared, not_modelled);
    return not_modelled;
  }
  for (const char* what : shared.shapes->recipes.front().unknown()) {
    not_modelled.push_back({"memory.peak.temporaries", formatted("{}: the GPU alone knows its size", what)});
  }
  if (!shared.time().time) not_modelled.push_back({"time", shared.time().why});
  if (!communication_of(evidence)) {
    not_modelled.push_back({"communication", "of a step in steady state, which --phase record leaves out"});
  }
  if (leaves_second_step_out(evidence)) {
    not_modelled.push_back({"memory.held_for_backward", "of the second step, which --phase leaves out"});
  }
  return not_modelled;
}

}  // namespace dsplan
