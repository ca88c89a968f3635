// `--placement planned`: the schedule in one arena, beside what the caching allocator makes of it.
#pragma once

#include "core/job.h"
#include "core/prediction.h"
#include "core/schedule.h"

namespace dsplan {

// `reserved`: of the caching allocator without a limit, for the whole schedule.
[[nodiscard]] PlannedArena plan_arena(const Schedule& schedule, Bytes reserved);

// p.arena becomes what the process reserves: p.peak's reserved and process, and the verdict. Needs p.peak.
void judge_planned(PlannedArena arena, Prediction& p);

}  // namespace dsplan
