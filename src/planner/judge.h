// The two halves of a prediction that a schedule alone decides: its peak, and whether it fits.
#pragma once

#include "core/model.h"
#include "core/prediction.h"
#include "core/schedule.h"
#include "sim/memory.h"
#include "sim/placement.h"

namespace dsplan {

// p.peak: when it is, what is alive, and what the allocator and the process make of it. Reads p.context and
// p.communicators.
void add_peak(const Schedule& schedule, const ModelSpec& model, const MemoryMeter& meter, const Placement& placement,
              Prediction& p);

// p.verdict with its reason, by replay under p.capacity less what lies beside the allocator and what is reserved.
// `unlimited`: the placement without a limit.
void judge(const Schedule& schedule, const ModelSpec& model, const Placement& unlimited, Prediction& p);

}  // namespace dsplan
