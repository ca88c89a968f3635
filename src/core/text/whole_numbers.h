// Whole numbers in words.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dsplan {

// All of `text`, in decimal digits behind a "-" or nothing; nullopt: it is no number of 64 bits.
[[nodiscard]] inline std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace dsplan
