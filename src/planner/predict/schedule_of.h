// The schedule behind a prediction, for commands that look at its events.
#pragma once

#include <cstdint>
#include <string>

#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"

namespace dsplan {

// Of one rank, 0 <= rank < world. Refuses, under `what`, a job for which no schedule can be made yet.
[[nodiscard]] Schedule schedule_of(const ModelSpec& model, const Job& job, std::int64_t rank, const std::string& what);

}  // namespace dsplan
