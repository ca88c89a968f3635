// The one JSON parser behind `parse_json` and `parse_hjson`, and what is wrong with a text in plain words: the parser
// says only that it stopped; the words come from the place it had reached and what may stand there. Not for use outside
// io's readers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"

namespace dsplan::detail {

enum class After : std::uint8_t { Nothing, Open, Key, Item };

// How far a parser came: everything before `cursor` is good.
struct Progress {
  std::string_view json;
  std::size_t cursor = 0;        // Behind the last good token.
  std::size_t last = 0;          // Where that token starts.
  After after = After::Nothing;  // What that token was: an opening bracket, a key, a whole value.
  bool number = false;           // The whole value was a number.
  bool at_root = true;           // No container is open; else the innermost one is
  bool in_object = false;        // an object or an array
  std::size_t opened = 0;        // that starts here.
  bool overflow = false;         // The next token is a number beyond the range of a double.
};

struct JsonFault {
  std::size_t offset = 0;
  std::string message;
  std::string hint;
};

[[nodiscard]] JsonFault diagnose(const Progress& progress);

// The offset behind the well-formed token of this kind that starts at `at`.
[[nodiscard]] std::size_t token_end(std::string_view json, std::size_t at, Value::Kind kind);

// The first fault in the escapes or characters of a string that opens at `at` and closes with the same quote; also a
// missing closing quote. An empty message if there is none; then `offset` lies behind the closing quote.
[[nodiscard]] JsonFault judge_string(std::string_view text, std::size_t at);

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
