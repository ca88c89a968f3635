// Predictions held against measurements, row by row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/prediction.h"
#include "core/receipt.h"
#include "core/units.h"

namespace dsplan {

// What a prediction says of one rank, in a receipt's words.
struct PredictedRank {
  std::string fingerprint;
  std::int64_t world = 1;
  Verdict verdict = Verdict::Unknown;
  std::string verdict_reason;
  RankFigures figures;
};

// What a row counts; tolerances are per kind.
enum class RowKind : std::uint8_t {
  Requested,
  Allocated,
  Active,
  Reserved,
  Process,
  Host,
  Calls,
  Payload,
  Wire,
  Parameters,
  Verdict
};
inline constexpr std::size_t kRowKinds = 11;
[[nodiscard]] std::string_view name(RowKind kind);

// How far the unexplained part of a row may be from 0: bytes, or permille of the measured value.
struct Tolerance {
  std::int64_t bytes = 0;
  std::int64_t permille = 0;

  [[nodiscard]] std::int64_t of(std::int64_t measured) const;
};

// 0 for all kinds, 1 % of the measured value for reserved and process.
struct Tolerances {
  std::map<RowKind, Tolerance> by_kind;

  [[nodiscard]] Tolerance of(RowKind kind) const;
};

// A known difference: measured - predicted = bytes, for a reason.
struct KnownDifference {
  std::string receipt;  // Its name.
  std::int64_t rank = 0;
  std::string row;  // A row's path; "*" stands for any part of it.
  std::int64_t bytes = 0;
  std::string reason;
  Diagnostic place;  // Of the entry in its file.
};

struct ComparedRow {
  enum class State : std::uint8_t { Equal, Within, Differs, NotMeasured, NotPredicted };

  std::string path;  // As in the CSV of a prediction: "memory.phases.steady.before forward.requested".
  RowKind kind = RowKind::Requested;
  std::optional<std::int64_t> predicted;
  std::optional<std::int64_t> measured;
  std::string predicted_text;  // Of the verdict, which is no number, as the next.
  std::string measured_text;
  std::int64_t explained = 0;
  std::vector<std::string> reasons;  // Of the explained part.
  std::int64_t unexplained = 0;      // measured - predicted - explained.
  std::int64_t tolerance = 0;
  State state = State::Equal;
  std::string note;  // Why a side is absent.
};
[[nodiscard]] std::string_view name(ComparedRow::State state);
// Both sides say it.
[[nodiscard]] bool is_said(const ComparedRow& row);
// A peak, what is persistent, or the verdict.
[[nodiscard]] bool stands_for_the_run(const ComparedRow& row);

struct RankComparison {
  std::int64_t rank = 0;
  std::vector<ComparedRow> rows;
};

struct ReceiptComparison {
  std::string receipt;  // Its name.
  std::string path;
  std::string source;
  Receipt::Level level = Receipt::Level::Framework;
  Receipt::Device device = Receipt::Device::Cuda;
  Receipt::Outcome outcome = Receipt::Outcome::Ran;
  Verdict verdict = Verdict::Unknown;  // The worst of the ranks'.
  HeldFor part = HeldFor::Causes;
  std::vector<std::string> strata;  // "single GPU", "DDP", "ZeRO-1", ...
  std::string fingerprint;          // Of the prediction.
  bool complete = true;
  std::vector<RankComparison> ranks;
  std::vector<std::string> notes;
  std::vector<std::string> stale;  // Explanations that no longer apply, in words.
  // The receipt's inputs were refused: nothing was predicted.
  std::optional<std::string> refused;
};

[[nodiscard]] bool differs(const ReceiptComparison& comparison);
[[nodiscard]] bool differs(const std::vector<ReceiptComparison>& comparisons);

// Signed relative errors, prediction against measurement, of one stratum and one kind of row.
struct StratumRow {
  std::string stratum;
  Receipt::Device device = Receipt::Device::Cuda;  // Sizes by FakeTensor are no evidence about a GPU.
  std::string row;                                 // "memory.peak.reserved"
  std::int64_t cases = 0;                          // Receipts that say it.
  std::int64_t equal = 0;                          // Of these.
  std::int64_t unexplained = 0;                    // Of these, those that differ beyond the tolerance.
  double median_percent = 0;                       // Of (predicted - measured) / measured.
  double worst_percent = 0;                        // The largest in magnitude.
};
// Fewer cases are no evidence of a percentage.
inline constexpr std::int64_t kLeastCases = 10;

// Verdicts that were put to the test ("dsplan.verdicts/1", docs/receipts.md): a job run under a limit a little above
// and a little below its predicted need.

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
