// Measured constants of one device (docs/receipts.md, "dsplan.calibration/1").
#pragma once

#include "core/calibration.h"
#include "core/document.h"

namespace dsplan {

// Of the rows, a prediction uses `context`, `cublas_workspace`, `cublaslt_workspace` and `communicator_N`; the others
// (rates, handles) are read and left to the planner. Faults: another schema, missing and unknown keys, names that
// nobody knows or that stand twice, bytes that are no whole number, no GPU.
[[nodiscard]] Calibration read_calibration(const Document& document);

}  // namespace dsplan
