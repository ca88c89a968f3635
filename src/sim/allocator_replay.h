// Replays an allocator trace and writes the allocator's statistics after each call.
#pragma once

#include <string>

#include "core/allocator_trace.h"

namespace dsplan {

// CSV: the header, then a row after every alloc, free, record_stream and empty_cache. Running out of memory is data
// (the column `ooms`). Freeing an ID that holds nothing because its allocation failed, or because it was for 0 bytes,
// is ignored and still prints its row; so is record_stream on such an ID or on a freed one.
// Refuses, with the place in the trace and before any row exists: freeing an ID twice, an ID that was never allocated,
// and allocating to an ID that is live.
[[nodiscard]] std::string replay_csv(const AllocatorTrace& trace);

}  // namespace dsplan
