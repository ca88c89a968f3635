#include "report/verdicts_file.h"

#include "io/measured_file.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

VerdictCase read_case(ObjectReader& reader) {
  detail::need(reader,
               {"name", "predicted_bytes", "limit_bytes", "factor_permille", "predicted", "measured", "retries"});
  VerdictCase row;
  row.name = reader.string("name").value_or("");
  row.predicted = detail::bytes(reader, "predicted_bytes").value_or(Bytes(0));
  row.limit = detail::bytes(reader, "limit_bytes").value_or(Bytes(0));
  row.permille = reader.integer("factor_permille", 1, 1'000'000).value_or(1000);
  const std::string verdict = reader.choice("predicted", {"fits", "fits_with_retries", "does_not_fit"}).value_or("");
  for (const Verdict one : {Verdict::Fits, Verdict::FitsWithRetries, Verdict::DoesNotFit}) {
    if (verdict == name(one)) row.verdict = one;
  }
  if (reader.choice("measured", {"ran", "out_of_memory"}).value_or("ran") == "out_of_memory") {
    row.outcome = Receipt::Outcome::OutOfMemory;
  }
  row.retries = reader.integer("retries", 0, INT64_MAX).value_or(0);
  for (const char* key : {"predicted", "measured"}) {
    if (!reader.has(key)) reader.fault(key, "must be said of a verdict that was tested");
  }
  reader.refuse_unread("a tested verdict");
  return row;
}

}  // namespace

VerdictCases read_verdicts(const Document& document) {
  expect_object(document, "a file of verdicts");
  Diagnostics faults;
  ObjectReader reader(document, document.root, faults);
  VerdictCases cases;
  detail::MeasuredHead head = detail::read_measured_head(reader, "dsplan.verdicts/1");
  cases.source = std::move(head.source);
  cases.environment = std::move(head.environment);
  detail::need(reader, {"rows"});
  if (const Value* rows = reader.array("rows")) {
    for (const Value& item : rows->items) {
      if (!detail::is_object(document, item, "a row", faults)) continue;
      ObjectReader row(document, item, faults);
      cases.rows.push_back(read_case(row));
    }
  }
  reader.refuse_unread("a file of verdicts");
  faults.throw_if_any();
  return cases;
}

}  // namespace dsplan
