// Text within 80 columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsplan {

inline constexpr std::size_t kColumns = 80;

// `text` broken at blanks; the first line begins with `first`, the others with `indent` blanks. A word that is wider
// than a line is cut. Columns are counted in characters of UTF-8. Ends with a newline.
[[nodiscard]] std::string wrapped(std::string_view first, std::string_view text, std::size_t indent);

// The items with ", " between them, wrapped; nothing for no items.
[[nodiscard]] std::string listed(std::string_view first, const std::vector<std::string>& items, std::size_t indent);

}  // namespace dsplan
