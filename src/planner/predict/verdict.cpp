#include "planner/predict/verdict.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/format.h"
#include "core/machine/in_parallel.h"
#include "planner/predict/doubts.h"

namespace dsplan {
namespace {

// `asked` is how the allocator fared under its limits; `retries_low` at the low end.
Judgement judge_limited(const Readings& readings, const ModelSpec& model, const Placement& asked,
                        std::int64_t retries_low) {
  Judgement judged;
  judged.verdict = Verdict::Fits;
  judged.retries = asked.retries;
  judged.retries_low = retries_low;
  if (asked.failed_event) {
    judged.verdict = Verdict::DoesNotFit;
    judged.failure = describe_moment(readings.schedule, model, *asked.failed_event);
    judged.shortfall = asked.missing;
    judged.reason = formatted("tried to allocate {}, {} missing, at {}", human(asked.failed_request),
                              human(asked.missing), judged.failure);
  } else if (asked.retries == 0) {
    judged.reason = formatted("at most {} reserved under the allocator's limits", human(asked.peak.reserved));
  } else {
    judged.verdict = Verdict::FitsWithRetries;
    judged.reason = formatted("the allocator gives its cache back {} times to fit, first at {}", asked.retries,
                              describe_moment(readings.schedule, model, *asked.first_retry));
    if (retries_low < asked.retries) {
      judged.reason += formatted("; {} if frees that wait for another stream end at once",
                                 retries_low == 0 ? "not at all" : formatted("{} times", retries_low));
    }
  }
  return judged;
}

// `least`: what the device must have beside its reserve. Where fragmentation alone ends the job, what the failing
// request misses stays.
void take_need(Judgement& judged, Bytes least, const DeviceRoom& room) {
  judged.needed = least;
  if (!room.capacity) return;
  const Bytes there = *room.capacity > room.reserve ? *room.capacity - room.reserve : Bytes(0);
  if (judged.verdict != Verdict::DoesNotFit) {
    judged.shortfall = Bytes(0);
  } else if (least > there || !judged.shortfall) {
    judged.shortfall = least > there ? least - there : Bytes(0);
  }
}

// The same words for each: what is left, and that it is less than the figures may be off.
void make_tight(Judgement& judged, Bytes spare) {
  judged.verdict = Verdict::Tight;
  judged.reason = formatted("{} left, and the prediction may be {} too low; {}", human(spare),
                            human(sum_of(judged.doubts)), judged.reason);
}

Judgement judge_arena(const PlannedArena& arena, const DeviceRoom& room, std::vector<Doubt> doubts) {
  Judgement judged;
  judged.doubts = std::move(doubts);
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  if (limit && arena.height <= limit->limit) {
    judged.verdict = Verdict::Fits;
    const Bytes left = limit->limit - arena.height;
    judged.reason = formatted("{} of {} left beside the planned arena", human(left), human(*room.capacity));
    if (left + room.reserve < sum_of(judged.doubts)) make_tight(judged, left + room.reserve);
  } else if (limit) {
    judged.verdict = Verdict::DoesNotFit;
    judged.reason =
        formatted("the planned arena of {} is {} too large", human(arena.height), human(arena.height - limit->limit));
    judged.failure = "the planned arena";
  }
  take_need(judged, arena.height + room.beside(), room);
  return judged;
}

Judgement judge_states(const SharedEvidence& shared) {
  const Bytes least = shared.formulas.persistent.total() + shared.room.beside();
  const DeviceRoom& room = shared.room;
  Judgement judged;
  judged.reason = formatted("only the states are predicted: not modelled yet: {}", *shared.unsupported);
  if (room.capacity && least + room.reserve > *room.capacity) {
    judged.verdict = Verdict::DoesNotFit;
    judged.failure = "the persistent state alone";
    judged.reason = formatted("the persistent state alone needs {} more than there is",
                              human(least + room.reserve - *room.capacity));
  }
  take_need(judged, least, room);
  if (judged.verdict == Verdict::Unknown) judged.shortfall.reset();
  return judged;
}

// What of the host refutes a job that the device holds.
Judgement with_host(Judgement device, const HostMemory& host) {
  const auto refuted = [&](const std::string& reason, const char* where) {
    device.verdict = Verdict::DoesNotFit;
    device.reason = reason;
    device.failure = where;
    return device;
  };
  if (device.verdict == Verdict::DoesNotFit) return device;
  if (host.verdict == Verdict::DoesNotFit) return refuted(host.verdict_reason, "the host's memory");
  if (host.nvme_verdict == Verdict::DoesNotFit) return refuted(host.nvme_verdict_reason, "the node's files");
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

bool surely_retries(const Prediction& p) {
  if (!fits(p.verdict) || p.retries == 0) return false;
  const std::optional<LongRun>& expected = p.long_run_expected;
  return p.retries_low > 0 || (expected && (expected->retries > 0 || expected->failed_step > 0));
}

std::optional<Bytes> least_process(const Prediction& p) {
  if (!p.peak || !p.peak->process_high || !p.peak->reserved || !p.peak->reserved_low) return std::nullopt;
  return *p.peak->reserved_low + (*p.peak->process_high - *p.peak->reserved);
}

Bytes most_reserved(const Readings& readings) { return most_reserved(readings.placements.asked); }

namespace {

// With retries a job uses all that there is: tight is what would not run with less.
bool fails_with_less(const Readings& readings, const DeviceRoom& room, PlacementOptions options, Bytes doubt) {
  const Bytes limit = options.limit;
  const Bytes with_reserve = limit + room.reserve;
  options.limit = with_reserve > doubt ? with_reserve - doubt : Bytes(0);
  return options.limit < limit && place_again(readings.schedule, readings.placements, options).failed_event;
}

// By what the allocator takes, without a limit and, where that may matter, under it. A screen does not say how else it
// would fail.
Judgement judge_device(const Readings& readings, const ModelSpec& model, const Job& job, const DeviceRoom& room,
                       const VerdictLimit& limit, Bytes doubt) {
  const BothPlacements& unlimited = readings.placements;
  const Bytes most = unlimited.asked.peak.reserved;
  const bool fraction = job.allocator.memory_fraction.value_or(1) < 1;
  if (!fraction && most <= limit.limit) {
    Judgement judged;
    judged.verdict = Verdict::Fits;
    judged.reason = formatted("{} of {} left", human(limit.limit - most), human(*room.capacity));
    return judged;
  }
  const PlacementOptions options = under_limit(job, room);
  Placement asked = readings.limited.value_or(Placement());
  std::int64_t retries_low = 0;
  std::optional<std::int64_t> retries_expected;
  std::atomic<bool> needless = false;
  const auto retries_of = [&](const std::optional<Placement>& without_limit, const PlacementOptions& how) {
    const bool fits = !fraction && without_limit && most_reserved(*without_limit) <= limit.limit;
    return fits ? 0 : place_until(needless, readings.schedule, unlimited, how).retries;
  };
  const bool over = readings.fails();  // Nobody asks how else it would fail.
  const bool both = readings.detail != Detail::Change;
  const bool other = both && unlimited.asked.waited && options.frees == StreamFrees::AtSync && !over;
  bool tight = false;
  in_parallel({[&] {
                 if (!readings.limited) asked = place_again(readings.schedule, unlimited, options);
                 if (!asked.failed_event && asked.retries > 0) tight = fails_with_less(readings, room, options, doubt);
                 if (asked.failed_event && readings.detail == Detail::Screen) needless = true;
               },
               [&] {
                 if (other) retries_low = retries_of(unlimited.other, other_end(options));
               },
               [&] {
                 if (!readings.times || over) return;
                 PlacementOptions timed = options;
                 timed.times = &*readings.times;
                 retries_expected = retries_of(readings.expected, timed);
               }},
              readings.schedule.events.size() > kWorthThreads);
  if (!other || !asked.waited || needless) retries_low = asked.retries;
  Judgement judged = judge_limited(readings, model, asked, retries_low);
  if (!needless) judged.retries_expected = retries_expected;
  if (tight) judged.verdict = Verdict::Tight;
  return judged;
}

}  // namespace

Judgement judge(const Readings& readings, const ModelSpec& model, const Job& job, const DeviceRoom& room,
                std::vector<Doubt> doubts) {
  const Placement& unlimited = readings.placements.asked;
  Bytes allocated = std::max(unlimited.peak.allocated, readings.memory.peak_allocated());
  for (const PlacementPeaks& one : unlimited.by_stretch) allocated = std::max(allocated, one.allocated);
  const std::optional<VerdictLimit> limit = verdict_limit(room);
  Judgement judged;
  judged.reason = "no capacity is known: name --hardware, --cluster or --capacity";
  if (limit) judged = judge_device(readings, model, job, room, *limit, sum_of(doubts));
  judged.doubts = std::move(doubts);
  take_need(judged, allocated + room.beside(), room);
  if (!limit) return judged;
  const Bytes most = most_reserved(unlimited);
  const Bytes spare = limit->limit + room.reserve > most ? limit->limit + room.reserve - most : Bytes(0);
  if (judged.verdict == Verdict::Tight || (judged.verdict == Verdict::Fits && spare < sum_of(judged.doubts))) {
    make_tight(judged, spare);
  }
  return judged;
}

// DistributedDataParallel's one bucket, or what a hook compressed of it, from the first backward on: since PyTorch 2.8
// the process group may keep it when buckets are made anew, which where unused parameters are looked for they never
// are.
Bytes first_bucket(const SharedEvidence& shared) {
  const Training& t = shared.job.training;
  const bool anew = !t.ddp.find_unused_parameters || t.ddp.static_graph;
  if (t.runtime != Runtime::PyTorch || shared.job.parallelism.dp == 1 || !anew || t.torch < Version{2, 8, 0}) return {};
  const Bytes bucket = shared.formulas.states.gradients;
  return t.ddp.comm_hook ? std::min(bucket, storage(shared.formulas.parameters_trainable, *t.ddp.comm_hook)) : bucket;
}

Judgement judge(const Evidence& evidence, const std::optional<PlannedArena>& arena, const HostMemory& host) {
  const SharedEvidence& shared = evidence.shared;
  if (!evidence.readings) return judge_states(shared);
  std::vector<Doubt> doubts =
      doubts_of(shared.job, arena ? arena->height : most_reserved(*evidence.readings), first_bucket(shared));
  Judgement device = arena ? judge_arena(*arena, shared.room, std::move(doubts))
                           : judge(*evidence.readings, shared.model, shared.job, shared.room, std::move(doubts));
  return with_host(std::move(device), host);
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
