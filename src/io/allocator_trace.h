// Reader of allocator traces: text lines
//   capacity BYTES | conf KEY:VALUE,... | fraction F | alloc ID BYTES STREAM | free ID | record_stream ID STREAM |
//   events_ready 0|1 | empty_cache
// IDs and streams are any whole numbers from 0. Empty lines are passed over.
#pragma once

#include <string>

#include "core/allocator_trace.h"

namespace dsplan {

// Refuses, with up to 20 faults at once: unknown words, missing or surplus fields, numbers that are not whole, negative
// or beyond 63 bits, a fraction outside 0 to 1, a conf that PyTorch rejects, more than 1024 streams. Whether an ID may
// be freed or reused depends on which requests succeed, so the replay judges that.
[[nodiscard]] AllocatorTrace read_allocator_trace(std::string path, std::string text);

}  // namespace dsplan
