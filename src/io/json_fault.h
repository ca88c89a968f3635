// What is wrong with a JSON text, in plain words. The parser says only that it stopped; the words come from the place
// it had reached and what may stand there.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

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

}  // namespace dsplan::detail
