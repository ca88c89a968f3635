#include "cli/wrap.h"

namespace dsplan {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

std::size_t width(std::string_view text) {
  std::size_t characters = 0;
  for (const char c : text) characters += continues(c) ? 0 : 1;
  return characters;
}

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

std::string wrapped(std::string_view first, std::string_view text, std::size_t indent) {
  std::string result(first);
  std::size_t column = width(first);
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
    if (!fresh && column + 1 + width(word) > kColumns) new_line();
    if (!fresh) {
      result += ' ';
      ++column;
    }
    while (column + width(word) > kColumns) {
      const std::size_t bytes = cut(word, kColumns - column);
      result += word.substr(0, bytes);
      word.remove_prefix(bytes);
      new_line();
    }
    result += word;
    column += width(word);
    fresh = false;
  }
  return result + '\n';
}

std::string listed(std::string_view first, const std::vector<std::string>& items, std::size_t indent) {
  if (items.empty()) return {};
  std::string text;
  for (const std::string& item : items) {
    if (!text.empty()) text += ", ";
    text += item;
  }
  return wrapped(first, text, indent);
}

}  // namespace dsplan
