// What the files of the measuring tools share: keys that must be there even where they are null, and the environment.
// Not for use outside io's readers.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "core/document.h"
#include "core/receipt.h"
#include "io/fields.h"

namespace dsplan::detail {

// A fault for each key that is missing: what was not measured is said, not left out.
void need(ObjectReader& reader, std::initializer_list<std::string_view> keys);

// A number of bytes from 0; null stays absent.
[[nodiscard]] std::optional<Bytes> bytes(ObjectReader& reader, std::string_view key);

void describe_environment(Fields& fields, ReceiptEnvironment& environment);
// "schema", which must be `schema`, "source" and "environment".
void describe_measured_head(Fields& fields, std::string_view schema, std::string& source,
                            ReceiptEnvironment& environment);

// Whether `item` is an object; a fault where it is not.
[[nodiscard]] bool is_object(const Document& document, const Value& item, std::string_view what, Diagnostics& faults);

}  // namespace dsplan::detail
