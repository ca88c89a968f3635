// A schedule through the caching allocator: what PyTorch would reserve, and whether it runs under a limit.
#pragma once

#include <optional>
#include <string>

#include "core/schedule.h"
#include "sim/allocator.h"

namespace dsplan {

struct Placement {
  Bytes peak_allocated;  // Largest sum of handed-out blocks, slack included.
  Bytes peak_reserved;
  std::int64_t retries = 0;
  // The first allocation that failed, if one did; the replay stops there.
  std::optional<std::size_t> failed_event;
  Bytes failed_request;
  Bytes missing;  // How far the request exceeded what was left.
};

// Replays the device buffers of `schedule` on one allocator of `capacity` bytes.
[[nodiscard]] Placement place(const Schedule& schedule, const AllocatorConfig& config, Bytes capacity);

}  // namespace dsplan
