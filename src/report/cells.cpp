#include "report/cells.h"

#include <algorithm>
#include <cstdlib>

#include "core/units.h"

namespace dsplan::detail {

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"') result += '"';
    result += c;
  }
  return result + '"';
}

std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '<' || c == '*' || c == '_' || c == '`') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string signed_number(std::int64_t value) {
  return value < 0 ? "-" + grouped(-value) : (value > 0 ? "+" : "") + grouped(value);
}

std::string signed_size(std::int64_t bytes) { return (bytes < 0 ? "-" : "+") + human(Bytes(std::abs(bytes))); }

std::string spaced(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

}  // namespace dsplan::detail
