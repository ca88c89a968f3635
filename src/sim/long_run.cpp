#include "sim/long_run.h"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/placer.h"

namespace dsplan {
namespace {

// A step of a schedule, and which of its buffers stands, one step later, for each that it releases and did not make.
struct SteadyStep {
  std::size_t begin_event = 0;
  std::size_t end_event = 0;
  std::size_t begin = 0;  // The first of its requests, and the one behind its last.
  std::size_t end = 0;
  std::vector<std::pair<BufferId, BufferId>> heirs;  // Released, left behind. Ascending by the first.
};

// The events at which the second step begins and ends.
std::optional<std::pair<std::size_t, std::size_t>> second_step(const Schedule& schedule, const Placement& placed) {
  std::optional<std::size_t> begin;
  for (const PlacementMark& one : placed.marks) {
    const auto& mark = std::get<Mark>(schedule.events[one.event]);
    if (mark.stretch != Stretch::SecondStep) continue;
    if (mark.moment == Moment::StretchBegins) begin = one.event;
    if (mark.moment == Moment::StretchEnds && begin) return std::pair(*begin, one.event);
  }
  return std::nullopt;
}

// What is released and was there before, and what is made and stays, in the order in which they were made.
struct Exchanged {
  std::vector<BufferId> gone;
  std::vector<BufferId> left;
};

Exchanged exchanged(const Schedule& schedule, const std::vector<AllocatorRequest>& requests, const SteadyStep& step) {
  Indexed<BufferId, bool> made(schedule.buffers.size(), false);
  Exchanged result;
  for (std::size_t at = step.begin; at < step.end; ++at) {
    const AllocatorRequest& request = requests[at];
    if (request.what == AllocatorRequest::What::Allocate) {
      made[request.buffer] = true;
      result.left.push_back(request.buffer);
    } else if (request.what == AllocatorRequest::What::Release) {
      if (!made[request.buffer]) result.gone.push_back(request.buffer);
      made[request.buffer] = false;
    }
  }
  std::erase_if(result.left, [&](BufferId id) { return !made[id]; });
  for (std::vector<BufferId>* list : {&result.gone, &result.left}) std::sort(list->begin(), list->end());
  return result;
}

// The same kinds, one for one.
std::optional<SteadyStep> steady_step(const Schedule& schedule, const std::vector<AllocatorRequest>& requests,
                                      std::pair<std::size_t, std::size_t> events) {
  const auto before = [](const AllocatorRequest& request, std::size_t event) { return request.event < event; };
  const auto begin = std::lower_bound(requests.begin(), requests.end(), events.first, before);
  const auto end = std::lower_bound(begin, requests.end(), events.second + 1, before);
  SteadyStep step{events.first,
                  events.second,
                  static_cast<std::size_t>(begin - requests.begin()),
                  static_cast<std::size_t>(end - requests.begin()),
                  {}};
  auto [gone, left] = exchanged(schedule, requests, step);
  if (gone.size() != left.size()) return std::nullopt;
  const auto kind = [&](BufferId id) {
    const Buffer& buffer = schedule.buffers[id];
    return std::tuple(std::string_view(buffer.label), buffer.size, buffer.parameter);
  };
  for (const BufferId id : gone) {
    const auto heir = std::find_if(left.begin(), left.end(), [&](BufferId one) { return kind(one) == kind(id); });
    if (heir == left.end()) return std::nullopt;
    step.heirs.emplace_back(id, *heir);
    left.erase(heir);
  }
  return step;
}

// What the next step finds: two that find the same go on alike.
struct StepEnd {
  AllocatorShape shape;
  StreamClock::Leads leads;
  friend bool operator==(const StepEnd&, const StepEnd&) = default;
};

// The whole allocator, under its limits.
class SteadyRun {
 public:
  SteadyRun(const Schedule& schedule, const PlacementOptions& options, std::span<const AllocatorRequest> requests,
            const SteadyStep& step)
      : allocator_(schedule, options),
        repeater_(schedule, allocator_),
        step_(step),
        requests_(requests.subspan(step.begin, step.end - step.begin)) {
    repeater_.repeat(requests.first(step.end));
  }
  // One step more. What is released and was not made has the block of what stands for it.
  void go_on() {
    for (const auto& [gone, heir] : step_.heirs) allocator_.inherit(gone, heir);
    repeater_.go_back(step_.begin_event);
    repeater_.repeat(requests_);
  }
  [[nodiscard]] PlacedAllocator& allocator() { return allocator_; }
  [[nodiscard]] StepEnd end() {
    const StreamClock* clock = allocator_.clock();
    return {allocator_.shape(), clock != nullptr ? clock->leads() : StreamClock::Leads{}};
  }

 private:
  PlacedAllocator allocator_;
  Repeater repeater_;
  const SteadyStep& step_;
  std::span<const AllocatorRequest> requests_;
};

// A pool of the allocator: free blocks of one stream and size class serve no other, so that without a limit each pool
// goes its own way.
struct PoolName {
  StreamIndex stream = 0;
  bool large = false;
  friend auto operator<=>(const PoolName&, const PoolName&) = default;
};

AllocatorShape of_pool(const AllocatorShape& shape, PoolName pool) {
  AllocatorShape part;
  for (const ShapedBlock& block : shape) {
    if (block.stream == pool.stream && block.large == pool.large) part.push_back(block);
  }
  return part;
}

// With each buffer named as the one that stands for it a step later.
AllocatorShape inherited(AllocatorShape shape, const SteadyStep& step) {
  for (ShapedBlock& block : shape) {
    const auto found = std::lower_bound(step.heirs.begin(), step.heirs.end(), block.buffer,
                                        [](const auto& one, BufferId id) { return one.first < id; });
    if (found != step.heirs.end() && found->first == block.buffer) block.buffer = found->second;
  }
  return shape;
}

// One pool alone, asked what a step asks of it in a run without limits, from where the second step left it.
class PoolRun {
 public:
  PoolRun(const Schedule& schedule, const SecondStep& second, PoolName name,
          const std::vector<AllocatorRequest>& requests, const SteadyStep& step)
      : schedule_(schedule),
        allocator_(second.left->allocator.copy()),
        streams_(allocator_, StreamFrees::Immediate, schedule.untold),
        step_(requests),
        blocks_(second.left->blocks) {
    Indexed<BufferId, bool> ours(blocks_.size(), false);
    for (const ShapedBlock& block : of_pool(second.after, name)) {
      if (block.buffer != kNoBuffer) ours[block.buffer] = true;
    }
    for (const auto& [gone, heir] : step.heirs) {
      if (ours[heir]) heirs_.emplace_back(gone, heir);
    }
    // Whoever is there at a step's end has been there for long, or is made in a step.
    for (const BufferId id : blocks_.ids()) {
      if (blocks_[id] != kNullBlock) lasting_.push_back(id);
    }
  }
  void go_on() {
    for (const auto& [gone, heir] : heirs_) blocks_[gone] = std::exchange(blocks_[heir], kNullBlock);
    for (const AllocatorRequest& request : step_) {
      BlockId& block = blocks_[request.buffer];
      if (request.what == AllocatorRequest::What::Allocate) {
        block = allocator_.allocate(schedule_.buffers[request.buffer].size, request.stream).value();
      } else {
        if (request.waits_for != 0) streams_.releasing(block, request.waits_for);
        allocator_.release(std::exchange(block, kNullBlock));
      }
    }
  }
  [[nodiscard]] AllocatorShape shape() const { return shape_of(allocator_, blocks_, lasting_); }
  [[nodiscard]] Bytes reserved() const { return allocator_.reserved(); }

 private:
  const Schedule& schedule_;
  CachingAllocator allocator_;  // With the other pools as they were: they stay so.
  AllocatorStreams streams_;
  std::span<const AllocatorRequest> step_;
  std::vector<std::pair<BufferId, BufferId>> heirs_;  // Of this pool.
  Indexed<BufferId, BlockId> blocks_;
  std::vector<BufferId> lasting_;  // Those that are there at a step's end.
};

// From which step's end on a pool repeats, and after how many steps; 0: not within those that were asked for.
struct Cycle {
  std::int64_t first = 1;
  std::int64_t period = 1;
};

Cycle cycle_of(PoolRun& pool, std::int64_t most) {
  std::vector<AllocatorShape> ends{pool.shape()};  // From the second step's on.
  for (std::int64_t steps = 3; steps <= most; ++steps) {
    pool.go_on();
    AllocatorShape end = pool.shape();
    const auto same = std::find(ends.begin(), ends.end(), end);
    if (same != ends.end()) return {2 + (same - ends.begin()), ends.end() - same};
    ends.push_back(std::move(end));
  }
  return {2, 0};
}

// Largest of initialisation and steps.
Bytes most_of_steps(const Placement& placed) {
  Bytes most;
  for (const Stretch stretch : {Stretch::Init, Stretch::FirstStep, Stretch::MiddleStep, Stretch::SecondStep}) {
    most = std::max(most, placed.by_stretch[static_cast<std::size_t>(stretch)].reserved);
  }
  return most;
}

// Whether the limits of `options` change nothing.
bool never_limited(const Placement& placed, const PlacementOptions& options) {
  return !options.config.memory_fraction && most_reserved(placed) <= options.limit;
}

// What a step asks of each pool.
class PoolRequests {
 public:
  // `before`: the allocator where the step begins.
  PoolRequests(const Schedule& schedule, const AllocatorConfig& config, const AllocatorShape& before,
               std::span<const AllocatorRequest> step)
      : schedule_(schedule), sizes_(config), pool_of_(schedule.buffers.size()) {
    for (const ShapedBlock& block : before) {
      if (block.state == CachingAllocator::BlockState::Allocated) pool_of_[block.buffer] = {block.stream, block.large};
    }
    for (const AllocatorRequest& request : step) add(request);
  }
  [[nodiscard]] PoolName pool_of(BufferId buffer) const { return pool_of_[buffer]; }
  [[nodiscard]] const std::map<PoolName, std::vector<AllocatorRequest>>& pools() const { return pools_; }

 private:
  void add(const AllocatorRequest& request) {
    const bool allocates = request.what == AllocatorRequest::What::Allocate;
    if (!allocates && request.what != AllocatorRequest::What::Release) return;
    if (allocates) {
      const Bytes size = sizes_.rounded(schedule_.buffers[request.buffer].size);
      pool_of_[request.buffer] = {request.stream, size > Bytes(kSmallSize)};
    }
    pools_[pool_of_[request.buffer]].push_back(request);
  }

  const Schedule& schedule_;
  CachingAllocator sizes_;  // Only rounds.
  Indexed<BufferId, PoolName> pool_of_;
  std::map<PoolName, std::vector<AllocatorRequest>> pools_;
};

// Whether each pool goes its own way: nothing but a limit, or an emptied cache, reaches several.
bool pools_part(const PoolRequests& pools, std::span<const AllocatorRequest> asked, const SteadyStep& step) {
  const auto empties = [](const AllocatorRequest& one) { return one.what == AllocatorRequest::What::EmptyCache; };
  const auto stays = [&](const auto& one) { return pools.pool_of(one.first) == pools.pool_of(one.second); };
  return std::none_of(asked.begin(), asked.end(), empties) && std::all_of(step.heirs.begin(), step.heirs.end(), stays);
}

Bytes reserved_behind(const Placement& placed, std::size_t event) {
  const auto found = std::find_if(placed.marks.begin(), placed.marks.end(),
                                  [&](const PlacementMark& mark) { return mark.event == event; });
  return found->reserved;
}

// The allocator repeats when all of its pools do.
LongRun run_pools(const Schedule& schedule, const Placement& low, const SecondStep& second, const SteadyStep& step,
                  const PoolRequests& asked, std::int64_t most) {
  const AllocatorShape before = inherited(second.before, step);
  LongRun run;
  run.repeats = true;
  run.period = 1;
  run.verdict = Verdict::Fits;
  Bytes reserved = reserved_behind(low, step.end_event);
  std::int64_t first = 2;
  for (const auto& [name, requests] : asked.pools()) {
    if (of_pool(before, name) == of_pool(second.after, name)) continue;
    PoolRun pool(schedule, second, name, requests, step);
    const Bytes had = pool.reserved();
    const Cycle cycle = cycle_of(pool, most);
    reserved += pool.reserved() - had;
    run.repeats = run.repeats && cycle.period > 0;
    run.period = std::lcm(run.period, cycle.period);
    first = std::max(first, cycle.first);
  }
  run.repeats = run.repeats && first + run.period <= most;
  run.steps = run.repeats ? first + run.period : most;
  if (!run.repeats) run.period = 0;
  run.reserved = std::max(most_of_steps(low), reserved);
  return run;
}

LongRun run_on(SteadyRun& steady, std::int64_t most) {
  PlacedAllocator& allocator = steady.allocator();
  LongRun run;
  run.steps = 2;
  const auto look = [&] {
    const Placement now = allocator.finish();
    run.reserved = std::max(run.reserved, now.peak.reserved);
    run.retries = now.retries;
  };
  look();
  std::vector<std::pair<StepEnd, std::int64_t>> ends;
  ends.emplace_back(steady.end(), run.retries);
  while (run.steps < most && !run.repeats) {
    const std::int64_t before = run.retries;
    steady.go_on();
    ++run.steps;
    look();
    if (run.first_retry == 0 && run.retries > before) run.first_retry = run.steps;
    if (allocator.stopped()) {
      run.failed_step = run.steps;
      run.verdict = Verdict::DoesNotFit;
      return run;
    }
    StepEnd end = steady.end();
    const auto same = std::find_if(ends.begin(), ends.end(), [&](const auto& one) { return one.first == end; });
    run.repeats = same != ends.end();
    if (run.repeats) {
      run.period = ends.end() - same;
      run.retries_period = run.retries - same->second;
    }
    ends.emplace_back(std::move(end), run.retries);
  }
  run.verdict = run.retries > 0 ? Verdict::FitsWithRetries : Verdict::Fits;
  return run;
}

}  // namespace

std::optional<LongRun> long_run(const Schedule& schedule, const BothPlacements& unlimited, PlacementOptions options,
                                std::int64_t most) {
  const bool asked_low = !unlimited.other || options.frees == StreamFrees::Immediate;
  const Placement& low = asked_low ? unlimited.asked : *unlimited.other;
  const auto events = second_step(schedule, low);
  if (!events || unlimited.requests.empty()) return std::nullopt;
  const std::optional<SteadyStep> step = steady_step(schedule, unlimited.requests, *events);
  if (!step) return std::nullopt;
  options.frees = StreamFrees::Immediate;
  const SecondStep& second = unlimited.second_step;
  if (options.times == nullptr && most > 2 && second.left != nullptr && never_limited(low, options)) {
    const auto asked = std::span(unlimited.requests).subspan(step->begin, step->end - step->begin);
    const PoolRequests pools(schedule, options.config, second.before, asked);
    if (pools_part(pools, asked, *step)) return run_pools(schedule, low, second, *step, pools, most);
  }
  SteadyRun steady(schedule, options, unlimited.requests, *step);
  if (steady.allocator().stopped()) return std::nullopt;
  return run_on(steady, most);
}

}  // namespace dsplan
