#include "planner/predict/sections.h"

#include <algorithm>
#include <utility>

#include "planner/predict/live_buffers.h"
#include "planner/predict/phases.h"
#include "planner/predict/traffic_terms.h"

namespace dsplan {
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
  Persistent persistent{evidence.shared.formulas.persistent, std::nullopt};
  // A schedule ends with the last step's last mark.
  if (evidence.readings) persistent.allocated = evidence.readings->placements.asked.marks.back().allocated;
  return persistent;
}

std::optional<HeldForBackward> held_of(const Evidence& evidence) {
  if (!evidence.readings || leaves_second_step_out(evidence)) return std::nullopt;
  return held_for_backward(evidence.readings->schedule, evidence.shared.model);
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
      .process = (arena ? arena->height : ends.asked.reserved) + room.beside(),
      .process_high = (arena ? arena->height : ends.high.reserved) + room.beside(),
      .phase = std::string(name(meter.peak_stretch())),
      .event = describe_moment(readings.schedule, model, meter.peak_event()),
      .event_index = meter.peak_event(),
      .by_role = meter.peak_by_role(),
      .live = group_live(readings.schedule, model, live_after(readings.schedule, meter.peak_event())),
  };
}

std::optional<Peak> peak_of(const Evidence& evidence, const std::optional<PlannedArena>& arena) {
  if (!evidence.readings) return std::nullopt;
  return peak_in(*evidence.readings, evidence.shared.model, evidence.shared.room, arena);
}

std::optional<LossSpike> loss_spike_of(const Evidence& evidence) {
  if (!evidence.readings) return std::nullopt;
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
  std::vector<Phase> phases = with_allocator(readings.memory.phases(), readings.schedule, readings.placements.asked);
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

}  // namespace dsplan
