#include "planner/advise/explain_log.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "core/format.h"
#include "planner/lower/lower.h"
#include "planner/lower/unsupported.h"
#include "planner/predict/live_buffers.h"
#include "planner/predict/schedules.h"
#include "sim/allocation_log.h"
#include "sim/memory.h"
#include "sim/placement.h"

namespace dsplan {
namespace {

constexpr std::size_t kMostLive = 10;

struct Ranked {
  std::size_t index = 0;
  Bytes off_request;
  Bytes off_allocated;
  friend bool operator<(const Ranked& a, const Ranked& b) {
    return std::tie(a.off_request, a.off_allocated, a.index) < std::tie(b.off_request, b.off_allocated, b.index);
  }
};

class Searcher {
 public:
  Searcher(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config)
      : schedule_(schedule), model_(model), config_(config), log_(allocation_log(schedule, config)) {}

  LogFinding find(const LogMessage& message) const {
    LogFinding finding{message, false, {}};
    const bool failed = message.kind == LogMessage::Kind::OutOfMemory;
    std::vector<Ranked> ranked = failed ? rank_requests(message) : rank_marks(message);
    const auto few = static_cast<std::ptrdiff_t>(std::min(ranked.size(), kMostCandidates));
    std::partial_sort(ranked.begin(), ranked.begin() + few, ranked.end());
    ranked.resize(static_cast<std::size_t>(few));
    for (const Ranked& one : ranked) {
      LogCandidate candidate =
          failed ? request(message, log_.allocations[one.index]) : mark(message, moment_of(one.index));
      finding.matches = finding.matches || candidate.prints_the_same;
      // One that does not print the same stands alone, as the nearest.
      if (!candidate.prints_the_same && !finding.candidates.empty()) break;
      candidate.moment = describe_moment(schedule_, model_, candidate.event);
      if (one.index >= log_.marks.size() && !failed) {
        candidate.moment = formatted("\"{}\", {}", message.title, candidate.moment);
      }
      const std::size_t before = candidate.event == 0 ? 0 : candidate.event - 1;
      candidate.live = group_live(schedule_, model_, live_after(schedule_, before));
      if (candidate.live.size() > kMostLive) candidate.live.resize(kMostLive);
      finding.candidates.push_back(std::move(candidate));
    }
    return finding;
  }

 private:
  std::vector<Ranked> rank_requests(const LogMessage& message) const {
    std::vector<Ranked> ranked;
    for (std::size_t at = 0; at < log_.allocations.size(); ++at) {
      const AllocationMoment& moment = log_.allocations[at];
      ranked.push_back({at, message.request->distance(moment.request),
                        message.allocated ? message.allocated->distance(moment.allocated) : Bytes(0)});
    }
    return ranked;
  }

  // Where DeepSpeed itself prints under that title; a title of the user's own, at the loop's marks.
  std::vector<Ranked> rank_marks(const LogMessage& message) const {
    const auto rank = [&](std::size_t index, const MarkMoment& moment) {
      return Ranked{index, message.allocated->distance(moment.allocated), message.reserved->distance(moment.reserved)};
    };
    std::vector<Ranked> ranked;
    for (std::size_t at = 0; at < log_.prints.size(); ++at) {
      if (schedule_.prints[at].text == message.title) ranked.push_back(rank(log_.marks.size() + at, log_.prints[at]));
    }
    if (!ranked.empty()) return ranked;
    for (std::size_t at = 0; at < log_.marks.size(); ++at) ranked.push_back(rank(at, log_.marks[at]));
    return ranked;
  }

  // Marks first, prints behind them.
  [[nodiscard]] const MarkMoment& moment_of(std::size_t index) const {
    return index < log_.marks.size() ? log_.marks[index] : log_.prints[index - log_.marks.size()];
  }

  static void compare(const std::optional<PrintedSize>& said, Bytes predicted, const char* what, LogCandidate& into) {
    if (!said || said->holds(predicted)) return;
    into.apart.push_back(formatted("{} {}, predicted {}", what, said->text, human(predicted)));
  }

  LogCandidate request(const LogMessage& message, const AllocationMoment& moment) const {
    LogCandidate candidate;
    candidate.event = moment.event;
    candidate.request = moment.request;
    candidate.allocated = moment.allocated;
    candidate.reserved = reserved_when_emptied(schedule_, config_, moment.event);
    compare(message.request, moment.request, "request", candidate);
    compare(message.allocated, moment.allocated, "allocated", candidate);
    candidate.prints_the_same = candidate.apart.empty();
    // Which cached segments were left depends on everything before: said, not asked for.
    compare(message.reserved, candidate.reserved, "reserved", candidate);
    compare(message.unallocated, candidate.reserved - moment.allocated, "reserved but unallocated", candidate);
    return candidate;
  }

  static LogCandidate mark(const LogMessage& message, const MarkMoment& moment) {
    LogCandidate candidate;
    candidate.event = moment.event;
    candidate.allocated = moment.allocated;
    candidate.reserved = moment.reserved;
    candidate.peak_allocated = moment.peak_allocated;
    candidate.peak_reserved = moment.peak_reserved;
    compare(message.allocated, moment.allocated, "allocated", candidate);
    compare(message.reserved, moment.reserved, "reserved", candidate);
    candidate.prints_the_same = candidate.apart.empty();
    compare(message.peak_allocated, moment.peak_allocated, "peak allocated", candidate);
    return candidate;
  }

  const Schedule& schedule_;
  const ModelSpec& model_;
  const AllocatorConfig& config_;
  AllocationLog log_;
};

}  // namespace

std::vector<LogFinding> find_in_schedule(const std::vector<LogMessage>& messages, const Schedule& schedule,
                                         const ModelSpec& model, const AllocatorConfig& config) {
  const Searcher searcher(schedule, model, config);
  std::vector<LogFinding> findings;
  for (const LogMessage& message : messages) findings.push_back(searcher.find(message));
  return findings;
}

std::optional<Bytes> limit_in(const LogMessage& message) {
  if (message.kind != LogMessage::Kind::OutOfMemory) return std::nullopt;
  std::optional<Bytes> limit;
  if (message.free) {
    if (message.reserved) {
      limit = message.reserved->middle() + message.free->middle();
    } else if (message.allocated && message.unallocated) {
      limit = message.allocated->middle() + message.unallocated->middle() + message.free->middle();
    }
  }
  if (message.allowed) limit = std::min(limit.value_or(message.allowed->middle()), message.allowed->middle());
  return limit;
}

Remedy judge(const Change& change, const ModelSpec& model, std::int64_t rank, Bytes limit) {
  Remedy remedy{change.text, Remedy::Outcome::NotModelled, std::nullopt, {}};
  if (const auto why = unsupported(model, change.job)) {
    remedy.note = *why;
    return remedy;
  }
  const Schedule schedule = schedule_of(model, change.job, rank, change.text);
  PlacementOptions options;
  options.config = change.config;
  options.device = change.job.capacity.value_or(CachingAllocator::kUnlimited);
  options.frees = change.job.stream_frees;
  remedy.reserved = place(schedule, options).peak.reserved;
  if (*remedy.reserved <= limit) {
    remedy.outcome = Remedy::Outcome::Fits;
    return remedy;
  }
  options.limit = limit;
  const Placement limited = place(schedule, options);
  remedy.outcome = limited.failed_event ? Remedy::Outcome::DoesNotFit : Remedy::Outcome::FitsWithRetries;
  if (limited.failed_event) {
    remedy.note =
        formatted("{} missing at {}", human(limited.missing), describe_moment(schedule, model, *limited.failed_event));
  }
  return remedy;
}

}  // namespace dsplan
