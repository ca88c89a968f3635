// What a run was measured to take, beside the prediction of the same job: a part of the page.
#pragma once

#include <string>

#include "report/comparison.h"

namespace dsplan {

// A heading, how many rows are equal, and a table: peaks, what is persistent, the peaks of phases, and whatever differs
// unexplained, in bytes. At most some forty rows of each rank.
[[nodiscard]] std::string measured_part(const ReceiptComparison& comparison);

}  // namespace dsplan
