#include "cli/wrap.h"

#include <algorithm>

#include "cli/screen/table.h"

namespace dsplan {
namespace {

constexpr char kGlue = '\x1f';             // A blank that is no place to break; ASCII's unit separator.
constexpr std::size_t kLongestGlued = 30;  // Longer items are broken like any text.

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

// The longest beginning of `word` that is at most `most` characters wide, at least one character.
std::size_t cut(std::string_view word, std::size_t most) {
  std::size_t bytes = 0;
  for (std::size_t characters = 0; bytes < word.size() && (characters < most || characters == 0); ++characters) {
    ++bytes;
    while (bytes < word.size() && continues(word[bytes])) ++bytes;
  }
  return bytes;
}

}  // namespace

std::size_t width_of(std::string_view text) {
  std::size_t characters = 0;
  for (const char c : text) characters += continues(c) ? 0U : 1U;
  return characters;
}

std::size_t bytes_of(std::string_view text, std::size_t most) { return most == 0 ? 0 : cut(text, most); }

std::string wrapped(std::string_view first, std::string_view text, std::size_t indent) {
  std::string result(first);
  std::size_t column = width_of(first);
  bool fresh = true;  // Nothing but the indentation stands on this line.
  const auto new_line = [&] {
    result += '\n';
    result.append(indent, ' ');
    column = indent;
    fresh = true;
  };
  while (!text.empty()) {
    const std::size_t blank = text.find(' ');
    std::string_view word = text.substr(0, blank);
    text.remove_prefix(blank == std::string_view::npos ? text.size() : blank + 1);
    if (word.empty()) continue;
    if (!fresh && column + 1 + width_of(word) > columns()) new_line();
    if (!fresh) {
      result += ' ';
      ++column;
    }
    const std::size_t said = result.find_last_not_of(' ');
    const bool whole_below = column > indent && indent + width_of(word) <= columns() && said != result.npos;
    if (fresh && whole_below && column + width_of(word) > columns()) {  // Behind `first`, no part of it is broken off.
      result.erase(said + 1);
      new_line();
    }
    while (column + width_of(word) > columns()) {
      const std::size_t bytes = cut(word, columns() - column);
      result += word.substr(0, bytes);
      word.remove_prefix(bytes);
      new_line();
    }
    result += word;
    column += width_of(word);
    fresh = false;
  }
  std::replace(result.begin(), result.end(), kGlue, ' ');
  return result + '\n';
}

std::string glued(std::string text) {
  std::replace(text.begin(), text.end(), ' ', kGlue);
  return text;
}

std::string listed(std::string_view first, const std::vector<std::string>& items, std::size_t indent) {
  if (items.empty()) return {};
  std::string text;
  for (const std::string& item : items) {
    if (!text.empty()) text += ", ";
    text += item.size() <= kLongestGlued ? glued(item) : item;
  }
  return wrapped(first, text, indent);
}

}  // namespace dsplan
