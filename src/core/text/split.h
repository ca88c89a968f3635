// Words between separators.
#pragma once

#include <string_view>
#include <vector>

namespace dsplan {

// "a,b" at ',': a and b. As many parts as there are separators and one more, empty ones among them; views of `text`.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace dsplan
