// A schedule through the caching allocator, as a timeline.
#pragma once

#include "core/job.h"
#include "core/model.h"
#include "core/timeline.h"
#include "sim/allocator.h"

namespace dsplan {

// On an allocator without a limit. Saving, where the schedule has it, is part of it.
[[nodiscard]] Timeline timeline_of(const Schedule& schedule, const ModelSpec& model, const AllocatorConfig& config,
                                   StreamFrees frees);

}  // namespace dsplan
