// A schedule as the memory snapshot that PyTorch would record of it.
#pragma once

#include "core/schedule.h"
#include "core/snapshot.h"
#include "sim/allocator.h"

namespace dsplan {

// Replays the device buffers of `schedule` on one allocator of `capacity` bytes, with its history switched on from the
// start: one entry for each step that the allocator takes, and the segments as they are at the end. An allocation that
// fails is the last entry ("oom"). Times count entries, since step times are not modelled. Stacks say what and where,
// innermost first: label and role, the parameter, the module, the pass and the step. Streams have their numbers as
// handles; a free that waits for another stream ends at once. Addresses ascend from 2 MiB.
[[nodiscard]] Snapshot snapshot_of(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config,
                                   Bytes capacity);

}  // namespace dsplan
