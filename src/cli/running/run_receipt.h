// A run as a receipt (docs/receipts.md), and for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/assemble.h"
#include "cli/running/machine.h"
#include "cli/options.h"
#include "core/receipt.h"
#include "core/units.h"
#include "exec/run.h"
#include "report/comparison.h"

namespace dsplan {

// The documents behind a run, whether they were named or lie in a plan.
[[nodiscard]] ReceiptInputs run_inputs(const SimulateWords& words, const Request& request);

// Written and read again: what is compared is what the file says.
[[nodiscard]] Receipt receipt_of(const exec::RunResult& result, const Machine& machine, const SimulateWords& words,
                                 const Inputs& inputs, const Job& job, const Prediction& prediction);

// A run for people: how the loss went, and how far prediction and measurement agree.

// `communicators`: what they take by formula as they are made, where a library makes them.
[[nodiscard]] std::string report_run(const exec::RunResult& result, const Receipt& receipt,
                                     const ReceiptComparison& comparison, std::optional<Bytes> communicators);

}  // namespace dsplan
