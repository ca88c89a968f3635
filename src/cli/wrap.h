// Text within a terminal's columns.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsplan {

// How many characters of UTF-8 a text has, and how many bytes its first `most` of them take.
[[nodiscard]] std::size_t width_of(std::string_view text);
[[nodiscard]] std::size_t bytes_of(std::string_view text, std::size_t most);

// `text` broken at blanks; the first line begins with `first`, the others with `indent` blanks. A word that is wider
// than a line is cut. Columns are counted in characters of UTF-8. Ends with a newline.
[[nodiscard]] std::string wrapped(std::string_view first, std::string_view text, std::size_t indent);

// `text` with blanks that are no places to break: for sizes with their units and other short phrases.
[[nodiscard]] std::string glued(std::string text);

// The items, each unbroken unless it is long, with ", " between them, wrapped; nothing for no items.
[[nodiscard]] std::string listed(std::string_view first, const std::vector<std::string>& items, std::size_t indent);

}  // namespace dsplan
