#include "sim/placement.h"

#include "sim/placer.h"

namespace dsplan {

Placement place(const Schedule& schedule, const PlacementOptions& options) {
  Placer placer(schedule, options, kToTheEnd);
  replay(schedule, placer);
  return placer.finish();
}

PlacementOptions other_end(PlacementOptions options) {
  const bool at_sync = options.frees == StreamFrees::AtSync;
  options.times = nullptr;
  options.frees = at_sync ? StreamFrees::Immediate : StreamFrees::AtSync;
  return options;
}

// Where frees complete at once, nothing else is asked of the schedule's work than what was asked anyway. A replay that
// stops has not seen everything.
BothPlacements place_both(const Schedule& schedule, const PlacementOptions& options) {
  BothPlacements both;
  const bool kept = schedule.events.size() <= kMostKept;
  if (kept) both.requests.reserve(2 * schedule.buffers.size());
  Placer placer(schedule, options, kToTheEnd, kept ? &both.requests : nullptr);
  replay(schedule, placer);
  both.asked = placer.finish();
  if (placer.stopped()) both.requests.clear();
  const bool at_once = !both.asked.waited || options.frees == StreamFrees::Immediate;
  const auto take_shapes = [&](Placer& from) {
    both.before_second_step = from.take_before();
    both.after_second_step = from.take_after();
  };
  if (at_once) take_shapes(placer);
  if (!both.asked.waited) return both;
  const PlacementOptions other = other_end(options);
  if (at_once || both.requests.empty()) {
    both.other = place(schedule, other);
    return both;
  }
  Placer again(schedule, other, kToTheEnd);
  again.repeat(both.requests);
  both.other = again.finish();
  take_shapes(again);
  return both;
}

AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options, std::size_t event) {
  Placer placer(schedule, options, event);
  replay(schedule, placer);
  return placer.state();
}

}  // namespace dsplan
