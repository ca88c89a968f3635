// Real numbers as text, and back: what <charconv> does where it knows them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsplan {

// "0.5", "1e-3", "-2", "inf". Nothing where anything else stands there: blanks, a plus, hexadecimal, a rest.
[[nodiscard]] std::optional<double> real_number(std::string_view text);

// The fewest digits that mean this number and no other: "1.5e+00", "-3e-07". The number is finite.
[[nodiscard]] std::string shortest_scientific(double value);

namespace detail {

// The same in the words of C, for libraries whose <charconv> has no real numbers: LLVM's before 20, which Emscripten
// of Debian 12 brings. Compiled everywhere, so that a test can hold them against the others.
[[nodiscard]] std::optional<double> real_number_in_c(std::string_view text);
[[nodiscard]] std::string shortest_scientific_in_c(double value);

}  // namespace detail
}  // namespace dsplan
