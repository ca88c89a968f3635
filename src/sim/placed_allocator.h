// One caching allocator along a schedule, and what is noted of it: peaks by stretch, marks, prints, retries, a failure.
// Who drives it (sim/placer.h) knows what is asked when. Private to sim/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "core/schedule.h"
#include "sim/allocator.h"
#include "sim/placement.h"
#include "sim/stream_clock.h"
#include "sim/stream_waits.h"

namespace dsplan {

// `blocks`: of all buffers. `held`: those that are handed out. What awaits its free counts as free: where frees
// complete at once it is, before the next allocation.
[[nodiscard]] AllocatorShape shape_of(const CachingAllocator& allocator, const Indexed<BufferId, BlockId>& blocks,
                                      std::span<const BufferId> held);

// What the framework prints, at the events that the schedule names.
class PrintLog {
 public:
  // `growing`: more may be wanted later on.
  PrintLog(const Schedule& schedule, const CachingAllocator& allocator, bool growing)
      : wanted_(schedule.prints), allocator_(allocator), growing_(growing) {
    look(0);
  }

  // Those that come before event `at`.
  void before(std::size_t at, std::vector<PlacementPrint>& prints) {
    if (at < next_) [[likely]]
      return;
    while (prints.size() < wanted_.size() && wanted_[prints.size()].event <= at) print(prints);
    look(prints.size());
  }
  // How many events from `at` on come before the next one, if those before `at` are written.
  [[nodiscard]] std::size_t events_before_next(std::size_t at, const std::vector<PlacementPrint>& prints) const {
    return prints.size() < wanted_.size() ? wanted_[prints.size()].event - at : kNever;
  }
  // Right after an allocation.
  void grown() {
    if (growing_ || !wanted_.empty()) [[unlikely]]
      take_peaks();
  }

 private:
  static constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

  void take_peaks();
  void print(std::vector<PlacementPrint>& prints);
  // Of a schedule that grows the next one may come at any event.
  void look(std::size_t printed) { next_ = printed < wanted_.size() ? wanted_[printed].event : growing_ ? 0 : kNever; }

  const std::vector<FrameworkPrint>& wanted_;
  const CachingAllocator& allocator_;
  bool growing_;
  std::size_t next_ = 0;  // None is wanted before this event.
  Bytes most_allocated_;  // Since the print before, as the next.
  Bytes most_reserved_;
};

class PlacedAllocator {
 public:
  // `growing`: the schedule is still written, and is followed before it is asked for what is new.
  PlacedAllocator(const Schedule& schedule, const PlacementOptions& options, bool growing = false);
  // Of a schedule that grows: what it has by now.
  void follow() { blocks_.resize(schedule_.buffers.size(), kNullBlock); }
  PlacedAllocator(const PlacedAllocator&) = delete;
  PlacedAllocator& operator=(const PlacedAllocator&) = delete;

  // After a failure nothing may be asked any more, nor after a retry where that is all that is asked.
  [[nodiscard]] bool stopped() const { return result_.failed_event || (until_retry_ && retries_ > 0); }
  [[nodiscard]] BlockId block(BufferId buffer) const { return blocks_[buffer]; }  // kNullBlock: it has none.
  [[nodiscard]] AllocatorStreams& streams() { return streams_; }
  [[nodiscard]] StreamClock* clock() { return clock_.get(); }  // nullptr: nobody estimates times.

  // `at`: the event that asks. Of what streams do, `streams` has been told.
  void allocate(std::size_t at, BufferId buffer, StreamId stream);
  void release(std::size_t at, BufferId buffer, StreamSet waits_for);
  void mark(std::size_t at, const Mark& event);
  void empty_cache(std::size_t at);
  // From here on `gone` has the block of `heir`, which has none.
  void inherit(BufferId gone, BufferId heir);

  [[nodiscard]] Placement finish();
  [[nodiscard]] AllocatorState state() const;
  [[nodiscard]] AllocatorShape shape() const;
  // Empty where some free has waited for longer than the next allocation.
  [[nodiscard]] SecondStep take_second_step() { return std::move(second_step_); }

 private:
  friend class PlacedRuns;
  friend class PlacedAlong;
  struct Awaited {
    Bytes address;
    BufferId buffer;
  };
  // What a buffer in pieces has.
  struct InPieces {
    BufferId buffer;
    std::vector<AllocatorRuns::Together> blocks;
  };
  // Notes a retry, and a failure.
  [[nodiscard]] std::optional<BlockId> ask(std::size_t at, Bytes size, StreamId stream);

  const Schedule& schedule_;
  CachingAllocator allocator_;
  std::unique_ptr<StreamClock> clock_;
  AllocatorStreams streams_;
  PrintLog prints_;
  Indexed<BufferId, BlockId> blocks_;
  bool until_retry_;
  bool at_once_;  // When frees complete that wait for other streams.
  SecondStep second_step_;
  std::int64_t retries_ = 0;
  bool saved_ = false;   // The schedule's last stretch is saving.
  Bytes most_reserved_;  // Since the last mark, as the next.
  std::size_t reserved_at_ = 0;
  Placement result_;
  std::vector<Awaited> awaited_;
  std::vector<Bytes> sizes_;         // Of a run.
  std::vector<InPieces> in_pieces_;  // Those that are there: a few.
};

// Several blocks at once, where the allocator has an answer for all of them (AllocatorRuns).
class PlacedRuns {
 public:
  explicit PlacedRuns(PlacedAllocator& allocator) : own_(allocator) {}

  // `count` buffers that follow each other, each at an event of its own, one behind the other from `at` on; none of the
  // frees waits.
  void allocate(std::size_t at, BufferId first, std::size_t count, StreamId stream);
  void release(std::size_t at, BufferId first, std::size_t count);
  // One buffer that stands for many tensors (Schedule::pieces).
  void allocate_pieces(std::size_t at, BufferId buffer, StreamId stream);
  void release_pieces(BufferId buffer);

 private:
  PlacedAllocator& own_;
};

}  // namespace dsplan
