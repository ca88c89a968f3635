// A schedule through the caching allocator, written down moment by moment: for questions about what a program saw, and
// as a timeline for pictures.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"
#include "core/timeline.h"
#include "sim/allocator.h"

namespace dsplan {

// A schedule through the caching allocator, written down moment by moment: for questions about what a program saw.

struct AllocationMoment {
  std::size_t event = 0;
  Bytes request;
  Bytes allocated;  // Before it.
};
struct MarkMoment {
  std::size_t event = 0;
  Bytes allocated;
  Bytes reserved;
  Bytes peak_allocated;  // Since the mark before, that one included.
  Bytes peak_reserved;
};
struct AllocationLog {
  std::vector<AllocationMoment> allocations;
  std::vector<MarkMoment> marks;   // At the schedule's marks.
  std::vector<MarkMoment> prints;  // As Schedule::prints, each right before its event; peaks since the print before.
};

// On an allocator without a limit; frees that wait for another stream end at once.
[[nodiscard]] AllocationLog allocation_log(const Schedule& schedule, const AllocatorConfig& config);

// What stays reserved when everything cached is given back right before event `event`.
[[nodiscard]] Bytes reserved_when_emptied(const Schedule& schedule, const AllocatorConfig& config, std::size_t event);

// A schedule through the caching allocator, as a timeline.

// On an allocator without a limit. Saving, where the schedule has it, is part of it.
[[nodiscard]] Timeline timeline_of(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config,
                                   StreamFrees frees);

}  // namespace dsplan
