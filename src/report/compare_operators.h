// Measured operators held against the catalogue, row by row.
#pragma once

#include <span>
#include <vector>

#include "core/operator_runs.h"
#include "report/operator_comparison.h"

namespace dsplan {

// Several files of one level are one measurement: a row needs every case of all of them. The rows are those of the
// torch that the file names. Throws InternalError for files of different levels; the caller keeps them apart. Refuses a
// version of torch that cannot be read, and an operator that it does not have.
[[nodiscard]] OperatorComparison compare_operators(std::span<const OperatorRuns> files);

// The rows that may say Witness::Cuda: confirmed by files whose device is "cuda".
[[nodiscard]] std::vector<Op> confirmed_on_cuda(std::span<const OperatorRuns> files);

}  // namespace dsplan
