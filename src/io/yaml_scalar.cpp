#include "io/yaml_scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/format.h"

namespace dsplan::detail {
namespace {

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

bool one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Consumes characters of `set` and says how many.
std::size_t take(std::string_view& text, std::string_view set) {
  const std::size_t length = std::min(text.find_first_not_of(set), text.size());
  text.remove_prefix(length);
  return length;
}

std::string without_underscores(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  return digits;
}

Scalar string_scalar(std::string_view text) {
  Scalar made;
  made.value.kind = Value::Kind::String;
  made.value.string = text;
  return made;
}

Scalar refused(std::string_view text, std::string_view why) {
  Scalar made = string_scalar(text);
  made.refusal = why;
  return made;
}

Scalar real_scalar(std::string_view text, bool huge) {
  Scalar made;
  made.value.kind = Value::Kind::Real;
  made.value.huge = huge;
  made.value.real = std::strtod(without_underscores(text).c_str(), nullptr);
  if (!std::isfinite(made.value.real)) made.refusal = "too large for a number";
  return made;
}

// `digits` in `base`; refused where nothing is left once the underscores are gone.
Scalar integer_scalar(std::string_view text, bool negative, std::string_view digits, int base) {
  const std::string clean = (negative ? "-" : "") + without_underscores(digits);
  Scalar made;
  made.value.kind = Value::Kind::Integer;
  const auto read = std::from_chars(clean.data(), clean.data() + clean.size(), made.value.integer, base);
  if (read.ec == std::errc()) {
    made.value.real = static_cast<double>(made.value.integer);
    return made;
  }
  if (base == 10) return real_scalar(clean, true);
  return refused(text, "not an integer of 63 bits");
}

// 1:30 or 1:30.5: base 60 to YAML 1.1.
bool sexagesimal(std::string_view text) {
  if (take(text, "0123456789_") == 0) return false;
  std::size_t groups = 0;
  while (text.starts_with(':')) {
    text.remove_prefix(1);
    if (text.empty() || !is_decimal(text.front())) return false;
    const std::size_t length = take(text, "0123456789");
    if (length > 2) return false;
    ++groups;
  }
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    take(text, "0123456789_");
  }
  return groups > 0 && text.empty();
}

// 2001-12-14 with or without a time.
bool timestamp(std::string_view text) {
  if (take(text, "0123456789") != 4 || !text.starts_with('-')) return false;
  text.remove_prefix(1);
  const std::size_t month = take(text, "0123456789");
  if (month == 0 || month > 2 || !text.starts_with('-')) return false;
  text.remove_prefix(1);
  const std::size_t day = take(text, "0123456789");
  return day > 0 && day <= 2 && (text.empty() || text.front() == 'T' || text.front() == 't' || text.front() == ' ');
}

// Digits with a dot, an exponent or both; at least one digit before the exponent.
bool decimal(std::string_view text) {
  const bool leading = !text.empty() && is_decimal(text.front());
  if (leading) take(text, "0123456789_");
  bool marked = false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (!leading && (text.empty() || !is_decimal(text.front()))) return false;
    take(text, "0123456789_");
    marked = true;
  } else if (!leading) {
    return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (take(text, "0123456789") == 0) return false;
    marked = true;
  }
  return marked && text.empty();
}

Scalar number_or_string(std::string_view text) {
  const bool negative = text.starts_with('-');
  const std::string_view body = text.substr(negative || text.starts_with('+') ? 1 : 0);
  if (one_of(body, {".inf", ".Inf", ".INF"}) || one_of(text, {".nan", ".NaN", ".NAN"})) {
    return refused(text, "not a finite number");
  }
  const auto only = [](std::string_view digits, std::string_view set) {
    return !digits.empty() && digits.find_first_not_of(set) == std::string_view::npos;
  };
  if (body.starts_with("0b") && only(body.substr(2), "01_")) return integer_scalar(text, negative, body.substr(2), 2);
  if (body.starts_with("0x") && only(body.substr(2), "0123456789abcdefABCDEF_")) {
    return integer_scalar(text, negative, body.substr(2), 16);
  }
  if (!body.empty() && is_decimal(body.front())) {
    if (body == "0") return integer_scalar(text, negative, body, 10);
    if (body.front() == '0' && only(body, "01234567_")) return integer_scalar(text, negative, body, 8);
    if (body.front() != '0' && only(body, "0123456789_")) return integer_scalar(text, negative, body, 10);
    if (sexagesimal(body)) return refused(text, "a base-60 number to YAML; put it in quotes if it is a string");
    if (timestamp(text)) return refused(text, "a timestamp to YAML; put it in quotes if it is a string");
  }
  if (decimal(body)) return real_scalar(text, false);
  return string_scalar(text);
}

}  // namespace

Scalar resolve_plain(std::string_view text) {
  Scalar made;
  if (one_of(text, {"", "~", "null", "Null", "NULL"})) return made;
  const bool yes = one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"});
  if (yes || one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) {
    made.value.kind = Value::Kind::Bool;
    made.value.boolean = yes;
    return made;
  }
  if (text == "<<") return refused(text, "YAML's merge key, which is not read here");
  if (text == "=") return refused(text, "YAML's value key, which is not read here");
  return number_or_string(text);
}

}  // namespace dsplan::detail
