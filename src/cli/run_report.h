// A run for people: how the loss went, and how far prediction and measurement agree.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/receipt.h"
#include "core/units.h"
#include "exec/run.h"
#include "report/comparison.h"

namespace dsplan {

// `communicators`: what they take by formula as they are made, where a library makes them.
[[nodiscard]] std::string report_run(const exec::RunResult& result, const Receipt& receipt,
                                     const ReceiptComparison& comparison, std::optional<Bytes> communicators);

}  // namespace dsplan
