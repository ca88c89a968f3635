// When frees complete that wait for other streams: drives a caching allocator along the work of a schedule. Shared by
// the simulator, whose segments are made up, and the executor, whose segments are real.
//
// A buffer lives in the pool of the stream that allocates it. Work on another stream that touches it is a use of that
// stream (record_stream), and its free then waits. At synchronisation: until the first event after which the allocating
// stream, or the host, has waited for that use. Immediate: until the next allocation. Uses of one stream complete in
// the order of the frees, as PyTorch's queue has them.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <span>

#include "core/job.h"
#include "core/schedule.h"
#include "sim/allocator.h"
#include "sim/stream_waits.h"

namespace dsplan {

class AllocatorStreams {
 public:
  AllocatorStreams(CachingAllocator& allocator, StreamFrees frees) : allocator_(allocator), frees_(frees) {
    allocator_.set_events_ready(frees_ == StreamFrees::Immediate);
  }

  // Right before the allocator is asked.
  void allocating(BufferId buffer, StreamId stream) {
    if (stream != 0) waits().allocated(buffer, stream);
  }
  // One piece of work, in program order. Nothing of streams is kept until a second one shows up.
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
    if (stream == 0 && !waits_) [[likely]]
      return;
    waits().work(stream, reads, writes);
  }
  void record_event(const RecordEvent& event) {
    if (waits_) waits_->record_event(event);
  }
  void wait_event(const WaitEvent& event) {
    if (waits_) complete_after(event);
  }
  // Right before the block is released. The streams for whose uses its free will wait.
  StreamSet releasing(BufferId buffer, BlockId block) { return waits_ ? record_uses(buffer, block) : StreamSet{0}; }
  // To give everything back, the allocator has waited for all uses.
  void retried() { queues_.clear(); }

 private:
  // A free that waits for one stream's use; in the order in which that stream's uses complete.
  struct Waiting {
    StreamId owner;
    StreamWaits::Use use;
  };

  [[nodiscard]] StreamWaits& waits() {
    if (!waits_) waits_ = std::make_unique<StreamWaits>();
    return *waits_;
  }
  void complete_after(const WaitEvent& event);
  StreamSet record_uses(BufferId buffer, BlockId block);

  CachingAllocator& allocator_;
  StreamFrees frees_;
  std::unique_ptr<StreamWaits> waits_;
  std::map<StreamId, std::deque<Waiting>> queues_;  // By the stream whose uses they are.
};

}  // namespace dsplan
