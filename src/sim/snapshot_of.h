// The allocator's blocks as the segments of a snapshot.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/schedule.h"
#include "core/snapshot.h"
#include "sim/allocator.h"

namespace dsplan {

// By address; an expandable range is one segment for each contiguous mapped stretch (E8). `streams`: the handle of each
// stream. Stacks and devices are left at 0, and no block is PendingFree but those that wait in the allocator itself.
[[nodiscard]] std::vector<SnapshotSegment> segments_of(const CachingAllocator& allocator,
                                                       const std::vector<std::int64_t>& streams);

// A schedule as the memory snapshot that PyTorch would record of it.

// Replays the device buffers of `schedule` on one allocator of `capacity` bytes, with its history switched on from the
// start: one entry for each step that the allocator takes, and the segments as they are at the end. An allocation that
// fails is the last entry ("oom"). Times count entries, since step times are not modelled. Stacks say what and where,
// innermost first: label and role, the parameter, the module, the pass and the step. Streams have their numbers as
// handles; a free that waits for another stream ends at once. Addresses ascend from 2 MiB.
[[nodiscard]] Snapshot snapshot_of(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config,
                                   Bytes capacity);

}  // namespace dsplan
