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

struct Placing::Parts {
  Parts(const Schedule& schedule_of, const PlacementOptions& options)
      : schedule(schedule_of), allocator(schedule, options), placer(schedule, allocator, kToTheEnd, &both.requests) {
    both.frees = options.frees;
    both.requests.reserve(2 * schedule.buffers.size());
  }

  const Schedule& schedule;
  BothPlacements both;
  PlacedAllocator allocator;
  Placer placer;
};

Placing::Placing(const Schedule& schedule, const PlacementOptions& options)
    : parts_(std::make_unique<Parts>(schedule, options)) {}

Placing::~Placing() = default;

void Placing::read(std::size_t begin, std::size_t end) {
  parts_->allocator.look(parts_->schedule);
  parts_->placer.look(parts_->schedule);
  if (!parts_->allocator.stopped()) replay_part(ScheduleView(parts_->schedule), begin, end, parts_->placer);
}

bool Placing::waited() const { return parts_->allocator.so_far().waited; }

Bytes Placing::most_reserved() const { return parts_->allocator.so_far().reserved; }

std::span<const AllocatorRequest> Placing::requests() const { return parts_->both.requests; }

// A replay that stops has not seen everything, and what has given its cache back no longer waits for what others do.
BothPlacements Placing::finish() {
  BothPlacements& both = parts_->both;
  PlacedAllocator& allocator = parts_->allocator;
  both.asked = allocator.finish();
  const bool kept = parts_->schedule.events.size() <= kMostKept;
  if (!kept || allocator.stopped() || both.asked.retries > 0) both.requests.clear();
  const bool waits = both.asked.waited && both.frees != StreamFrees::Immediate;
  if (!waits) both.second_step = allocator.take_second_step();
  return std::move(both);
}

BothPlacements place_asked(const Schedule& schedule, const PlacementOptions& options) {
  Placing placing(schedule, options);
  placing.read(0, schedule.events.size());
  return placing.finish();
}

struct PlacingAgain::Parts {
  Parts(const Schedule& schedule_of, const PlacementOptions& options)
      : schedule(schedule_of), allocator(schedule, options), repeater(schedule, allocator) {}

  const Schedule& schedule;
  PlacedAllocator allocator;
  Repeater repeater;
  std::size_t repeated = 0;
};

PlacingAgain::PlacingAgain(const Schedule& schedule, const PlacementOptions& options)
    : parts_(std::make_unique<Parts>(schedule, options)) {}

PlacingAgain::~PlacingAgain() = default;

void PlacingAgain::repeat(std::span<const AllocatorRequest> requests) {
  parts_->allocator.look(parts_->schedule);
  parts_->repeater.look(parts_->schedule);
  parts_->repeater.repeat(requests.subspan(parts_->repeated));
  parts_->repeated = requests.size();
}

Placement PlacingAgain::finish() { return parts_->allocator.finish(); }

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
  PlacingAgain again(schedule, options);
  again.repeat(both.requests);
  return again.finish();
}

AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options, std::size_t event) {
  PlacedAllocator allocator(schedule, options);
  Placer placer(schedule, allocator, event);
  replay(schedule, placer);
  return allocator.state();
}

}  // namespace dsplan
