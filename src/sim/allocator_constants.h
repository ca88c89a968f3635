// The constants of c10/cuda/CUDACachingAllocator.cpp; private to the allocator's own files.
#pragma once

#include <cstdint>

namespace dsplan {

inline constexpr std::int64_t kMinBlock = 512;            // Rounding unit, and the smallest rest worth splitting off.
inline constexpr std::int64_t kSmallSize = 1 << 20;       // The largest size served by the small pool.
inline constexpr std::int64_t kSmallSegment = 2 << 20;    // Segment of the small pool, and its page.
inline constexpr std::int64_t kMinLargeAlloc = 10 << 20;  // From here on a request has its own segment.
inline constexpr std::int64_t kRoundLarge = 2 << 20;      // Rounding of such segments.
inline constexpr std::int64_t kLargestRequest = std::int64_t{1} << 60;  // Above: out of memory at once.
// Segments lie on multiples of this, as the driver's granularity has it.
inline constexpr std::int64_t kSegmentGranularity = 2 << 20;
// An expandable range is 1.125 times the device; a device without limit counts as this, so that ranges stay finite.
inline constexpr std::int64_t kLargestDevice = std::int64_t{1} << 48;

}  // namespace dsplan
