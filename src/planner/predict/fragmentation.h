// --explain fragmentation: what lies between allocated and reserved, which buffers pin it, and what another allocator
// conf would change. Costs a replay to the peak and one for each conf that is tried.
#pragma once

#include <optional>

#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "sim/placement.h"

namespace dsplan {

// `options`: of the placement without a limit, whose `peaks` are given. `limit`: what the verdict's replay has, and of
// what its fraction is taken; nullopt without a capacity.
struct VerdictLimit {
  Bytes limit;
  Bytes device;
};
[[nodiscard]] Fragmentation explain_fragmentation(const Schedule& schedule, const ModelSpec& model, const Job& job,
                                                  const PlacementOptions& options, const PlacementPeaks& peaks,
                                                  const std::optional<VerdictLimit>& limit);

}  // namespace dsplan
