#include <algorithm>
#include <cstdint>
#include <cstring>

#include "io/json_parse.h"

#include "core/format.h"

namespace dsplan::detail {
namespace {

constexpr std::size_t kClip = 60;

// The length of the well-formed sequence at `at`, or 0: no overlong forms, no surrogates, nothing beyond U+10FFFF
// (Unicode 15, table 3-7).
std::size_t sequence(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U; };
  const auto within = [&](std::size_t i, unsigned least, unsigned most) { return byte(i) >= least && byte(i) <= most; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool second = within(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF);
    return second && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool second = within(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF);
    return second && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::size_t bad_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    // Eight plain characters at a time: nearly all of any file.
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080U) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = sequence(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

void refuse_bad_utf8(const Document& document) {
  const std::size_t at = bad_utf8(document.text);
  if (at == std::string_view::npos) return;
  const auto byte = static_cast<unsigned char>(document.text[at]);
  throw Refusal({document.at(at, formatted("byte 0x{:02X} is not UTF-8 text", byte))});
}

std::size_t after_mark(std::string_view text) { return text.starts_with("\xEF\xBB\xBF") ? 3 : 0; }

std::string in_quotes(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(sequence(text, at), 1);
    if (at + length > kClip) return '"' + shown + "...\"";
    const auto lead = static_cast<unsigned char>(text[at]);
    shown += lead < 0x20 || lead == 0x7F ? std::string_view("?") : text.substr(at, length);
    at += length;
  }
  return '"' + shown + '"';
}

std::string found(std::string_view text, std::size_t offset) {
  if (offset >= text.size()) return "the end of the file";
  const auto lead = static_cast<unsigned char>(text[offset]);
  if (lead < 0x20 || lead == 0x7F) return formatted("byte 0x{:02X}", lead);
  return formatted("'{}'", text.substr(offset, std::max<std::size_t>(sequence(text, offset), 1)));
}

}  // namespace dsplan::detail
