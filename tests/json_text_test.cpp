// JSON as it is written, held against another library's writer.
#include "io/json_text.h"

#include <doctest/doctest.h>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

using namespace dsplan;
using Other = nlohmann::ordered_json;

namespace {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  std::string one_of(const std::vector<std::string>& choices) {
    return choices[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(choices.size()) - 1))];
  }
  std::uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

std::string other_text(const Other& value, int indent) {
  return value.dump(indent, ' ', false, Other::error_handler_t::replace);
}

// Text with everything that must be escaped or replaced in it.
std::string any_text(Dice& dice) {
  std::string text;
  for (std::int64_t left = dice.between(0, 8); left > 0; --left) {
    switch (dice.between(0, 3)) {
      case 0: text += static_cast<char>(dice.between(0, 255)); break;
      case 1: text += dice.one_of({"\"", "\\", "\n", "\t", "\b", "\f", "\r", "\x7f", "/"}); break;
      case 2: text += dice.one_of({"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\xa0\x80", "\xe2\x82"}); break;
      default: text += static_cast<char>(dice.between('a', 'z')); break;
    }
  }
  return text;
}

// The same value for both writers. Reals have few digits: see the test of numbers.
struct Both {
  Json ours;
  Other other;
};

Both any_value(Dice& dice, int depth) {
  const std::int64_t kind = dice.between(0, depth == 0 ? 4 : 6);
  if (kind == 0) return {Json(), nullptr};
  if (kind == 1) {
    const bool value = dice.between(0, 1) == 1;
    return {value, value};
  }
  if (kind == 2) {
    const std::int64_t value =
        dice.between(0, 1) == 1 ? dice.between(-1000, 1000) : dice.between(INT64_MIN / 2, INT64_MAX / 2);
    return {value, value};
  }
  if (kind == 3) {
    const double value = static_cast<double>(dice.between(-9999, 9999)) / 8;
    return {value, value};
  }
  if (kind == 4) {
    const std::string text = any_text(dice);
    return {text, text};
  }
  Both all{kind == 5 ? Json::array() : Json::object(), kind == 5 ? Other::array() : Other::object()};
  for (std::int64_t left = dice.between(0, 4); left > 0; --left) {
    Both one = any_value(dice, depth - 1);
    if (kind == 5) {
      all.ours.push_back(std::move(one.ours));
      all.other.push_back(std::move(one.other));
    } else {
      const std::string key = any_text(dice);
      all.ours.set(key, std::move(one.ours));
      all.other[key] = std::move(one.other);
    }
  }
  return all;
}

double any_double(Dice& dice) {
  const std::uint64_t bits = dice.bits();
  double value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("values are written as another library writes them") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(seed);
    const Both both = any_value(dice, 4);
    for (const int indent : {-1, 1, 2}) CHECK(json_text(both.ours, indent) == other_text(both.other, indent));
  }
}

TEST_CASE("numbers come back as they were, and never with more digits than another library needs") {
  Dice dice(1);
  int shorter = 0;
  for (int i = 0; i < 20000; ++i) {
    const double value = any_double(dice);
    const std::string ours = json_text(Json(value));
    const std::string other = other_text(value, -1);
    if (!std::isfinite(value)) {
      CHECK(ours == "null");
      continue;
    }
    CHECK(Other::parse(ours).get<double>() == value);
    CHECK_MESSAGE(ours.size() <= other.size(), other);
    if (ours != other) ++shorter;
  }
  // Its algorithm (Grisu2) misses the shortest digits, or the nearest of them, now and then.
  CHECK(shorter < 200);
  for (const double value : {0.0, -0.0, 1.0, 100.0, 1e14, 1e15, 1e16, 123456789012345.0, 1234567890123456.0, 0.1, 1e-4,
                             1e-5, 0.00012, 5e-324, 1.5e300, -2.5, 3e8, std::numeric_limits<double>::max()}) {
    CHECK(json_text(Json(value)) == other_text(value, -1));
  }
}

TEST_CASE("what stands on one line does not indent what it holds") {
  JsonText text(1);
  text.open('{');
  text.key("ranks");
  text.open('[');
  text.open('{', true);
  text.key("rank");
  text.integer(0);
  text.key("rows");
  text.open('{');
  text.key("a");
  text.null();
  text.close();
  text.close();
  text.close();
  text.key("none");
  text.open('[');
  text.close();
  text.close();
  CHECK(std::move(text).take() ==
        "{\n \"ranks\": [\n  {\"rank\": 0, \"rows\": {\n   \"a\": null\n  }}\n ],\n \"none\": []\n}");
}

TEST_CASE("an object under construction") {
  Json value = {{"a", 1}, {"b", {{"c", std::optional<Bytes>()}, {"d", Bytes(5)}}}, {"a", "again"}};
  value.update({{"b", std::vector<std::string>{"x"}}, {"e", Json::array({1, true, 0.5})}});
  CHECK(json_text(value) == R"({"a":"again","b":["x"],"e":[1,true,0.5]})");
  CHECK_THROWS_AS(value.push_back(1), InternalError);
}
