#include "report/verdicts.h"

#include "io/fields.h"
#include "io/measured_file.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

void describe_case(Fields& fields, VerdictCase& row) {
  fields("name", row.name);
  fields("predicted_bytes", row.predicted);
  fields("limit_bytes", row.limit);
  fields("factor_permille", row.permille, 1, 1'000'000);
  fields.named("predicted", row.verdict, {Verdict::Fits, Verdict::FitsWithRetries, Verdict::DoesNotFit});
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

}  // namespace dsplan
