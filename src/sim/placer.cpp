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

void Repeater::catch_up(std::size_t event) {
  StreamClock& clock = *allocator_.clock();
  for (; caught_up_ < event; ++caught_up_) {
    const Event& passed = schedule_.events[caught_up_];
    if (const auto* compute = std::get_if<Compute>(&passed)) {
      clock.work(caught_up_, compute->stream);
    } else if (const auto* sent = std::get_if<Communicate>(&passed)) {
      clock.work(caught_up_, sent->stream);
    } else if (const auto* recorded = std::get_if<RecordEvent>(&passed)) {
      clock.record_event(*recorded);
    } else if (const auto* waited = std::get_if<WaitEvent>(&passed)) {
      clock.wait_event(*waited);
    }
  }
}

}  // namespace dsplan
