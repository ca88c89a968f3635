#include "sim/placement.h"

#include <algorithm>
#include <utility>

#include "sim/placer.h"

namespace dsplan {

Bytes most_reserved(const Placement& placement) {
  Bytes most = placement.peak.reserved;
  for (const PlacementPeaks& one : placement.by_stretch) most = std::max(most, one.reserved);
  return most;
}

Placement place(const Schedule& schedule, const PlacementOptions& options) {
  PlacedAllocator allocator(schedule, options);
  Placer placer(schedule, allocator, kToTheEnd);
  replay(schedule, placer);
  return allocator.finish();
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
  PlacedAllocator allocator(schedule, options);
  Placer placer(schedule, allocator, kToTheEnd, kept ? &both.requests : nullptr);
  replay(schedule, placer);
  both.asked = allocator.finish();
  if (allocator.stopped() || both.asked.retries > 0) both.requests.clear();
  if (both.asked.waited && options.frees != StreamFrees::Immediate) return both;
  both.second_step = allocator.take_second_step();
  return both;
}

void place_other(const Schedule& schedule, const PlacementOptions& options, BothPlacements& both) {
  if (!both.asked.waited) return;
  const PlacementOptions other = other_end(options);
  if (!says_enough(both, other)) {
    both.other = place(schedule, other);
    return;
  }
  PlacedAllocator allocator(schedule, other);
  Repeater(schedule, allocator).repeat(both.requests);
  both.other = allocator.finish();
  if (other.frees == StreamFrees::Immediate) both.second_step = allocator.take_second_step();
}

BothPlacements place_both(const Schedule& schedule, const PlacementOptions& options) {
  BothPlacements both = place_asked(schedule, options);
  place_other(schedule, options, both);
  return both;
}

Placement place_again(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options) {
  if (!says_enough(both, options)) return place(schedule, options);
  PlacedAllocator allocator(schedule, options);
  Repeater(schedule, allocator).repeat(both.requests);
  return allocator.finish();
}

AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options, std::size_t event) {
  PlacedAllocator allocator(schedule, options);
  Placer placer(schedule, allocator, event);
  replay(schedule, placer);
  return allocator.state();
}

}  // namespace dsplan
