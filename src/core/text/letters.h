// Letters of ASCII; nothing depends on a locale.
#pragma once

#include <string>

namespace dsplan {

[[nodiscard]] inline std::string in_lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace dsplan
