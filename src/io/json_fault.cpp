#include "io/json_fault.h"

#include <algorithm>

#include "core/format.h"
#include "io/json_parse.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kBlanks = " \n\t\r";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '+' || c == '-'; }

std::size_t skip(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

std::size_t line_of(std::string_view text, std::size_t offset) {
  return 1 +
         static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
}

JsonFault number_fault(std::string_view text, std::size_t at, bool overflow) {
  const std::string number = in_quotes(word_at(text, at));
  const std::string shown = number.substr(1, number.size() - 2);
  if (overflow) return {at, formatted("{} is too large for a number", shown), {}};
  return {at, formatted("{} is not a JSON number", shown), "write it like 10, -0.5 or 1e-8"};
}

JsonFault word_fault(std::string_view text, std::size_t at) {
  const std::string_view word = word_at(text, at);
  for (const auto& [wrong, right] : {std::pair<std::string_view, std::string_view>{"True", "true"},
                                     {"TRUE", "true"},
                                     {"False", "false"},
                                     {"FALSE", "false"},
                                     {"None", "null"},
                                     {"NULL", "null"},
                                     {"Null", "null"}}) {
    if (word == wrong) {
      return {at, formatted("expected a value, found {}", in_quotes(word)), formatted("JSON writes {}", right)};
    }
  }
  for (std::string_view number : {"NaN", "nan", "Infinity", "inf", "-Infinity", "-inf", "Inf"}) {
    if (word == number) return {at, formatted("{} is not a JSON number", word), {}};
  }
  return {at, formatted("expected a value, found {}", in_quotes(word)), "a string needs double quotes"};
}

// The file ends too early; points behind its last character that is not blank.
JsonFault end_fault(const Progress& progress) {
  const std::size_t last = progress.json.find_last_not_of(kBlanks);
  if (last == std::string_view::npos || progress.after == After::Nothing) {
    return {0, "the file is empty", "expected a JSON value"};
  }
  return {last + 1,
          formatted("the file ends inside the {} opened on line {}", progress.in_object ? "object" : "array",
                    line_of(progress.json, progress.opened)),
          {}};
}

JsonFault comment_fault(std::size_t at) { return {at, "JSON has no comments", {}}; }

bool comment_at(std::string_view text, std::size_t at) {
  return text[at] == '#' || (text[at] == '/' && at + 1 < text.size() && (text[at + 1] == '/' || text[at + 1] == '*'));
}

JsonFault value_fault(const Progress& progress, std::size_t at) {
  const std::string_view text = progress.json;
  if (at == text.size()) return end_fault(progress);
  const char c = text[at];
  if (c == '"') return judge_string(text, at);
  if (c == '-' && at + 1 < text.size() && is_letter(text[at + 1])) return word_fault(text, at);
  if (c == '-' || c == '.' || c == '+' || is_digit(c)) return number_fault(text, at, progress.overflow);
  if (is_letter(c)) return word_fault(text, at);
  if (comment_at(text, at)) return comment_fault(at);
  return {at, formatted("expected a value, found {}", found(text, at)),
          c == '\'' ? "a string needs double quotes" : ""};
}

JsonFault key_fault(const Progress& progress, std::size_t at, bool after_comma) {
  const std::string_view text = progress.json;
  if (at == text.size()) return end_fault(progress);
  if (text[at] == '"') return judge_string(text, at);
  if (comment_at(text, at)) return comment_fault(at);
  if (text[at] == '}' && after_comma) return {at, "expected a key after ',', found '}'", "remove the trailing comma"};
  const std::string_view word = word_at(text, at);
  const bool unquoted = !word.empty() || text[at] == '\'';
  return {at, formatted("expected a key, found {}", word.empty() ? found(text, at) : in_quotes(word)),
          unquoted ? "a key needs double quotes" : ""};
}

JsonFault item_fault(const Progress& progress, std::size_t at) {
  const std::string_view text = progress.json;
  if (progress.number && at == progress.cursor && at < text.size() && is_word(text[at])) {
    return number_fault(text, progress.last, false);
  }
  if (progress.at_root) {
    if (comment_at(text, at)) return comment_fault(at);
    return {at, formatted("expected the end of the file, found {}", found(text, at)), {}};
  }
  if (at == text.size()) return end_fault(progress);
  if (text[at] == ',') {
    const std::size_t next = skip(text, at + 1);
    if (progress.in_object) return key_fault(progress, next, true);
    if (next < text.size() && text[next] == ']') {
      return {next, "expected a value after ',', found ']'", "remove the trailing comma"};
    }
    return value_fault(progress, next);
  }
  if (comment_at(text, at)) return comment_fault(at);
  return {at, formatted("expected ',' or '{}', found {}", progress.in_object ? '}' : ']', found(text, at)), {}};
}

// Four hexadecimal digits at `at`, or -1.
int code_unit(std::string_view text, std::size_t at) {
  if (at + 4 > text.size()) return -1;
  int unit = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const char c = text[i];
    if (is_digit(c)) {
      unit = unit * 16 + (c - '0');
    } else if (c >= 'a' && c <= 'f') {
      unit = unit * 16 + (c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      unit = unit * 16 + (c - 'A' + 10);
    } else {
      return -1;
    }
  }
  return unit;
}

// A fault of the escape whose backslash is at `at`, or its length in `offset`.
JsonFault judge_escape(std::string_view text, std::size_t at, char quote) {
  const char c = text[at + 1];
  if (c != 'u') {
    if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos || (c == '\'' && quote == '\''))
      return {2, {}, {}};
    return {at, formatted("unknown escape '\\{}' in a string", is_word(c) ? std::string(1, c) : "..."),
            "a backslash is written \\\\"};
  }
  const int unit = code_unit(text, at + 2);
  if (unit < 0) return {at, "'\\u' needs four hexadecimal digits", {}};
  if (unit < 0xD800 || unit > 0xDFFF) return {6, {}, {}};
  const bool paired = unit < 0xDC00 && text.substr(at + 6, 2) == "\\u";
  const int second = paired ? code_unit(text, at + 8) : -1;
  if (second >= 0xDC00 && second <= 0xDFFF) return {12, {}, {}};
  return {at, "half of a surrogate pair in a string", "characters beyond \\uffff take two \\u escapes"};
}

}  // namespace

JsonFault diagnose(const Progress& progress) {
  const std::size_t at = skip(progress.json, progress.cursor);
  switch (progress.after) {
    case After::Nothing: return value_fault(progress, at);
    case After::Open: return progress.in_object ? key_fault(progress, at, false) : value_fault(progress, at);
    case After::Key:
      if (at == progress.json.size()) return end_fault(progress);
      if (progress.json[at] == ':') return value_fault(progress, skip(progress.json, at + 1));
      return {at, formatted("expected ':' after the key, found {}", found(progress.json, at)), {}};
    case After::Item: return item_fault(progress, at);
  }
  return {at, "not JSON", {}};
}

std::size_t token_end(std::string_view json, std::size_t at, Value::Kind kind) {
  switch (kind) {
    case Value::Kind::Null: return at + 4;
    case Value::Kind::Bool: return at + (json[at] == 't' ? 4 : 5);
    case Value::Kind::Array:
    case Value::Kind::Object: return at + 1;
    case Value::Kind::String:
      for (++at; json[at] != '"'; ++at) {
        if (json[at] == '\\') ++at;
      }
      return at + 1;
    case Value::Kind::Integer:
    case Value::Kind::Real: break;
  }
  const auto digits = [&] {
    while (at < json.size() && is_digit(json[at])) ++at;
  };
  if (json[at] == '-') ++at;
  // A leading zero is a whole integer part: what follows in "01" is the next token.
  if (json[at] == '0') {
    ++at;
  } else {
    digits();
  }
  if (at < json.size() && json[at] == '.') {
    ++at;
    digits();
  }
  if (at < json.size() && (json[at] == 'e' || json[at] == 'E')) {
    ++at;
    if (json[at] == '+' || json[at] == '-') ++at;
    digits();
  }
  return at;
}

JsonFault judge_string(std::string_view text, std::size_t open) {
  const char quote = text[open];
  for (std::size_t at = open + 1; at < text.size();) {
    const char c = text[at];
    if (c == quote) return {at + 1, {}, {}};
    if (c == '\n' || c == '\r') break;
    if (static_cast<unsigned char>(c) < 0x20) {
      return {at, formatted("control character 0x{:02X} in a string", static_cast<unsigned>(c)),
              formatted("write it as \\u{:04x}", static_cast<unsigned>(c))};
    }
    if (c != '\\') {
      ++at;
      continue;
    }
    if (at + 1 == text.size()) break;
    JsonFault escape = judge_escape(text, at, quote);
    if (!escape.message.empty()) return escape;
    at += escape.offset;
  }
  return {open, "the string that starts here has no closing quote on its line", {}};
}

}  // namespace dsplan::detail
