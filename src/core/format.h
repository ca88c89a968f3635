// Text from patterns: fmt's own language, behind one door. fmt's headers are the largest part of what a compiler reads
// of a small file, so that they are read once, in format.cpp; here is only what a call needs.
//
// A pattern is checked while compiling for how many arguments it takes. Which letters fit which argument ("{:x}" of a
// string) is fmt's business at run time, where a misfit is a bug and throws.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace dsplan {

// One argument, by reference: it must live as long as the call.
struct FormatArgument {
  enum class Kind : std::uint8_t { Signed, Unsigned, Real, Boolean, Character, Text };

  template <std::signed_integral T>
  constexpr FormatArgument(T value) : kind(Kind::Signed), whole(value) {}
  template <std::unsigned_integral T>
  constexpr FormatArgument(T value) : kind(Kind::Unsigned), natural(value) {}
  constexpr FormatArgument(bool value) : kind(Kind::Boolean), natural(value ? 1 : 0) {}
  constexpr FormatArgument(char value) : kind(Kind::Character), natural(static_cast<unsigned char>(value)) {}
  constexpr FormatArgument(double value) : kind(Kind::Real), real(value) {}
  constexpr FormatArgument(std::string_view value) : kind(Kind::Text), text(value) {}
  constexpr FormatArgument(const char* value) : kind(Kind::Text), text(value) {}
  // An id (core/ids.h), as its number.
  template <class T>
  requires std::integral<typename T::Number>
  constexpr FormatArgument(T id) : FormatArgument(id.number()) {}
  FormatArgument(const std::string& value) : kind(Kind::Text), text(value) {}

  Kind kind;
  union {
    std::int64_t whole;
    std::uint64_t natural;
    double real;
    std::string_view text;
  };
};

// How many arguments a pattern takes: as many as it has "{}", or one more than the largest number in "{1}".
consteval std::size_t arguments_of(std::string_view pattern) {
  std::size_t count = 0;
  std::size_t numbered = 0;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '}' && at + 1 < pattern.size() && pattern[at + 1] == '}') ++at;
    if (pattern[at] != '{') continue;
    if (at + 1 < pattern.size() && pattern[at + 1] == '{') {
      ++at;
      continue;
    }
    std::size_t number = 0;
    std::size_t end = at + 1;
    for (; end < pattern.size() && pattern[end] >= '0' && pattern[end] <= '9'; ++end) {
      number = number * 10 + static_cast<std::size_t>(pattern[end] - '0');
    }
    if (end > at + 1) {
      numbered = number + 1 > numbered ? number + 1 : numbered;
    } else {
      ++count;
    }
    // A width may be an argument too, "{:>{}}": the braces inside are seen by the next turns of the loop.
  }
  return count > numbered ? count : numbered;
}

// A pattern that takes `Arguments` of them. Any other does not compile.
template <std::size_t Arguments>
struct FormatPattern {
  template <std::size_t Size>
  consteval FormatPattern(const char (&literal)[Size]) : text(literal, Size - 1) {
    if (arguments_of(text) != Arguments) throw "the pattern takes another number of arguments";
  }
  std::string_view text;
};

// A pattern that is known at run time only: nobody has counted.
[[nodiscard]] std::string formatted_as(std::string_view pattern, std::span<const FormatArgument> arguments);
void append_formatted_as(std::string& to, std::string_view pattern, std::span<const FormatArgument> arguments);

template <class... Arguments>
[[nodiscard]] std::string formatted(std::type_identity_t<FormatPattern<sizeof...(Arguments)>> pattern,
                                    const Arguments&... arguments) {
  const std::array<FormatArgument, sizeof...(Arguments)> list{FormatArgument(arguments)...};
  return formatted_as(pattern.text, list);
}

template <class... Arguments>
void append_formatted(std::string& to, std::type_identity_t<FormatPattern<sizeof...(Arguments)>> pattern,
                      const Arguments&... arguments) {
  const std::array<FormatArgument, sizeof...(Arguments)> list{FormatArgument(arguments)...};
  append_formatted_as(to, pattern.text, list);
}

// "1, 2, 3"
template <class Iterator>
[[nodiscard]] std::string joined(Iterator begin, Iterator end, std::string_view between) {
  std::string text;
  for (Iterator at = begin; at != end; ++at) {
    if (at != begin) text += between;
    append_formatted(text, "{}", *at);
  }
  return text;
}
template <class List>
[[nodiscard]] std::string joined(const List& list, std::string_view between) {
  return joined(std::begin(list), std::end(list), between);
}

// The time of day as files record it: "2026-08-01T12:00:00Z".
[[nodiscard]] std::string utc_now();

}  // namespace dsplan
