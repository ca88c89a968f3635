// The schedule of one rank behind the words of `simulate`, for commands that look at its events.
#pragma once

#include <string>

#include "cli/assemble.h"
#include "core/allocator_config.h"
#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

struct Predicted {
  Inputs inputs;
  Job job;
  Prediction prediction;
  Schedule schedule;
  AllocatorConfig config;
  Bytes limit;  // What the allocator may reserve; CachingAllocator::kUnlimited without a capacity.
};

// Notices go to standard error. Refuses, under `what`, --rank all and jobs without a schedule.
[[nodiscard]] Predicted predicted_schedule(const SimulateWords& words, const std::string& what);

// The allocator's settings in a job.
[[nodiscard]] AllocatorConfig allocator_config(const Job& job);

}  // namespace dsplan
