// Letters of ASCII; nothing depends on a locale.
#pragma once

#include <string>
#include <string_view>

namespace dsplan {

[[nodiscard]] constexpr char in_lower_case(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
// Of what names consist: a letter, a digit or an underscore.
[[nodiscard]] constexpr bool is_word_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}
[[nodiscard]] inline std::string in_lower_case(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = in_lower_case(c);
  return low;
}

}  // namespace dsplan
