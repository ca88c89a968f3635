#include "report/known_differences.h"

#include "core/format.h"
#include "io/measured_file.h"
#include "io/own_file.h"

namespace dsplan {

std::vector<KnownDifference> read_known_differences(const Document& document) {
  expect_object(document, "a file of known differences");
  Diagnostics faults;
  ObjectReader reader(document, document.root, faults);
  detail::need(reader, {"schema", "source", "differences"});
  (void)reader.choice("schema", {"dsplan.explained/1"});
  (void)reader.string("source");
  std::vector<KnownDifference> known;
  if (const Value* list = reader.array("differences")) {
    for (const Value& item : list->items) {
      if (!detail::is_object(document, item, "a known difference", faults)) continue;
      ObjectReader entry(document, item, faults);
      detail::need(entry, {"receipt", "rank", "row", "bytes", "reason"});
      KnownDifference one;
      one.receipt = entry.string("receipt").value_or("");
      one.rank = entry.integer("rank", 0, INT64_MAX).value_or(0);
      one.row = entry.string("row").value_or("");
      one.bytes = entry.integer("bytes", -INT64_MAX, INT64_MAX).value_or(0);
      one.reason = entry.string("reason").value_or("");
      if (one.bytes == 0) entry.fault("bytes", "a difference is not 0 bytes");
      if (one.reason.empty()) entry.fault("reason", "a known difference has a reason");
      one.place = document.at(item.offset, {});
      entry.refuse_unread("a known difference");
      known.push_back(std::move(one));
    }
  }
  reader.refuse_unread("a file of known differences");
  faults.throw_if_any();
  return known;
}

}  // namespace dsplan
