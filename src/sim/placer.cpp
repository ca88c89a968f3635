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

void Repeater::repeat(std::span<const AllocatorRequest> requests) {
  AllocatorStreams& streams = allocator_.streams();
  const bool timed = allocator_.clock() != nullptr;
  for (const AllocatorRequest& request : requests) {
    if (allocator_.stopped()) return;
    if (timed) catch_up(request.event);
    switch (request.what) {
      case AllocatorRequest::What::Allocate:
        if (timed) streams.complete();
        allocator_.allocate(request.event, request.buffer, request.stream);
        break;
      case AllocatorRequest::What::Release:
        if (request.waits_for != 0) streams.releasing(allocator_.block(request.buffer), request.waits_for);
        allocator_.release(request.event, request.buffer, request.waits_for);
        break;
      case AllocatorRequest::What::Complete: streams.complete(request.stream, request.count); break;
      case AllocatorRequest::What::EmptyCache: allocator_.empty_cache(request.event); break;
      case AllocatorRequest::What::Mark:
        allocator_.mark(request.event, std::get<Mark>(schedule_.events[request.event]));
        break;
    }
  }
}

namespace {

// What moves the clock; nothing else does.
void follow(StreamClock& clock, std::size_t at, const Compute& event) { clock.work(at, event.stream); }
void follow(StreamClock& clock, std::size_t at, const Communicate& event) { clock.work(at, event.stream); }
void follow(StreamClock& clock, std::size_t, const RecordEvent& event) { clock.record_event(event); }
void follow(StreamClock& clock, std::size_t, const WaitEvent& event) { clock.wait_event(event); }
template <class Other>
void follow(StreamClock&, std::size_t, const Other&) {}

}  // namespace

void Repeater::catch_up(std::size_t event) {
  StreamClock& clock = *allocator_.clock();
  for (; caught_up_ < event; ++caught_up_) {
    std::visit([&](const auto& passed) { follow(clock, caught_up_, passed); }, schedule_.events[caught_up_]);
  }
}

}  // namespace dsplan
