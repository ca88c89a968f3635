// The head that all files of our own share: "dsplan": 1, "kind" and "source".
#pragma once

#include <string>
#include <string_view>

#include "core/document.h"
#include "io/fields.h"

namespace dsplan {

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
