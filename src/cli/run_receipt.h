// A run as a receipt (docs/receipts.md): what was measured, with everything that is needed to predict it again.
#pragma once

#include "cli/assemble.h"
#include "cli/options.h"
#include "core/receipt.h"
#include "exec/run.h"

namespace dsplan {

[[nodiscard]] Receipt receipt_of(const exec::RunResult& result, const SimulateWords& words, const Inputs& inputs,
                                 const Job& job, const std::string& fingerprint);

}  // namespace dsplan
