// The sections of a prediction: each is a function of the evidence and of nothing else. One that is absent has its
// reason in `absences_of`.
#pragma once

#include <optional>
#include <vector>

#include "core/prediction.h"
#include "planner/predict/evidence.h"
#include "sim/placement.h"
#include "sim/window.h"

namespace dsplan {

// The phases as the allocator saw them: blocks handed out, blocks that wait, segments. `phases` are the meter's.
// The caching allocator counts a block that another stream still uses as requested; in a planned arena none waits, so
// that what is requested stays the meter's.
[[nodiscard]] std::vector<Phase> with_allocator(std::vector<Phase> phases, const Schedule& schedule,
                                                const Placement& placement, PlacementKind kind);

// Of a phase that part alone, all its micro-batches together, with the marks between which it lies.
[[nodiscard]] Phase part_of(const Phase& phase, StepPart part);

// The first micro-batch of the first step, in which ZeRO-3 records the order in which modules ask for parameters: a
// phase of its own, of marks that the first step has too.
[[nodiscard]] std::optional<Phase> recording_micro_batch(const std::vector<Phase>& phases);

[[nodiscard]] Persistent persistent_of(const Evidence& evidence);
[[nodiscard]] std::optional<HeldForBackward> held_of(const Evidence& evidence);
[[nodiscard]] std::optional<Peak> peak_of(const Evidence& evidence, const std::optional<PlannedArena>& arena);
[[nodiscard]] std::optional<LossSpike> loss_spike_of(const Evidence& evidence);
// Only where they were asked for.
[[nodiscard]] std::optional<Fragmentation> fragmentation_of(const Evidence& evidence);
[[nodiscard]] std::optional<PlannedArena> arena_of(const Evidence& evidence);
[[nodiscard]] std::vector<Phase> phases_of(const Evidence& evidence);
[[nodiscard]] std::optional<std::vector<TrafficRow>> communication_of(const Evidence& evidence);
[[nodiscard]] std::vector<TrafficTerm> terms_of(const Evidence& evidence);
[[nodiscard]] std::vector<Absence> absences_of(const Evidence& evidence);

// Whether --phase does. A part of a step is of the second one.
[[nodiscard]] bool leaves_second_step_out(const Evidence& evidence);

// With frees that wait complete by estimated times, which there must be.
[[nodiscard]] Bytes expected_reserved(const Readings& readings);

// When the peak is, what is alive then, and what the allocator and the process make of it; with `arena`, that in the
// allocator's place.
[[nodiscard]] Peak peak_in(const Readings& readings, const ModelSpec& model, const DeviceRoom& room,
                           const std::optional<PlannedArena>& arena);

}  // namespace dsplan
