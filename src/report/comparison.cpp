#include "report/comparison.h"

#include <algorithm>

#include "io/fields.h"
#include "io/own_file.h"

namespace dsplan {

std::string_view name(RowKind kind) {
  switch (kind) {
    case RowKind::Requested: return "requested";
    case RowKind::Allocated: return "allocated";
    case RowKind::Active: return "active";
    case RowKind::Reserved: return "reserved";
    case RowKind::Process: return "process";
    case RowKind::Host: return "host";
    case RowKind::Calls: return "calls";
    case RowKind::Payload: return "payload";
    case RowKind::Wire: return "wire";
    case RowKind::Parameters: return "parameters";
    case RowKind::Verdict: return "verdict";
  }
  return "?";
}

std::string_view name(ComparedRow::State state) {
  switch (state) {
    case ComparedRow::State::Equal: return "equal";
    case ComparedRow::State::Within: return "within";
    case ComparedRow::State::Differs: return "differs";
    case ComparedRow::State::NotMeasured: return "not_measured";
    case ComparedRow::State::NotPredicted: return "not_predicted";
  }
  return "?";
}

std::int64_t Tolerance::of(std::int64_t measured) const {
  // In two parts, so that a large value does not overflow on the way; permille is at most 1000.
  return checked_add(bytes, measured / 1000 * permille + measured % 1000 * permille / 1000);
}

Tolerance Tolerances::of(RowKind kind) const {
  if (const auto found = by_kind.find(kind); found != by_kind.end()) return found->second;
  const bool of_the_allocator = kind == RowKind::Reserved || kind == RowKind::Process;
  return of_the_allocator ? Tolerance{0, 10} : Tolerance{};
}

bool differs(const ReceiptComparison& comparison) {
  return std::any_of(comparison.ranks.begin(), comparison.ranks.end(), [](const RankComparison& rank) {
    return std::any_of(rank.rows.begin(), rank.rows.end(),
                       [](const ComparedRow& row) { return row.state == ComparedRow::State::Differs; });
  });
}

bool differs(const std::vector<ReceiptComparison>& comparisons) {
  return std::any_of(comparisons.begin(), comparisons.end(),
                     [](const ReceiptComparison& comparison) { return differs(comparison); });
}

namespace {

void describe_case(Fields& fields, VerdictCase& row) {
  fields("name", row.name);
  fields("predicted_bytes", row.predicted);
  fields("limit_bytes", row.limit);
  fields("factor_permille", row.permille, 1, 1'000'000);
  fields.named("predicted", row.verdict,
               {Verdict::Fits, Verdict::Tight, Verdict::FitsWithRetries, Verdict::DoesNotFit});
  fields.named("measured", row.outcome, {Receipt::Outcome::Ran, Receipt::Outcome::OutOfMemory});
  fields("retries", row.retries);
}

}  // namespace

VerdictCases read_verdicts(const Document& document) {
  expect_object(document, "a file of verdicts");
  VerdictCases cases;
  read_fields(document, "a file of verdicts", [&](Fields& fields) {
    detail::describe_measured_head(fields, "dsplan.verdicts/1", cases.source, cases.environment);
    fields.list("rows", cases.rows, {"a tested verdict"}, [&](VerdictCase& row) { describe_case(fields, row); });
  });
  return cases;
}

bool is_said(const ComparedRow& row) {
  return row.state != ComparedRow::State::NotMeasured && row.state != ComparedRow::State::NotPredicted;
}

bool stands_for_the_run(const ComparedRow& row) {
  return row.path.starts_with("memory.peak.") || row.path.starts_with("memory.persistent.") || row.path == "verdict";
}

}  // namespace dsplan
