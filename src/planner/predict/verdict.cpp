#include "planner/predict/verdict.h"

#include <algorithm>
#include <utility>

#include "core/format.h"
#include "planner/zero/zero_facts.h"

namespace dsplan {
namespace {

// Saving included: what never exceeds a limit is the same under it.
Bytes most_of(const Placement& placement) {
  Bytes most = placement.peak.reserved;
  for (const PlacementPeaks& one : placement.by_stretch) most = std::max(most, one.reserved);
  return most;
}

// `asked` is how the allocator fared under its limits; `retries_low` at the low end.
Judgement judge_limited(const Readings& readings, const ModelSpec& model, const Placement& asked,
                        std::int64_t retries_low) {
  if (asked.failed_event) {
    return {Verdict::DoesNotFit,
            formatted("tried to allocate {}, {} missing, at {}", human(asked.failed_request), human(asked.missing),
                      describe_moment(readings.schedule, model, *asked.failed_event)),
            asked.retries, retries_low};
  }
  if (asked.retries == 0) {
    return {Verdict::Fits, formatted("at most {} reserved under the allocator's limits", human(asked.peak.reserved)), 0,
            retries_low};
  }
  std::string reason = formatted("the allocator gives its cache back {} times to fit, first at {}", asked.retries,
                                 describe_moment(readings.schedule, model, *asked.first_retry));
  if (retries_low < asked.retries) {
    reason += formatted("; {} if frees that wait for another stream end at once",
                        retries_low == 0 ? "not at all" : formatted("{} times", retries_low));
  }
  return {Verdict::FitsWithRetries, std::move(reason), asked.retries, retries_low};
}

Judgement judge_arena(const PlannedArena& arena, const DeviceRoom& room) {
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  if (!limit) return {};
  if (arena.height <= limit->limit) {
    return {Verdict::Fits, formatted("{} of {} left beside the planned arena", human(limit->limit - arena.height),
                                     human(*room.capacity))};
  }
  return {Verdict::DoesNotFit, formatted("the planned arena of {} is {} too large", human(arena.height),
                                         human(arena.height - limit->limit))};
}

Judgement judge_states(const SharedEvidence& shared) {
  const Bytes least = shared.formulas.persistent.total() + shared.room.beside() + shared.room.reserve;
  if (shared.room.capacity && least > *shared.room.capacity) {
    return {Verdict::DoesNotFit,
            formatted("the persistent state alone needs {} more than there is", human(least - *shared.room.capacity))};
  }
  return {Verdict::Unknown, formatted("only the states are predicted: not modelled yet: {}", *shared.unsupported)};
}

// What of the host changes a verdict on the device.
Judgement with_host(Judgement device, const HostMemory& host, const Job& job) {
  const auto instead = [&](Verdict verdict, const std::string& reason) {
    return Judgement{verdict, reason, device.retries, device.retries_low};
  };
  if (device.verdict == Verdict::DoesNotFit) return device;
  if (host.verdict == Verdict::DoesNotFit) return instead(host.verdict, host.verdict_reason);
  if (host.nvme_verdict == Verdict::DoesNotFit) return instead(host.nvme_verdict, host.nvme_verdict_reason);
  if (offloads(job.training) && host.verdict == Verdict::Unknown) return instead(host.verdict, host.verdict_reason);
  if (host.nvme_verdict == Verdict::Unknown) return instead(host.nvme_verdict, host.nvme_verdict_reason);
  return device;
}

struct HostVerdict {
  Verdict verdict = Verdict::Unknown;
  std::string reason;
};

HostVerdict judge_memory(Bytes own, const NodeMemory& node, const std::optional<Bytes>& capacity) {
  if (!capacity) {
    return {Verdict::Unknown, "the host's memory is not known: name --host-memory or a cluster that has it"};
  }
  if (node.peak <= *capacity) {
    return {Verdict::Fits, formatted("{} of {} of host memory left", human(*capacity - node.peak), human(*capacity))};
  }
  const bool alike = own * node.ranks == node.peak;
  return {Verdict::DoesNotFit,
          formatted("{} of host memory are missing on a node: {} ranks take {}{}", human(node.peak - *capacity),
                    node.ranks, human(alike ? own : node.peak), alike ? " each" : "")};
}

HostVerdict judge_files(const NodeMemory& node, const std::optional<Bytes>& capacity) {
  if (node.nvme == Bytes(0)) return {Verdict::Fits, "no files"};
  if (!capacity) {
    return {Verdict::Unknown, "what files may take is not known: name --nvme-memory or a cluster that has it"};
  }
  if (node.nvme > *capacity) {
    return {Verdict::DoesNotFit, formatted("{} are missing for files on a node: {} ranks write {}",
                                           human(node.nvme - *capacity), node.ranks, human(node.nvme))};
  }
  return {Verdict::Fits, formatted("{} of {} for files left", human(*capacity - node.nvme), human(*capacity))};
}

}  // namespace

Judgement judge(const Readings& readings, const ModelSpec& model, const Job& job, const DeviceRoom& room) {
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  if (!limit) return {Verdict::Unknown, "no capacity is known: name --hardware, --cluster or --capacity"};
  const BothPlacements& unlimited = readings.placements;
  const Bytes most = unlimited.asked.peak.reserved;
  const bool fraction = job.allocator.memory_fraction.value_or(1) < 1;
  if (!fraction && most <= limit->limit) {
    return {Verdict::Fits, formatted("{} of {} left", human(limit->limit - most), human(*room.capacity))};
  }
  PlacementOptions options = readings.options;
  options.config = job.allocator;
  options.limit = limit->limit;
  options.device = limit->device;
  const Placement limited = place(readings.schedule, options);
  std::int64_t retries_low = limited.retries;
  if (limited.waited && options.frees == StreamFrees::AtSync) {
    const bool fits = !fraction && unlimited.other && most_of(*unlimited.other) <= limit->limit;
    retries_low = fits ? 0 : place(readings.schedule, other_end(options)).retries;
  }
  return judge_limited(readings, model, limited, retries_low);
}

Judgement judge(const Evidence& evidence, const std::optional<PlannedArena>& arena, const HostMemory& host) {
  const SharedEvidence& shared = evidence.shared;
  if (!evidence.readings) return judge_states(shared);
  Judgement device =
      arena ? judge_arena(*arena, shared.room) : judge(*evidence.readings, shared.model, shared.job, shared.room);
  return with_host(std::move(device), host, shared.job);
}

HostMemory host_of(const HostMeter& meter, const NodeMemory& node, const Job& job) {
  const HostVerdict memory = judge_memory(meter.peak(), node, job.host_memory);
  const HostVerdict files = judge_files(node, job.nvme_memory);
  return {
      .pinned = meter.pinned(),
      .pinned_requested = meter.pinned_requested_peak(),
      .pageable = meter.pageable_peak(),
      .peak = meter.peak(),
      .per_node = node.peak,
      .nvme = meter.nvme_peak(),
      .nvme_per_node = node.nvme,
      .nvme_read = meter.nvme_read(),
      .nvme_written = meter.nvme_written(),
      .capacity = job.host_memory,
      .verdict = memory.verdict,
      .verdict_reason = memory.reason,
      .nvme_capacity = job.nvme_memory,
      .nvme_verdict = files.verdict,
      .nvme_verdict_reason = files.reason,
  };
}

HostMemory host_of(const Evidence& evidence) {
  if (evidence.readings) return host_of(evidence.readings->host, evidence.node, evidence.shared.job);
  HostMemory host;
  host.verdict_reason = "not modelled yet: " + *evidence.shared.unsupported;
  host.nvme_verdict_reason = host.verdict_reason;
  return host;
}

}  // namespace dsplan
