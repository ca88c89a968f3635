// Two ways to drive an allocator along a schedule: event by event, or by what another one was asked. Private to sim/.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <variant>
#include <vector>

#include "core/schedule.h"
#include "sim/placed_allocator.h"

namespace dsplan {

inline constexpr std::size_t kToTheEnd = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t kRun = 16;  // As many of a kind are worth being asked for together.
inline constexpr std::size_t kMostKept = std::numeric_limits<std::uint32_t>::max();  // Events whose requests are kept.

// A reader of schedules (core/schedule.h).
class Placer : public Ignores<Enter, Exit> {
 public:
  // Up to event `last`. What is asked is kept in `requests`, if there is one.
  Placer(const Schedule& schedule, PlacedAllocator& allocator, std::size_t last,
         std::vector<AllocatorRequest>* requests = nullptr)
      : schedule_(schedule),
        allocator_(allocator),
        streams_(allocator.streams()),
        clock_(allocator.clock()),
        last_(last),
        requests_(requests) {}

  using Ignores<Enter, Exit>::on;
  void on(std::size_t at, const Allocate& event) {
    if (at < behind_run_ || over(at) || schedule_.buffers[event.buffer].space != Space::Device) return;
    if (streams_.allocating(event.buffer, event.stream) && requests_ != nullptr) note_completed(at);
    if (is_next(at, event, kRun - 1)) return ask_run(at, event);
    note({static_cast<std::uint32_t>(at), event.buffer, AllocatorRequest::What::Allocate, event.stream});
    allocator_.allocate(at, event.buffer, event.stream);
  }
  void on(std::size_t at, const Release& event) {
    if (at < behind_run_ || over(at) || allocator_.block(event.buffer) == kNullBlock) return;
    const StreamSet waits_for = streams_.releasing(event.buffer, allocator_.block(event.buffer));
    const bool run = waits_for == 0 && is_next(at, event, kRun - 1);
    note({static_cast<std::uint32_t>(at), event.buffer, AllocatorRequest::What::Release, 0, waits_for,
          static_cast<std::uint8_t>(run ? 1 : 0)});
    if (run) return drop_run(at, event);
    allocator_.release(at, event.buffer, waits_for);
  }
  void on(std::size_t at, const Mark& event) {
    if (over(at)) return;
    note({static_cast<std::uint32_t>(at)});
    allocator_.mark(at, event);
  }
  void on(std::size_t at, const EmptyCache&) {
    if (over(at)) return;
    note({static_cast<std::uint32_t>(at), kNoBuffer, AllocatorRequest::What::EmptyCache});
    allocator_.empty_cache(at);
  }
  void on(std::size_t at, const RecordEvent& event) {
    if (over(at)) return;
    if (clock_ != nullptr) clock_->record_event(event);
    streams_.record_event(event);
  }
  void on(std::size_t at, const WaitEvent& event) {
    if (over(at)) return;
    if (clock_ != nullptr) clock_->wait_event(event);
    streams_.wait_event(event);
  }
  void on(std::size_t at, const Compute& event) { work(at, event.stream, event.reads, event.writes); }
  void on(std::size_t at, const Communicate& event) { work(at, event.stream, event.reads, event.writes); }

 private:
  [[nodiscard]] bool over(std::size_t at) const { return at > last_ || allocator_.stopped(); }
  void work(std::size_t at, StreamId stream, Span reads, Span writes) {
    if (over(at)) return;
    if (clock_ != nullptr) clock_->work(at, stream);
    streams_.work(stream, schedule_.range(reads), schedule_.range(writes));
  }
  void note(const AllocatorRequest& request) {
    if (requests_ != nullptr) requests_->push_back(request);
  }
  void note_completed(std::size_t at);
  // Buffers that follow each other and are made, or go, at events that follow each other: paddings, mostly, hundreds at
  // a time. From kRun on they are asked for together. Whether the event that is `by` behind this one is of its run.
  template <class E>
  [[nodiscard]] bool is_next(std::size_t at, const E& event, std::size_t by) const {
    if (at + by >= schedule_.events.size() || at + by > last_) return false;
    const E* next = std::get_if<E>(&schedule_.events[at + by]);
    return next != nullptr && next->buffer.index() == event.buffer.index() + by && next->stream == event.stream &&
           !schedule_.buffers[event.buffer].in_pieces && !schedule_.buffers[next->buffer].in_pieces;
  }
  void ask_run(std::size_t at, const Allocate& event);
  void drop_run(std::size_t at, const Release& event);

  const Schedule& schedule_;
  PlacedAllocator& allocator_;
  AllocatorStreams& streams_;
  StreamClock* clock_;
  std::size_t last_;
  std::vector<AllocatorRequest>* requests_;
  std::size_t behind_run_ = 0;  // The event behind the last run.
};

// Asks an allocator what another one was asked along the same schedule, of at most 2^32 events. Where its own frees
// wait for synchronisation, so must the other's have done.
class Repeater {
 public:
  Repeater(const Schedule& schedule, PlacedAllocator& allocator) : schedule_(schedule), allocator_(allocator) {}
  void repeat(std::span<const AllocatorRequest> requests);
  // What is asked next was asked before, from this event on.
  void go_back(std::size_t event);

 private:
  // The clock goes on to this event.
  void catch_up(std::size_t event);

  const Schedule& schedule_;
  PlacedAllocator& allocator_;
  std::size_t caught_up_ = 0;
};

}  // namespace dsplan
