// Predictions against a receipt, row by row, and many of them together.
#pragma once

#include <string>
#include <vector>

#include "core/job.h"
#include "core/prediction.h"
#include "core/receipt.h"
#include "report/comparison.h"

namespace dsplan {

// In a receipt's words; what is absent keeps its reason.
[[nodiscard]] PredictedRank figures_of(const Prediction& prediction);

struct CompareTerms {
  Tolerances tolerances;
  std::vector<KnownDifference> known;
};

// What the receipt says of itself, and no rows yet.
[[nodiscard]] ReceiptComparison nothing_compared(const Receipt& receipt);

// One comparison per rank that the receipt measured; `predicted` holds a prediction of each of them. Rows stand in the
// order of a prediction's JSON. A side that says nothing makes a row NotMeasured or NotPredicted, which is never equal;
// a collective that one side does not list at all counts 0 there. Of `cpu` and `fake` only requested bytes are
// compared, and of a run that ended early neither its peaks nor what remains after it. Refuses, at their place, known
// differences that name a rank or a row that the receipt does not have; those of other receipts are passed over.
[[nodiscard]] ReceiptComparison compare(const Receipt& receipt, const std::vector<PredictedRank>& predicted,
                                        const CompareTerms& terms);

// "single GPU", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"; and "offload", "checkpointing", "LoRA" where they are on.
[[nodiscard]] std::vector<std::string> strata_of(const Job& job, const ModelSpec& model);

// By stratum, the rows that stand for a whole run: persistent, peaks, host, and the verdict. Every rank is a case.
[[nodiscard]] std::vector<StratumRow> by_stratum(const std::vector<ReceiptComparison>& comparisons);

}  // namespace dsplan
