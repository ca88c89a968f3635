// A schedule through the caching allocator: what PyTorch would reserve, and whether it runs under a limit.
//
// Streams: a free waits for what other streams do with the buffer. When it completes is not in the schedule, so both
// ends are computed (sim/stream_waits.h).
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "sim/allocator.h"
#include "sim/stream_clock.h"

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

// Replays the device buffers of `schedule` on one allocator.
[[nodiscard]] Placement place(const Schedule& schedule, const PlacementOptions& options);

// A schedule in which frees wait is placed twice.
struct BothPlacements {
  Placement asked;                 // By `options`.
  std::optional<Placement> other;  // The other end.
};
[[nodiscard]] BothPlacements place_both(const Schedule& schedule, const PlacementOptions& options);
[[nodiscard]] PlacementOptions other_end(PlacementOptions options);

inline constexpr std::int64_t kLongestRun = 40;

// The steady step again and again on the same allocator (core/prediction.h). Frees that wait for other streams complete
// at once, whatever `options` say: when else they would is not known of steps that are not in the schedule. nullopt:
// the schedule has no second step, has no room for its own steps, or its second step does not leave what it found,
// buffer by buffer.
[[nodiscard]] std::optional<LongRun> long_run(const Schedule& schedule, PlacementOptions options,
                                              std::int64_t most = kLongestRun);

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

// What lies between the bytes that were asked for and those that are reserved, at one moment of an allocator.

// A segment (of an expandable range: one mapped stretch) that is partly handed out and partly free.
struct SegmentInUse {
  Bytes address;
  Bytes size;
  Bytes free;                       // What empty_cache could not give back.
  std::vector<std::size_t> blocks;  // Indices into AllocatorState::blocks of those that pin it, largest first.
};

// reserved = requested + slack + awaiting + inactive_split + cached, by construction.
struct FragmentationMap {
  Bytes reserved;
  Bytes requested;                     // Of the blocks handed out.
  Bytes slack;                         // Of the same: rounding, and rests that are too small to be split off.
  Bytes awaiting;                      // Blocks whose free waits for another stream, slack included.
  Bytes inactive_split;                // Free, within segments in use; of expandable ranges what fills no page.
  Bytes cached;                        // What empty_cache would give back: whole segments, whole pages.
  std::vector<SegmentInUse> segments;  // Those with free bytes, most free bytes first, then by address.
};

// `config` is what the allocator ran with.
[[nodiscard]] FragmentationMap fragmentation_of(const AllocatorState& state, const AllocatorConfig& config);

}  // namespace dsplan
