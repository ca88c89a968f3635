// What our own files share: the head, and what those of the measuring tools have beside it; and places in any file.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/document.h"
#include "core/inputs.h"
#include "core/receipt.h"
#include "io/fields.h"

namespace dsplan {

// Places of values in documents.

[[nodiscard]] inline Place place_at(const Document& document, std::size_t offset) {
  Diagnostic at = document.at(offset, {});
  return {std::move(at.path), at.line, at.column, std::move(at.source_line)};
}

// The head that all files of our own share: "dsplan": 1, "kind" and "source".

inline constexpr std::int64_t kFileVersion = 1;

// Reads the three keys and returns the source. Faults: another version, another kind, no source.
[[nodiscard]] std::string read_head(ObjectReader& reader, std::string_view kind);

// The same three keys of a description. A file of another version is refused at once: what it holds is not for us to
// judge.
void describe_head(Fields& fields, std::string_view kind, std::string& source);

// Whether a document says that it is of this kind.
[[nodiscard]] bool is_kind(const Document& document, std::string_view kind);

// Throws a Refusal unless the document's root is an object.
void expect_object(const Document& document, std::string_view what);

}  // namespace dsplan

namespace dsplan::detail {

// What the files of the measuring tools share: keys that must be there even where they are null, and the environment.
// Not for use outside io's readers.

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
