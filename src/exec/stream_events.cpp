#include "exec/stream_events.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dsplan::exec {

StreamEvents::StreamEvents(Device& device, const Schedule& schedule) : device_(device) {
  if (device.synchronous()) return;
  for (const Event& event : schedule.events) {
    if (const auto* wait = std::get_if<WaitEvent>(&event)) ++recorded_[wait->recorded].waits;
  }
}

StreamEvents::~StreamEvents() {
  for (const auto& [id, recorded] : recorded_) device_.destroy_event(recorded.event);
  for (dsplan_event* event : free_) device_.destroy_event(event);
}

void StreamEvents::record(const RecordEvent& event) {
  const auto found = recorded_.find(event.id);
  if (found == recorded_.end()) return;
  if (free_.empty()) free_.push_back(device_.create_event());
  found->second.event = free_.back();
  free_.pop_back();
  device_.record(found->second.event, event.stream);
}

// A stream waits for what the event was when it was told to: the event may be recorded anew at once.
void StreamEvents::wait(const WaitEvent& event) {
  const auto found = recorded_.find(event.recorded);
  if (found == recorded_.end()) return;
  if (event.waiter == kHostSync) {
    device_.synchronize_event(found->second.event);
  } else {
    device_.wait(event.waiter, found->second.event);
  }
  if (--found->second.waits > 0) return;
  free_.push_back(std::exchange(found->second.event, nullptr));
  recorded_.erase(found);
}

PlaceOrder::~PlaceOrder() {
  for (dsplan_event* event : events_) device_.destroy_event(event);
}

void PlaceOrder::work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
  if (device_.synchronous()) return;
  for (const std::span<const Access> list : {reads, writes}) {
    for (const Access& access : list) {
      if (access.buffer >= users_.size()) users_.resize(std::size_t{access.buffer} * 2 + 1);
      users_[access.buffer] |= bit_of(stream);
    }
  }
}

// A stream that waits for another waits for all that it has by now: nothing is kept of earlier waits.
void PlaceOrder::take(Bytes begin, Bytes end, StreamId stream) {
  if (device_.synchronous()) return;
  StreamSet before = 0;
  auto at = places_.upper_bound(begin);
  if (at != places_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != places_.end() && at->first < end) {
    const auto [from, place] = *at;
    before |= place.users;
    at = places_.erase(at);
    if (from < begin) places_.emplace(from, Place{begin, place.users});
    if (place.end > end) at = places_.emplace(end, Place{place.end, place.users}).first;
  }
  for (StreamId other = 0; other < kStreams; ++other) {
    if (other == stream || (before & bit_of(other)) == 0) continue;
    while (events_.size() <= other) events_.push_back(device_.create_event());
    device_.record(events_[other], other);
    device_.wait(stream, events_[other]);
  }
}

void PlaceOrder::leave(BufferId id, Bytes begin, Bytes end) {
  if (device_.synchronous() || id >= users_.size()) return;
  places_[begin] = {end, std::exchange(users_[id], StreamSet{0})};
}

StreamClock::~StreamClock() {
  for (const Pair& pair : pairs_) {
    device_.destroy_event(pair.begin);
    device_.destroy_event(pair.end);
  }
}

void StreamClock::begin(StreamId stream) {
  if (used_ == pairs_.size()) {
    pairs_.emplace_back();
    pairs_.back().begin = device_.create_event();
    pairs_.back().end = device_.create_event();
  }
  device_.record(pairs_[used_].begin, stream);
}

void StreamClock::end(StreamId stream) { device_.record(pairs_[used_++].end, stream); }

void StreamClock::settle() {
  for (std::size_t at = 0; at < used_; ++at) nanoseconds_ += device_.elapsed(pairs_[at].begin, pairs_[at].end);
  used_ = 0;
}

}  // namespace dsplan::exec
