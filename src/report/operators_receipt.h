// Measured operators: files of the schema "dsplan.operator_runs/1" (docs/receipts.md), as tools/frameworks/ops and
// tools/oracles/operators.py write them.
#pragma once

#include "core/document.h"
#include "core/operator_runs.h"

namespace dsplan {

inline constexpr std::string_view kOperatorRunsSchema = "dsplan.operator_runs/1";

// One entry of "cases". Faults (an unknown operator, dtype or key, a tensor that cannot be read) go to the
// diagnostics; the run is then not to be used.
[[nodiscard]] OperatorRun read_operator_run(const Document& document, const Value& entry, Diagnostics& diagnostics);

// One entry of "optimizers"; likewise.
[[nodiscard]] OptimizerRun read_optimizer_run(const Document& document, const Value& entry, Diagnostics& diagnostics);

// Refused, up to 20 faults together: another schema, unknown keys, and what `read_operator_run` finds.
[[nodiscard]] OperatorRuns read_operator_runs(const Document& document);

}  // namespace dsplan
