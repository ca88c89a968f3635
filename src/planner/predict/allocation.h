// What allocators make of a schedule: PyTorch's at both ends of what waiting frees can do, what lies between allocated
// and reserved (--explain fragmentation), and one arena laid out beforehand (--placement planned).
#pragma once

#include <optional>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "sim/placement.h"
#include "sim/window.h"

namespace dsplan {

// What a device has for one process, and what of it is not the allocator's.
struct DeviceRoom {
  std::optional<Bytes> capacity;  // nullopt: not known.
  Bytes context;
  Bytes communicators;
  Bytes reserve;  // Kept free by wish.

  [[nodiscard]] Bytes beside() const { return context + communicators; }
};
[[nodiscard]] DeviceRoom device_room(const Job& job);
[[nodiscard]] DeviceRoom device_room(const Prediction& p);

// What the verdict's replay has, and of what its memory fraction is taken: PyTorch takes it of the whole.
struct VerdictLimit {
  Bytes limit;
  Bytes device;
};
// nullopt without a capacity.
[[nodiscard]] std::optional<VerdictLimit> verdict_limit(const DeviceRoom& room);

// The job's allocator, without its memory fraction, which is a limit too.
[[nodiscard]] PlacementOptions without_limit(const Job& job);
// With its memory fraction, and as much as `room` has; as above where its capacity is not known.
[[nodiscard]] PlacementOptions under_limit(const Job& job, const DeviceRoom& room);

// Both ends of what waiting frees can do. Where none waits they are one.
struct BothEnds {
  PlacementPeaks asked;  // By --stream-frees.
  PlacementPeaks high;
  PlacementPeaks low;
};
// Of the whole schedule, or of one window.
[[nodiscard]] BothEnds ends_of(const Schedule& schedule, const BothPlacements& both, const PlacementOptions& options,
                               const std::optional<Window>& only);

// Of a placement, over the whole schedule or one window.
[[nodiscard]] PlacementPeaks peaks_of(const Schedule& schedule, const Placement& placement,
                                      const std::optional<Window>& only);

// `reserved`: of the caching allocator without a limit, for the whole schedule.
[[nodiscard]] PlannedArena plan_arena(const Schedule& schedule, Bytes reserved);

// What lies between allocated and reserved, which buffers pin it, and what another allocator conf would change. Costs a
// replay to the peak and one for each conf that is tried. `options`: of the placement without a limit, whose `peaks`
// are given.
[[nodiscard]] Fragmentation explain_fragmentation(const Schedule& schedule, const ModelSpec& model, const Job& job,
                                                  const PlacementOptions& options, const PlacementPeaks& peaks,
                                                  const std::optional<VerdictLimit>& limit);

}  // namespace dsplan
