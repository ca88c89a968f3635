// The one JSON parser behind `parse_json` and `parse_hjson`. Not for use outside io's readers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"

namespace dsplan::detail {

// Where the token that starts at `json` in rewritten text started in the original one.
struct Anchor {
  std::size_t json = 0;
  std::size_t original = 0;
};

// Parses strict JSON and throws every fault with its place in `document.text`. `anchors`, in ascending order, lead
// back from `json` to that text; nullptr: `json` is that text.
[[nodiscard]] Value parse_strict(const Document& document, std::string_view json, const std::vector<Anchor>* anchors);

// The offset of the first byte that is not UTF-8, or npos.
[[nodiscard]] std::size_t bad_utf8(std::string_view text);

// Refuses text that is not UTF-8 at the first offending byte.
void refuse_bad_utf8(const Document& document);

// The offset after a byte order mark: 3 or 0.
[[nodiscard]] std::size_t after_mark(std::string_view text);

// "key", clipped and with control characters replaced, for a message.
[[nodiscard]] std::string in_quotes(std::string_view text);

// One line, column and "found ..." wording for whatever stands at `offset`.
[[nodiscard]] std::string found(std::string_view text, std::size_t offset);

// The faults of duplicate keys in `object` itself (not below), as pairs of offsets: the second key, the first key.
struct Duplicate {
  std::size_t second = 0;
  std::size_t first = 0;
  std::string key;
};
void find_duplicates(const Value& object, std::vector<Duplicate>& duplicates);
void add_duplicates(const Document& document, std::vector<Duplicate> duplicates, Diagnostics& diagnostics);

}  // namespace dsplan::detail
