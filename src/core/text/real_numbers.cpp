#include "core/text/real_numbers.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include "core/error.h"

namespace dsplan {
namespace detail {

std::optional<double> real_number_in_c(std::string_view text) {
  // strtod takes more than may stand here: blanks, a plus, hexadecimal.
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  const bool plain = !digits.empty() && digits.find_first_not_of("0123456789.eE+-infatyINFATY") == digits.npos &&
                     digits.front() != '+' && digits.front() != '-';
  if (!plain) return std::nullopt;
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  const bool word = digits.front() >= 'A';
  const bool none = value == 0 && digits.find_first_of("123456789") < digits.find_first_of("eE");
  const bool beyond = !word && (std::isinf(value) || none);
  if (end != copy.c_str() + copy.size() || beyond) return std::nullopt;
  return value;
}

std::string shortest_scientific_in_c(double value) {
  constexpr int kAlwaysEnough = 16;  // Digits after the first.
  char buffer[32];
  for (int digits = 0;; ++digits) {
    const int length = std::snprintf(buffer, sizeof buffer, "%.*e", digits, value);
    if (digits == kAlwaysEnough || std::strtod(buffer, nullptr) == value) {
      return {buffer, static_cast<std::size_t>(length)};
    }
  }
}

}  // namespace detail

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 200000
std::optional<double> real_number(std::string_view text) { return detail::real_number_in_c(text); }
std::string shortest_scientific(double value) { return detail::shortest_scientific_in_c(value); }
#else
std::optional<double> real_number(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

std::string shortest_scientific(double value) {
  char buffer[32];
  const auto [end, fault] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  DSPLAN_CHECK(fault == std::errc(), "32 characters hold any double");
  return {buffer, static_cast<std::size_t>(end - buffer)};
}
#endif

}  // namespace dsplan
