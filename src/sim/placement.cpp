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

namespace {

// Whose frees never waited for synchronisation does not know when they would have.
bool says_enough(const BothPlacements& both, const PlacementOptions& options) {
  const bool at_sync = options.times == nullptr && options.frees == StreamFrees::AtSync;
  return !both.requests.empty() && (!at_sync || !both.asked.waited || both.frees == StreamFrees::AtSync);
}

}  // namespace

// A replay that stops has not seen everything, and what has given its cache back no longer waits for what others do.
BothPlacements place_asked(const Schedule& schedule, const PlacementOptions& options) {
  BothPlacements both;
  both.frees = options.frees;
  const bool kept = schedule.events.size() <= kMostKept;
  if (kept) both.requests.reserve(2 * schedule.buffers.size());
  Placer placer(schedule, options, kToTheEnd, kept ? &both.requests : nullptr);
  replay(schedule, placer);
  both.asked = placer.finish();
  if (placer.stopped() || both.asked.retries > 0) both.requests.clear();
  if (both.asked.waited && options.frees != StreamFrees::Immediate) return both;
  both.before_second_step = placer.take_before();
  both.after_second_step = placer.take_after();
  return both;
}

void place_other(const Schedule& schedule, const PlacementOptions& options, BothPlacements& both) {
  if (!both.asked.waited) return;
  const PlacementOptions other = other_end(options);
  if (!says_enough(both, other)) {
    both.other = place(schedule, other);
    return;
  }
  Placer again(schedule, other, kToTheEnd);
  again.repeat(both.requests);
  both.other = again.finish();
  if (other.frees != StreamFrees::Immediate) return;
  both.before_second_step = again.take_before();
  both.after_second_step = again.take_after();
}

BothPlacements place_both(const Schedule& schedule, const PlacementOptions& options) {
  BothPlacements both = place_asked(schedule, options);
  place_other(schedule, options, both);
  return both;
}

Placement place_again(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options) {
  if (!says_enough(both, options)) return place(schedule, options);
  Placer placer(schedule, options, kToTheEnd);
  placer.repeat(both.requests);
  return placer.finish();
}

AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options, std::size_t event) {
  Placer placer(schedule, options, event);
  replay(schedule, placer);
  return placer.state();
}

}  // namespace dsplan
