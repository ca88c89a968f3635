// Verdicts that were put to the test ("dsplan.verdicts/1", docs/receipts.md): a job run under a limit a little above
// and a little below its predicted need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/document.h"
#include "core/prediction.h"
#include "core/receipt.h"

namespace dsplan {

struct VerdictCase {
  std::string name;
  Bytes predicted;  // The need, without a limit.
  Bytes limit;
  std::int64_t permille = 1000;  // limit / predicted.
  Verdict verdict = Verdict::Unknown;
  Receipt::Outcome outcome = Receipt::Outcome::Ran;  // Ran or OutOfMemory.
  std::int64_t retries = 0;

  [[nodiscard]] bool right() const { return (verdict != Verdict::DoesNotFit) == (outcome == Receipt::Outcome::Ran); }
};

struct VerdictCases {
  std::string source;
  ReceiptEnvironment environment;
  std::vector<VerdictCase> rows;
};

// Faults: another schema, missing and unknown keys, words that are no verdict and no outcome.
[[nodiscard]] VerdictCases read_verdicts(const Document& document);

}  // namespace dsplan
