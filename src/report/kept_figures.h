// What baselines and plans keep alike: figures by rank, versions, resolved inputs, whole documents. Not for use outside
// io's readers and writers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "report/baseline.h"

namespace dsplan::detail {

// A string that must be there and not null.
[[nodiscard]] std::string kept_text(ObjectReader& reader, std::string_view key);
[[nodiscard]] BaselineVersions read_versions(const Document& document, const Value& value, Diagnostics& faults);
// Faults: no rank at all, a rank that stands twice, rows that nobody knows, negative figures. `what`: "a baseline".
[[nodiscard]] std::vector<BaselineRank> read_ranks(ObjectReader& whole, const Value& list, std::string_view what);
[[nodiscard]] std::vector<ResolvedInput> read_resolved(const Document& document, const Value& list,
                                                       Diagnostics& faults);

// A JSON string.
[[nodiscard]] std::string quoted(std::string_view text);
// One line per member; lists without objects and lists in them stand on one line.
void write_value(const Value& value, std::size_t indent, std::string& text);
[[nodiscard]] std::string versions_text(const BaselineVersions& versions);
[[nodiscard]] std::string ranks_text(const std::vector<BaselineRank>& ranks);
[[nodiscard]] std::string resolved_text(const std::vector<ResolvedInput>& inputs);

}  // namespace dsplan::detail
