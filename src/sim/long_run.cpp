#include "sim/long_run.h"

#include <algorithm>
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
  SteadyStep step{static_cast<std::size_t>(begin - requests.begin()), static_cast<std::size_t>(end - requests.begin()),
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

class SteadyPlacer : public Placer {
 public:
  SteadyPlacer(const Schedule& schedule, const PlacementOptions& options, const std::vector<AllocatorRequest>& requests,
               const SteadyStep& step)
      : Placer(schedule, options, kToTheEnd), asked_(requests), step_(step) {
    repeat(std::span(asked_).first(step_.end));
  }
  // One step more. What is released and was not made has the block of what stands for it.
  void go_on() {
    for (const auto& [gone, heir] : step_.heirs) blocks_[gone] = std::exchange(blocks_[heir], kNullBlock);
    repeat(std::span(asked_).subspan(step_.begin, step_.end - step_.begin));
  }
  [[nodiscard]] std::int64_t retries() const { return allocator_.retries(); }

 private:
  const std::vector<AllocatorRequest>& asked_;
  const SteadyStep& step_;
};

// Whether a step finds what it leaves, each buffer in the place of the one that it stands for: then so does each step.
bool finds_what_it_leaves(const BothPlacements& placed, const SteadyStep& step) {
  AllocatorShape before = placed.before_second_step;
  for (ShapedBlock& block : before) {
    const auto found = std::lower_bound(step.heirs.begin(), step.heirs.end(), std::pair(block.buffer, BufferId()));
    if (block.buffer != kNoBuffer && found != step.heirs.end() && found->first == block.buffer) {
      block.buffer = found->second;
    }
  }
  return before == placed.after_second_step;
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
  Bytes most = placed.peak.reserved;
  for (const PlacementPeaks& one : placed.by_stretch) most = std::max(most, one.reserved);
  return !options.config.memory_fraction && most <= options.limit;
}

LongRun run_on(SteadyPlacer& placer, std::int64_t most) {
  LongRun run;
  run.steps = 2;
  run.reserved = placer.finish().peak.reserved;
  run.retries = placer.retries();
  std::vector<std::pair<AllocatorShape, std::int64_t>> ends;
  ends.emplace_back(placer.shape(), run.retries);
  while (run.steps < most && !run.repeats) {
    const std::int64_t before = placer.retries();
    placer.go_on();
    ++run.steps;
    run.retries = placer.retries();
    run.reserved = std::max(run.reserved, placer.finish().peak.reserved);
    if (run.first_retry == 0 && run.retries > before) run.first_retry = run.steps;
    if (placer.stopped()) {
      run.failed_step = run.steps;
      run.verdict = Verdict::DoesNotFit;
      return run;
    }
    AllocatorShape end = placer.shape();
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
  const Placement& placed = unlimited.other && options.frees != StreamFrees::Immediate ? *unlimited.other
                                                                                        : unlimited.asked;
  const auto events = second_step(schedule, placed);
  if (!events || unlimited.requests.empty()) return std::nullopt;
  const std::optional<SteadyStep> step = steady_step(schedule, unlimited.requests, *events);
  if (!step) return std::nullopt;
  options.frees = StreamFrees::Immediate;
  options.times = nullptr;
  if (most > 2 && never_limited(placed, options) && finds_what_it_leaves(unlimited, *step)) {
    return LongRun{.steps = 3, .repeats = true, .period = 1, .reserved = most_of_steps(placed), .verdict = Verdict::Fits};
  }
  SteadyPlacer placer(schedule, options, unlimited.requests, *step);
  if (placer.stopped()) return std::nullopt;
  return run_on(placer, most);
}

}  // namespace dsplan
