#include "sim/placement.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.h"
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

struct PlacedAlong::Parts {
  Parts(const Schedule& schedule, const PlacementOptions& options, bool growing)
      : allocator(schedule, options, growing), placer(schedule, allocator, kToTheEnd, &requests) {
    requests.reserve(2 * schedule.buffers.size());
  }

  std::vector<AllocatorRequest> requests;
  PlacedAllocator allocator;
  Placer placer;
  std::size_t seen = 0;  // Events.
};

PlacedAlong::PlacedAlong(const PlacementOptions& options, bool growing) : options_(options), growing_(growing) {}
PlacedAlong::~PlacedAlong() = default;

void PlacedAlong::go_on(const Schedule& schedule) {
  DSPLAN_CHECK(schedule.events.size() <= kMostKept, "more events than a request can name");
  if (parts_ == nullptr) parts_ = std::make_unique<Parts>(schedule, options_, growing_);
  parts_->allocator.follow();
  replay_from(parts_->seen, schedule, parts_->placer);
  parts_->seen = schedule.events.size();
}

bool PlacedAlong::stopped() const { return parts_->allocator.stopped(); }
Bytes PlacedAlong::address(BufferId buffer) const {
  return parts_->allocator.allocator_.address(parts_->allocator.block(buffer));
}
bool PlacedAlong::waited() const { return parts_->allocator.finish().waited; }

// A replay that stops has not seen everything, and what has given its cache back no longer waits for what others do.
BothPlacements PlacedAlong::finish() {
  PlacedAllocator& allocator = parts_->allocator;
  BothPlacements both;
  both.frees = options_.frees;
  both.asked = allocator.finish();
  if (!allocator.stopped() && both.asked.retries == 0) both.requests = std::move(parts_->requests);
  if (both.asked.waited && both.frees != StreamFrees::Immediate) return both;
  both.second_step = allocator.take_second_step();
  return both;
}

BothPlacements place_asked(const Schedule& schedule, const PlacementOptions& options) {
  PlacedAlong whole(options, false);
  whole.go_on(schedule);
  return whole.finish();
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

Placement place_again(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options) {
  if (!says_enough(both, options)) return place(schedule, options);
  PlacedAllocator allocator(schedule, options);
  Repeater(schedule, allocator).repeat(both.requests);
  return allocator.finish();
}

Placement place_until(const std::atomic<bool>& needless, const Schedule& schedule, const BothPlacements& both,
                      const PlacementOptions& options) {
  constexpr std::size_t kLook = 4096;  // Requests.
  if (needless) return {};
  if (!says_enough(both, options)) return place(schedule, options);
  PlacedAllocator allocator(schedule, options);
  Repeater repeater(schedule, allocator);
  std::span<const AllocatorRequest> left = both.requests;
  while (!left.empty() && !needless) {
    const std::size_t some = std::min(left.size(), kLook);
    repeater.repeat(left.first(some));
    left = left.subspan(some);
  }
  return allocator.finish();
}

AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options, std::size_t event) {
  PlacedAllocator allocator(schedule, options);
  Placer placer(schedule, allocator, event);
  replay(schedule, placer);
  return allocator.state();
}

}  // namespace dsplan
