// Real numbers as text: the library's way and the way of C say the same.
#include "core/text/real_numbers.h"

#include <doctest/doctest.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace dsplan;

namespace {

bool same(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return std::isnan(*a) ? std::isnan(*b) : *a == *b && std::signbit(*a) == std::signbit(*b);
}

}  // namespace

TEST_CASE("a real number is read whole or not at all") {
  for (const char* text :
       {"0", "0.5", ".5", "5.", "-2", "1e-3", "1E+3", "inf", "-inf", "nan", "infinity", "1e308", "5e-324"}) {
    CAPTURE(text);
    CHECK(real_number(text).has_value());
    CHECK(same(real_number(text), detail::real_number_in_c(text)));
  }
  for (const char* text : {"",      "-",   "+1", "-+1", "--1",  " 1",    "1 ",     "0x10",   "1e",          "1e+",
                           "1.2.3", "1,5", "e5", ".",   "infx", "1e400", "-1e400", "1e-400", "0.0001e-400", "twelve"}) {
    CAPTURE(text);
    CHECK_FALSE(real_number(text).has_value());
    CHECK_FALSE(detail::real_number_in_c(text).has_value());
  }
}

TEST_CASE("words made of a number's letters are read alike by both") {
  std::mt19937_64 random(7);
  const std::string letters = "0123456789.eE+-infatyINFATY x";
  int numbers = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (std::uint64_t length = 1 + random() % 6; length > 0; --length)
      text += letters[random() % (i % 2 == 0 ? 15 : letters.size())];
    const std::optional<double> read = real_number(text);
    numbers += read.has_value() ? 1 : 0;
    if (!same(read, detail::real_number_in_c(text))) FAIL_CHECK(text);
  }
  CHECK(numbers > 10'000);
}

TEST_CASE("the fewest digits mean the number and no other") {
  std::mt19937_64 random(11);
  std::vector<double> values = {0.0,
                                -0.0,
                                1.0,
                                0.1,
                                1e23,
                                5e-324,
                                2.2250738585072014e-308,
                                std::numeric_limits<double>::max(),
                                9007199254740993.0,
                                0.3,
                                298.142e-3};
  for (int i = 0; i < 50'000; ++i) {
    const std::uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    if (std::isfinite(value)) values.push_back(value);
    values.push_back(static_cast<double>(random() % 1'000'000'000) / static_cast<double>(1 + random() % 1'000'000));
  }
  for (const double value : values) {
    const std::string text = shortest_scientific(value);
    if (text != detail::shortest_scientific_in_c(value)) FAIL_CHECK(text);
    if (real_number(text) != value) FAIL_CHECK(text);
  }
}
