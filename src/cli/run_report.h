// A run for people: how the loss went, and how far prediction and measurement agree.
#pragma once

#include <string>
#include <vector>

#include "core/comparison.h"
#include "exec/run.h"

namespace dsplan {

[[nodiscard]] std::string report_run(const exec::RunResult& result, const ReceiptComparison& comparison);

}  // namespace dsplan
