// Which streams have waited for which: a clock for each stream, carried along by recorded and awaited events. Knows
// nothing of the allocator; sim/allocator_streams asks it when a use by another stream is over.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/job.h"
#include "core/schedule.h"
#include "sim/allocator.h"
#include "sim/stream_clock.h"

namespace dsplan {

using StreamSet = std::uint8_t;  // A bit for each stream.
static_assert(kStreams <= 8);
[[nodiscard]] constexpr StreamSet bit_of(StreamId stream) { return static_cast<StreamSet>(1U << stream); }

class StreamWaits {
 public:
  using Time = std::uint32_t;  // Counts the work of one stream, from 1.
  struct Use {
    StreamId stream = 0;
    Time time = 0;
  };
  struct Uses {
    std::array<Use, kStreams> list;
    std::size_t count = 0;
    [[nodiscard]] const Use* begin() const { return list.data(); }
    [[nodiscard]] const Use* end() const { return list.data() + count; }
  };

  // `buffer` belongs to `stream`; those that were never named belong to stream 0.
  void allocated(BufferId buffer, StreamId stream);
  // One piece of work, in program order. What streams did before the first call counts as waited for.
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes);
  void record_event(const RecordEvent& event);
  void wait_event(const WaitEvent& event);

  [[nodiscard]] StreamId owner(BufferId buffer) const { return owners_.has(buffer) ? owners_[buffer] : StreamId{0}; }
  // The last use of `buffer` by each stream that does not own it.
  [[nodiscard]] Uses uses(BufferId buffer) const;
  // All that `stream` was given so far.
  [[nodiscard]] Use all_of(StreamId stream) const { return {stream, clocks_[stream][stream]}; }
  // Whether `waiter`, or the host, has waited for that use.
  [[nodiscard]] bool waited(StreamId waiter, Use use) const { return clocks_[waiter][use.stream] >= use.time; }

 private:
  using Clock = std::array<Time, kStreams>;

  void touch(std::span<const Access> accesses, Use use);

  std::array<Clock, kStreams> clocks_{};
  std::vector<std::pair<ContentId, Clock>> recorded_;  // Ascending.
  Indexed<BufferId, StreamId> owners_;                 // Those beyond belong to stream 0.
  Indexed<BufferId, std::uint32_t> uses_of_;           // Index into uses_, from 1; 0: none.
  std::vector<Clock> uses_;
};

// When frees complete that wait for other streams: drives a caching allocator along the work of a schedule. Shared by
// the simulator, whose segments are made up, and the executor, whose segments are real.
//
// A buffer lives in the pool of the stream that allocates it. Work on another stream that touches it is a use of that
// stream (record_stream) unless it stands among UntoldUses, and its free then waits for all that the stream was given
// so far: at the free an event is recorded there, and the allocator asks for it at its next allocation at the earliest.
// At synchronisation: until the allocating stream, or the host, has waited for that. Immediate: until the next
// allocation. Events of one stream complete in the order of the frees, as PyTorch's queue has them.

class AllocatorStreams {
 public:
  using Completed = std::array<std::uint32_t, kStreams>;

  // `untold`: of the schedule. `clock`: frees complete when it has come so far, whatever
  // `frees` says. Both must outlive this.
  AllocatorStreams(CachingAllocator& allocator, StreamFrees frees, const UntoldUses& untold,
                   const StreamClock* clock = nullptr)
      : allocator_(allocator), frees_(frees), untold_(untold), clock_(clock) {
    allocator_.set_events_ready(clock_ == nullptr && frees_ == StreamFrees::Immediate);
  }

  // Right before the allocator is asked. Whether some free completes.
  bool allocating(BufferId buffer, StreamId stream) {
    if (stream != 0 && !untold_.all) waits().allocated(buffer, stream);
    return complete();
  }
  // Those frees complete whose uses are over: whether there are any.
  bool complete() { return waiting_ != 0 && complete_waited(); }
  // How many `complete` just let complete of each stream; then none.
  [[nodiscard]] Completed take_completed() { return std::exchange(completed_, {}); }
  // One piece of work, in program order. Nothing of streams is kept until a second one shows up.
  void work(StreamId stream, std::span<const Access> reads, std::span<const Access> writes) {
    if ((stream == 0 && !waits_) || untold_.all) [[likely]]
      return;
    waits().work(stream, reads, writes);
  }
  void record_event(const RecordEvent& event) {
    if (waits_) waits_->record_event(event);
  }
  void wait_event(const WaitEvent& event) {
    if (waits_) waits_->wait_event(event);
  }
  // Right before the block is released. The streams for whose uses its free will wait.
  StreamSet releasing(BufferId buffer, BlockId block) {
    return waits_ && !untold_.has(buffer) ? record_uses(buffer, block) : StreamSet{0};
  }
  // To give everything back, the allocator has waited for all uses.
  void retried();
  void empty_cache();

  // The same where somebody else has seen what streams do: which of them a free waits for, and how many frees complete
  // at synchronisation of those that would still wait if nothing had been given back.
  void releasing(BlockId block, StreamSet waits_for);
  void complete(StreamId stream, std::size_t count);

 private:
  // A free that waits for one stream, in the order in which they do.
  struct Waiting {
    StreamId owner;
    StreamWaits::Use use;
    double ready = 0;  // By the clock.
  };

  [[nodiscard]] bool is_over(const Waiting& free) const {
    return clock_ != nullptr ? clock_->now() >= free.ready : waits_->waited(free.owner, free.use);
  }
  [[nodiscard]] StreamWaits& waits() {
    if (!waits_) waits_ = std::make_unique<StreamWaits>();
    return *waits_;
  }
  bool complete_waited();
  StreamSet record_uses(BufferId buffer, BlockId block);

  CachingAllocator& allocator_;
  StreamFrees frees_;
  const UntoldUses& untold_;
  const StreamClock* clock_;
  std::unique_ptr<StreamWaits> waits_;
  std::array<std::deque<Waiting>, kStreams> queues_;  // By the stream whose uses they are.
  StreamSet waiting_ = 0;                             // Of which streams the queue is not empty.
  Completed completed_{};
  std::array<std::size_t, kStreams> given_back_{};  // Frees that somebody else still lets wait.
};

}  // namespace dsplan
