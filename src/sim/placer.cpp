#include "sim/placer.h"

#include <algorithm>
#include <variant>

namespace dsplan {

void Placer::note_completed(std::size_t at) {
  const AllocatorStreams::Completed completed = streams_.take_completed();
  for (StreamId stream = 0; stream < kStreams; ++stream) {
    for (std::uint32_t left = completed[stream]; left > 0;) {
      const std::uint32_t some = std::min<std::uint32_t>(left, std::numeric_limits<std::uint8_t>::max());
      note({static_cast<std::uint32_t>(at), kNoBuffer, AllocatorRequest::What::Complete, stream, 0,
            static_cast<std::uint8_t>(some)});
      left -= some;
    }
  }
}

void Placer::ask_run(std::size_t at, const Allocate& event) {
  std::size_t count = 0;
  for (; is_next(at, event, count); ++count) {
    const BufferId buffer(event.buffer.index() + count);
    if (schedule_.buffers[buffer].space != Space::Device) break;
    if (count > 0) streams_.allocating(buffer, event.stream);  // Nothing more completes.
    note({static_cast<std::uint32_t>(at + count), buffer, AllocatorRequest::What::Allocate, event.stream, 0, 1});
  }
  behind_run_ = at + count;
  PlacedRuns(allocator_).allocate(at, event.buffer, count, event.stream);
}

// Up to the first whose free waits.
void Placer::drop_run(std::size_t at, const Release& event) {
  std::size_t count = 1;
  for (; is_next(at, event, count); ++count) {
    const BufferId buffer(event.buffer.index() + count);
    if (allocator_.block(buffer) == kNullBlock) break;
    const StreamSet waits_for = streams_.releasing(buffer, allocator_.block(buffer));
    note({static_cast<std::uint32_t>(at + count), buffer, AllocatorRequest::What::Release, 0, waits_for, 1});
    if (waits_for == 0) continue;
    behind_run_ = at + count + 1;
    PlacedRuns(allocator_).release(at, event.buffer, count);
    allocator_.release(at + count, buffer, waits_for);
    return;
  }
  behind_run_ = at + count;
  PlacedRuns(allocator_).release(at, event.buffer, count);
}

namespace {

// Whether that follows `by` behind the first of them.
bool is_next(std::span<const AllocatorRequest> requests, std::size_t by) {
  if (by >= requests.size()) return false;
  const AllocatorRequest& first = requests.front();
  const AllocatorRequest& next = requests[by];
  return next.buffer.index() == first.buffer.index() + by && next.event == first.event + by &&
         next.what == first.what && next.stream == first.stream && next.count == first.count && next.waits_for == 0;
}

// How many follow each other.
std::size_t run_of(std::span<const AllocatorRequest> requests) {
  std::size_t count = 1;
  while (is_next(requests, count)) ++count;
  return count;
}

}  // namespace

void Repeater::repeat(std::span<const AllocatorRequest> requests) {
  AllocatorStreams& streams = allocator_.streams();
  const bool timed = allocator_.clock() != nullptr;
  for (; !requests.empty() && !allocator_.stopped();) {
    const AllocatorRequest& request = requests.front();
    std::size_t count = 1;
    if (timed) catch_up(request.event);
    switch (request.what) {
      case AllocatorRequest::What::Allocate:
        if (timed) streams.complete();
        if (request.count > 0) {
          count = run_of(requests);
          PlacedRuns(allocator_).allocate(request.event, request.buffer, count, request.stream);
        } else {
          allocator_.allocate(request.event, request.buffer, request.stream);
        }
        break;
      case AllocatorRequest::What::Release:
        if (request.count > 0 && request.waits_for == 0) {
          count = run_of(requests);
          PlacedRuns(allocator_).release(request.event, request.buffer, count);
          break;
        }
        if (request.waits_for != 0) streams.releasing(allocator_.block(request.buffer), request.waits_for);
        allocator_.release(request.event, request.buffer, request.waits_for);
        break;
      case AllocatorRequest::What::Complete: streams.complete(request.stream, request.count); break;
      case AllocatorRequest::What::EmptyCache: allocator_.empty_cache(request.event); break;
      case AllocatorRequest::What::Mark:
        allocator_.mark(request.event, std::get<Mark>(schedule_.events[request.event]));
        break;
    }
    requests = requests.subspan(count);
  }
}

void Repeater::go_back(std::size_t event) {
  caught_up_ = event;
  if (allocator_.clock() == nullptr) return;
  for (std::size_t at = event; at < schedule_.events.size(); ++at) {
    const auto* first = std::get_if<RecordEvent>(&schedule_.events[at]);
    if (first == nullptr) continue;
    allocator_.clock()->forget_from(first->id);
    return;
  }
}

// Work, recorded and awaited events move the clock; nothing else does.
void Repeater::catch_up(std::size_t event) {
  StreamClock& clock = *allocator_.clock();
  for (; caught_up_ < event; ++caught_up_) {
    const Event& passed = schedule_.events[caught_up_];
    if (const auto* work = std::get_if<Compute>(&passed)) {
      clock.work(caught_up_, work->stream);
    } else if (const auto* sent = std::get_if<Communicate>(&passed)) {
      clock.work(caught_up_, sent->stream);
    } else if (const auto* recorded = std::get_if<RecordEvent>(&passed)) {
      clock.record_event(*recorded);
    } else if (const auto* awaited = std::get_if<WaitEvent>(&passed)) {
      clock.wait_event(*awaited);
    }
  }
}

}  // namespace dsplan
