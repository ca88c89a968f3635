#include "planner/predict/phases.h"

#include <algorithm>
#include <map>

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

std::vector<Phase> with_allocator(std::vector<Phase> phases, const Schedule& schedule, const Placement& placement) {
  std::map<std::size_t, const PlacementMark*> at;
  for (const PlacementMark& mark : placement.marks) at[mark.event] = &mark;
  for (Phase& phase : phases) {
    for (PhaseMark& mark : phase.marks) {
      const PlacementMark& seen = *at.at(mark.event);
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
      phase.peak_allocated = std::max(phase.peak_allocated, most.allocated);
      phase.peak_active = std::max(phase.peak_allocated, most.active);
      phase.peak_reserved = most.reserved;
    }
  }
  return phases;
}

}  // namespace dsplan
