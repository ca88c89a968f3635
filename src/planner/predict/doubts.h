// By how much the figures that a verdict rests on may be too low: what was measured of their errors, and what nobody
// has measured. Decides between `fits` and `tight`, and how much a search leaves free. Sources stand at the figures.
#pragma once

#include <vector>

#include "core/job.h"
#include "core/prediction.h"
#include "core/units.h"

namespace dsplan {

// `reserved` is the most that the allocator takes. What is certain has no row: a size of the device that the user gave,
// a context that was measured, communicators where there are none. `first_bucket`: what DistributedDataParallel sent in
// its first backward (verdict.cpp). Largest first.
[[nodiscard]] std::vector<Doubt> doubts_of(const Job& job, Bytes reserved, Bytes first_bucket = Bytes(0));
// Of an op-graph, whose kernels' rows are those of plain PyTorch.
[[nodiscard]] std::vector<Doubt> doubts_of_graph(Bytes reserved, bool context_measured);

// By how many thousandths the reserved peak of such a job is too low in all but one of twenty jobs that were measured.
[[nodiscard]] std::int64_t reserved_error_permille(const Training& training, const Parallelism& parallel);

[[nodiscard]] Bytes sum_of(const std::vector<Doubt>& doubts);

}  // namespace dsplan
