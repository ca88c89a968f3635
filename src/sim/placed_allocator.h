// One caching allocator along a schedule, and what is noted of it: peaks by stretch, marks, prints, retries, a failure.
// Who drives it (sim/placer.h) knows what is asked when. Private to sim/.
#pragma once

#include <cstddef>
#include <cstdint>
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
  PrintLog(const ScheduleView& view, const CachingAllocator& allocator) : view_(view), allocator_(allocator) {}

  // Those that come before event `at`.
  void before(std::size_t at, std::vector<PlacementPrint>& prints) {
    const std::span<const FrameworkPrint> wanted = view_.prints();
    while (prints.size() < wanted.size() && wanted[prints.size()].event <= at) [[unlikely]] print(prints);
  }
  // Right after an allocation.
  void grown();

 private:
  void print(std::vector<PlacementPrint>& prints);

  const ScheduleView& view_;
  const CachingAllocator& allocator_;
  Bytes most_allocated_;  // Since the print before, as the next.
  Bytes most_reserved_;
};

class PlacedAllocator : public Viewer {
 public:
  PlacedAllocator(const Schedule& schedule, const PlacementOptions& options);
  PlacedAllocator(const PlacedAllocator&) = delete;
  PlacedAllocator& operator=(const PlacedAllocator&) = delete;

  // After a failure nothing may be asked any more, nor after a retry where that is all that is asked.
  [[nodiscard]] bool stopped() const { return result_.failed_event || (until_retry_ && retries_ > 0); }
  // kNullBlock: it has none.
  [[nodiscard]] BlockId block(BufferId buffer) const { return blocks_.has(buffer) ? blocks_[buffer] : kNullBlock; }
  struct SoFar {
    bool waited;     // Some free has waited for another stream.
    Bytes reserved;  // The most since the last mark.
  };
  [[nodiscard]] SoFar so_far() const { return {result_.waited, most_reserved_}; }
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
  [[nodiscard]] SecondStep take_second_step();

 private:
  struct Awaited {
    Bytes address;
    BufferId buffer;
  };
  void note_retry(std::size_t at);

  const Schedule& schedule_;
  CachingAllocator allocator_;
  std::unique_ptr<StreamClock> clock_;
  AllocatorStreams streams_;
  PrintLog prints_;
  Indexed<BufferId, BlockId> blocks_;  // Those beyond have none: the schedule may still be written.
  bool until_retry_;
  bool at_once_;            // When frees complete that wait for other streams.
  SecondStep second_step_;  // But for what it left.
  std::shared_ptr<SecondStep::Left> left_;
  std::int64_t retries_ = 0;
  bool saved_ = false;   // The schedule's last stretch is saving.
  Bytes most_reserved_;  // Since the last mark, as the next.
  std::size_t reserved_at_ = 0;
  Placement result_;
  std::vector<Awaited> awaited_;
};

}  // namespace dsplan
