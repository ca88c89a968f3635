// A schedule through the caching allocator: what PyTorch would reserve, and whether it runs under a limit.
//
// Streams: a free waits for what other streams do with the buffer. When it completes is not in the schedule, so both
// ends are computed (sim/stream_waits.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "sim/allocator.h"
#include "sim/stream_clock.h"
#include "sim/stream_waits.h"

namespace dsplan {

inline constexpr std::size_t kStretches = 5;

struct PlacementOptions {
  AllocatorConfig config;
  // What the device has left for the allocator.
  Bytes limit = CachingAllocator::kUnlimited;
  // Of what a memory fraction is taken: all that the device has, as PyTorch takes it.
  Bytes device = CachingAllocator::kUnlimited;
  StreamFrees frees = StreamFrees::AtSync;
  // Instead of `frees`: they complete when their events would have, on a clock with these times, which must outlive
  // this. nullptr: nobody estimates any.
  const EventTimes* times = nullptr;
  // The replay stops at the first retry.
  bool until_retry = false;
};

struct PlacementPeaks {
  Bytes requested;  // Largest sum of what was asked for, with blocks whose free waits, as PyTorch counts it.
  Bytes allocated;  // Largest sum of handed-out blocks, slack included.
  Bytes active;     // The same with those whose free waits.
  Bytes reserved;
  std::size_t reserved_at = 0;  // The first event at which `reserved` is largest.
};

// The allocator at a mark.
struct PlacementMark {
  std::size_t event = 0;
  Bytes requested;
  Bytes allocated;
  Bytes active;
  Bytes reserved;
  PlacementPeaks since;  // The mark before.
};

// The allocator where the framework prints what it has.
struct PlacementPrint {
  Bytes allocated;
  Bytes reserved;
  Bytes peak_allocated;  // Since the print before.
  Bytes peak_reserved;
};

struct Placement {
  PlacementPeaks peak;                 // Saving left out.
  std::vector<PlacementMark> marks;    // All of them, up to a failure.
  std::vector<PlacementPrint> prints;  // As Schedule::prints; fewer after a failure.
  std::array<PlacementPeaks, kStretches>
      by_stretch;  // Zero where the schedule has no such stretch; the largest of several.
  std::int64_t retries = 0;
  std::optional<std::size_t> first_retry;  // The event that caused it.
  bool waited = false;                     // Some free waited for another stream: the two ends may differ.
  // The first allocation that failed, if one did; the replay stops there.
  std::optional<std::size_t> failed_event;
  Bytes failed_request;
  Bytes missing;  // How far the segment that it needed exceeded what was left.
};

// The largest of all stretches, saving included: what never exceeds a limit is the same under it.
[[nodiscard]] Bytes most_reserved(const Placement& placement);

// Replays the device buffers of `schedule` on one allocator.
[[nodiscard]] Placement place(const Schedule& schedule, const PlacementOptions& options);

// What an allocator was asked, so that another one can be asked the same without the schedule's work in between: which
// uses a free waits for, and when they are over, does not depend on the allocator.
struct AllocatorRequest {
  enum class What : std::uint8_t { Allocate, Release, Complete, EmptyCache, Mark };
  std::uint32_t event = 0;
  BufferId buffer = kNoBuffer;
  What what = What::Mark;
  StreamId stream = 0;
  StreamSet waits_for = 0;  // Of a release.
  // Frees that complete at synchronisation; more than 255 are several requests. Of the others 1 in a run of buffers
  // that follow each other and are asked for, or go, one right behind the other.
  std::uint8_t count = 0;
};

// One block as it decides how an allocator answers: not where it lies, but in which order.
struct ShapedBlock {
  Bytes size;
  BufferId buffer = kNoBuffer;  // Of one that is handed out.
  StreamIndex stream = 0;
  CachingAllocator::BlockState state = CachingAllocator::BlockState::Free;
  bool large = false;   // The pool: with the stream, what it is served from.
  bool begins = false;  // A segment.
  friend bool operator==(const ShapedBlock&, const ShapedBlock&) = default;
};
using AllocatorShape = std::vector<ShapedBlock>;  // By address.

// How the second step found and left the allocator, where frees complete at once.
struct SecondStep {
  AllocatorShape before;
  AllocatorShape after;
  struct Left {
    CachingAllocator allocator;
    Indexed<BufferId, BlockId> blocks;  // kNullBlock: the buffer has none.
  };
  std::shared_ptr<const Left> left;  // What `after` is the shape of: further steps go on from here.
};

// A schedule in which frees wait is placed twice.
struct BothPlacements {
  Placement asked;                          // By `options`.
  std::optional<Placement> other;           // The other end.
  StreamFrees frees = StreamFrees::AtSync;  // Of `asked`.
  // What was asked. Empty where the replay failed or gave its cache back, or the schedule has more than 2^32 events.
  std::vector<AllocatorRequest> requests;
  SecondStep second_step;  // Empty where the schedule has none.
};
// Without the other end, and then with it.
[[nodiscard]] BothPlacements place_asked(const Schedule& schedule, const PlacementOptions& options);
void place_other(const Schedule& schedule, const PlacementOptions& options, BothPlacements& both);
[[nodiscard]] PlacementOptions other_end(PlacementOptions options);

// `place_asked` along a schedule that is still being written.
class PlacedAlong {
 public:
  explicit PlacedAlong(const PlacementOptions& options, bool growing = true);
  ~PlacedAlong();
  PlacedAlong(const PlacedAlong&) = delete;
  PlacedAlong& operator=(const PlacedAlong&) = delete;

  // Takes in what `schedule` has and this has not seen yet. It must stay where it is until the last call.
  void go_on(const Schedule& schedule);
  // By its options: at a failure or, where that is all that is asked, at the first retry.
  [[nodiscard]] bool stopped() const;
  [[nodiscard]] bool waited() const;                   // Some free waited for another stream.
  [[nodiscard]] Bytes address(BufferId buffer) const;  // Of one that is on the device.
  // Once, behind the schedule's end.
  [[nodiscard]] BothPlacements finish();

 private:
  struct Parts;
  PlacementOptions options_;
  bool growing_;
  std::unique_ptr<Parts> parts_;  // From the first event on.
};

// Like `place`, in less time: `both` says what another allocator was asked along the same schedule.
[[nodiscard]] Placement place_again(const Schedule& schedule, const BothPlacements& both,
                                    const PlacementOptions& options);
// The same, as far as it comes until another thread sets `needless`: what is there then means nothing.
[[nodiscard]] Placement place_until(const std::atomic<bool>& needless, const Schedule& schedule,
                                    const BothPlacements& both, const PlacementOptions& options);

// The allocator right after an event, with the buffer of each block that is handed out or awaits its free.
struct AllocatorState {
  AllocatorStatistics statistics;
  struct Block {
    CachingAllocator::BlockView view;
    std::optional<BufferId> buffer;
  };
  std::vector<Block> blocks;  // By address.
};

// `event` must lie before the first failure, if there is one.
[[nodiscard]] AllocatorState allocator_after(const Schedule& schedule, const PlacementOptions& options,
                                             std::size_t event);

}  // namespace dsplan
