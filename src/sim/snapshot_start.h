// The state in which a recording began, found by undoing its trace from the final segments: a history that wrapped
// around, or that was switched on late, begins in the middle of a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/snapshot.h"
#include "sim/allocator.h"

namespace dsplan {

struct RecordedBlock {  // Handed out, whether or not its free already waits.
  Bytes size;
  Bytes requested;
};
struct RecordedSegment {  // A cudaMalloc, or a contiguous mapped stretch.
  Bytes size;
  std::int64_t stream = 0;
  bool large = false;
  bool expandable = false;
};
struct RecordedState {
  std::map<std::int64_t, RecordedBlock> live;        // By address.
  std::map<std::int64_t, RecordedSegment> segments;  // By address.
};

// Sizes of blocks that were freed on the way are computed by the allocator's rules R2 and R7. Refuses, under `path`, a
// trace that its own final segments contradict, with the number of the entry: parts of the history are missing then
// (it was switched off in between, or written without some actions).
[[nodiscard]] RecordedState state_before(const Snapshot& snapshot, std::int64_t device, const std::string& path);

}  // namespace dsplan
