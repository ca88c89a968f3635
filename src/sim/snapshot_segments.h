// The allocator's blocks as the segments of a snapshot.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/snapshot.h"
#include "sim/allocator.h"

namespace dsplan {

// By address; an expandable range is one segment for each contiguous mapped stretch (E8). `streams`: the handle of each
// stream. Stacks and devices are left at 0, and no block is PendingFree but those that wait in the allocator itself.
[[nodiscard]] std::vector<SnapshotSegment> segments_of(const CachingAllocator& allocator,
                                                       const std::vector<std::int64_t>& streams);

}  // namespace dsplan
