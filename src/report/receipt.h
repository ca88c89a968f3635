// Receipts: what a run measured (docs/receipts.md).
#pragma once

#include <string>

#include "core/document.h"
#include "core/receipt.h"

namespace dsplan {

// Reads "dsplan.receipt/1". Faults, together and with their places: another schema, missing and unknown keys, wrong
// types, negative bytes, ranks that stand twice or lie outside the world, a complete receipt whose run did not end well
// or that has no ranks, marks and phases that nobody knows, a mark above its phase's peak, an unmeasured value that
// `not_measured` does not name. The parts of `inputs` are kept as they are: whoever predicts reads them.
[[nodiscard]] Receipt read_receipt(const Document& document);

// The same as text, with nulls where nothing was measured.
[[nodiscard]] std::string receipt_json(const Receipt& receipt);
[[nodiscard]] std::string receipt_schema();

}  // namespace dsplan
