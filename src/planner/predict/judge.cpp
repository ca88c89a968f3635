#include "planner/predict/judge.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/format.h"
#include "planner/predict/nccl_memory.h"
#include "planner/predict/report_details.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {

namespace {

// One communicator whose calls go around rings, with the most channels: the high end.
constexpr Bytes kCommunicator = nccl_tables(kNcclChannels) + nccl_ring(kNcclChannels);

}  // namespace

Bytes context_of(const Job& job) { return job.context.value_or(kUncalibratedContext); }

Bytes communicators_of(const Job& job) {
  const Parallelism& parallel = job.parallelism;
  const std::int64_t groups = (parallel.dp > 1 ? 1 : 0) + (parallel.tp * parallel.sp > 1 ? 1 : 0);
  return job.communicators.value_or(kCommunicator * groups);
}

std::optional<VerdictLimit> verdict_limit(const Prediction& p) {
  if (!p.capacity) return std::nullopt;
  const Bytes beside = p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0)) + p.reserve;
  return VerdictLimit{beside < *p.capacity ? *p.capacity - beside : Bytes(0), *p.capacity};
}

PlacementOptions without_limit(const Job& job) {
  PlacementOptions options;
  options.config = job.allocator;
  options.config.memory_fraction.reset();  // A limit, too.
  options.frees = job.stream_frees;
  return options;
}

namespace {

// Saving included: what never exceeds a limit is the same under it.
Bytes most_of(const Placement& placement) {
  Bytes most = placement.peak.reserved;
  for (const PlacementPeaks& one : placement.by_stretch) most = std::max(most, one.reserved);
  return most;
}

}  // namespace

void judge(const Schedule& schedule, const ModelSpec& model, const Job& job, const BothPlacements& unlimited,
           Prediction& p) {
  const std::optional<VerdictLimit> limit = verdict_limit(p);
  if (!limit) {
    p.verdict = Verdict::Unknown;
    p.verdict_reason = "no capacity is known: name --hardware, --cluster or --capacity";
    return;
  }
  const Bytes most = unlimited.asked.peak.reserved;
  const bool fraction = job.allocator.memory_fraction.value_or(1) < 1;
  if (!fraction && most <= limit->limit) {
    p.verdict = Verdict::Fits;
    p.verdict_reason = formatted("{} of {} left", human(limit->limit - most), human(*p.capacity));
    return;
  }
  PlacementOptions options = without_limit(job);
  options.config = job.allocator;
  options.limit = limit->limit;
  options.device = limit->device;
  const Placement limited = place(schedule, options);
  p.retries = p.retries_low = limited.retries;
  if (limited.waited && options.frees == StreamFrees::AtSync) {
    const bool fits = !fraction && unlimited.other && most_of(*unlimited.other) <= limit->limit;
    p.retries_low = fits ? 0 : place(schedule, other_end(options)).retries;
  }
  if (limited.failed_event) {
    p.verdict = Verdict::DoesNotFit;
    p.verdict_reason = formatted("tried to allocate {}, {} missing, at {}", human(limited.failed_request),
                                 human(limited.missing), describe_moment(schedule, model, *limited.failed_event));
  } else if (limited.retries > 0) {
    p.verdict = Verdict::FitsWithRetries;
    p.verdict_reason = formatted("the allocator gives its cache back {} times to fit, first at {}", limited.retries,
                                 describe_moment(schedule, model, *limited.first_retry));
    if (p.retries_low < p.retries) {
      p.verdict_reason += formatted("; {} if frees that wait for another stream end at once",
                                    p.retries_low == 0 ? "not at all" : formatted("{} times", p.retries_low));
    }
  } else {
    p.verdict = Verdict::Fits;
    p.verdict_reason = formatted("at most {} reserved under the allocator's limits", human(limited.peak.reserved));
  }
}

namespace {

void judge_files(const NodeMemory& node, const Job& job, HostMemory& host) {
  host.nvme_capacity = job.nvme_memory;
  if (node.nvme == Bytes(0)) {
    host.nvme_verdict = Verdict::Fits;
    host.nvme_verdict_reason = "no files";
  } else if (!host.nvme_capacity) {
    host.nvme_verdict_reason = "what files may take is not known: name --nvme-memory or a cluster that has it";
  } else if (node.nvme > *host.nvme_capacity) {
    host.nvme_verdict = Verdict::DoesNotFit;
    host.nvme_verdict_reason = formatted("{} are missing for files on a node: {} ranks write {}",
                                         human(node.nvme - *host.nvme_capacity), node.ranks, human(node.nvme));
  } else {
    host.nvme_verdict = Verdict::Fits;
    host.nvme_verdict_reason =
        formatted("{} of {} for files left", human(*host.nvme_capacity - node.nvme), human(*host.nvme_capacity));
  }
}

}  // namespace

void add_host(const HostMeter& meter, const NodeMemory& node, const Job& job, Prediction& p) {
  HostMemory& host = p.host;
  host.pinned = meter.pinned();
  host.pinned_requested = meter.pinned_requested_peak();
  host.pageable = meter.pageable_peak();
  host.peak = meter.peak();
  host.per_node = node.peak;
  host.nvme = meter.nvme_peak();
  host.nvme_per_node = node.nvme;
  host.nvme_read = meter.nvme_read();
  host.nvme_written = meter.nvme_written();
  host.capacity = job.host_memory;
  if (!host.capacity) {
    host.verdict_reason = "the host's memory is not known: name --host-memory or a cluster that has it";
  } else if (*host.per_node > *host.capacity) {
    host.verdict = Verdict::DoesNotFit;
    host.verdict_reason =
        formatted("{} of host memory are missing on a node: {} ranks take {}{}", human(*host.per_node - *host.capacity),
                  node.ranks, human(*host.peak * node.ranks == *host.per_node ? *host.peak : *host.per_node),
                  *host.peak * node.ranks == *host.per_node ? " each" : "");
  } else {
    host.verdict = Verdict::Fits;
    host.verdict_reason =
        formatted("{} of {} of host memory left", human(*host.capacity - *host.per_node), human(*host.capacity));
  }
  judge_files(node, job, host);
}

void judge_host(const Job& job, Prediction& p) {
  const auto refute = [&p](Verdict verdict, const std::string& reason) {
    p.verdict = verdict;
    p.verdict_reason = reason;
  };
  const HostMemory& host = p.host;
  if (p.verdict == Verdict::DoesNotFit) return;
  if (host.verdict == Verdict::DoesNotFit) return refute(host.verdict, host.verdict_reason);
  if (host.nvme_verdict == Verdict::DoesNotFit) return refute(host.nvme_verdict, host.nvme_verdict_reason);
  if (offloads(job.training) && host.verdict == Verdict::Unknown) return refute(host.verdict, host.verdict_reason);
  if (host.nvme_verdict == Verdict::Unknown) refute(host.nvme_verdict, host.nvme_verdict_reason);
}

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

}  // namespace

namespace {

void raise(Stretched& to, const Stretched& by) {
  to.requested = std::max(to.requested, by.requested);
  to.allocated = std::max(to.allocated, by.allocated);
  to.active = std::max(to.active, by.active);
  to.reserved = std::max(to.reserved, by.reserved);
}

// What goes on up to a mark, by that mark; empty: no part of a step.
std::string_view part_before(std::string_view mark) {
  if (mark == name(Moment::ForwardBegins) || mark == name(Moment::ForwardEnds)) return name(StepPart::Forward);
  if (mark == name(Moment::BackwardBegins)) return name(StepPart::Turn);
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

PlacementPeaks peaks_of(const Schedule& schedule, const Placement& placement, const std::optional<Window>& only) {
  if (!only) return placement.peak;
  if (!only->part && !only->recording) return placement.by_stretch[static_cast<std::size_t>(only->stretch)];
  PlacementPeaks most;
  WindowWalk walk(*only);
  bool inside = false;
  for (const PlacementMark& mark : placement.marks) {
    if (inside) {
      most.allocated = std::max(most.allocated, mark.since.allocated);
      most.active = std::max(most.active, mark.since.active);
      if (mark.since.reserved > most.reserved) {
        most.reserved = mark.since.reserved;
        most.reserved_at = mark.since.reserved_at;
      }
    }
    inside = walk.inside_after(std::get<Mark>(schedule.events[mark.event]));
  }
  return most;
}

BothEnds ends_of(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options,
                 const std::optional<Window>& only) {
  const PlacementPeaks asked = peaks_of(schedule, both.asked, only);
  if (!both.other) return {asked, asked};
  const PlacementPeaks other = peaks_of(schedule, *both.other, only);
  return options.frees == StreamFrees::AtSync ? BothEnds{asked, other} : BothEnds{other, asked};
}

void add_peak(const Schedule& schedule, const ModelSpec& model, const Job& job, const MemoryMeter& meter,
              const BothEnds& ends, Prediction& p) {
  const Bytes beside = p.context.value_or(Bytes(0)) + p.communicators.value_or(Bytes(0));
  const PlacementPeaks& asked = job.stream_frees == StreamFrees::AtSync ? ends.high : ends.low;
  Peak peak;
  peak.requested = meter.peak_requested();
  peak.allocated = std::max(meter.peak_allocated(), asked.allocated);
  peak.active = std::max(peak.allocated, asked.active);
  peak.reserved = ends.high.reserved;
  peak.reserved_low = ends.low.reserved;
  peak.process = asked.reserved + beside;
  peak.process_high = ends.high.reserved + beside;
  peak.phase = name(meter.peak_stretch());
  peak.event_index = meter.peak_event();
  peak.event = describe_moment(schedule, model, meter.peak_event());
  peak.by_role = meter.peak_by_role();
  peak.live = group_live(schedule, model, live_after(schedule, meter.peak_event()));
  p.peak = std::move(peak);
}

}  // namespace dsplan
