// The phases of a run with what the allocator had in each, and the parts of a step.
#pragma once

#include <optional>
#include <vector>

#include "core/prediction.h"
#include "sim/placement.h"
#include "sim/window.h"

namespace dsplan {

// The phases as the allocator saw them: blocks handed out, blocks that wait, segments. `phases` are the meter's.
[[nodiscard]] std::vector<Phase> with_allocator(std::vector<Phase> phases, const Schedule& schedule,
                                                const Placement& placement);

// Of a phase that part alone, all its micro-batches together, with the marks between which it lies.
[[nodiscard]] Phase part_of(const Phase& phase, StepPart part);

// The first micro-batch of the first step, in which ZeRO-3 records the order in which modules ask for parameters: a
// phase of its own, of marks that the first step has too.
[[nodiscard]] std::optional<Phase> recording_micro_batch(const std::vector<Phase>& phases);

}  // namespace dsplan
