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

}  // namespace dsplan
