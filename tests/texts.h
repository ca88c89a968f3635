// Texts in tests: what is in them, and the same with one part changed.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <string_view>

namespace dsplan::test {

inline bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// The first of `from` becomes `to`; it must be there.
inline std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  REQUIRE_MESSAGE(at != std::string::npos, from);
  return text.replace(at, from.size(), to);
}

}  // namespace dsplan::test
