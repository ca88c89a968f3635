#include "report/known_differences.h"

#include "io/fields.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

void describe_difference(Fields& fields, KnownDifference& one) {
  fields("receipt", one.receipt);
  fields("rank", one.rank);
  fields("row", one.row);
  fields("bytes", one.bytes, -INT64_MAX);
  fields("reason", one.reason);
  ObjectReader* reader = fields.reader();
  if (reader == nullptr) return;
  if (one.bytes == 0) reader->fault("bytes", "a difference is not 0 bytes");
  if (one.reason.empty()) reader->fault("reason", "a known difference has a reason");
  one.place = reader->document().at(reader->value().offset, {});
}

}  // namespace

std::vector<KnownDifference> read_known_differences(const Document& document) {
  expect_object(document, "a file of known differences");
  std::vector<KnownDifference> known;
  read_fields(document, "a file of known differences", [&](Fields& fields) {
    std::string source;
    fields.constant("schema", "dsplan.explained/1");
    fields("source", source);
    fields.list("differences", known, {"a known difference"},
                [&](KnownDifference& one) { describe_difference(fields, one); });
  });
  return known;
}

}  // namespace dsplan
