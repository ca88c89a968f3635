#include "io/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "core/text/real_numbers.h"

namespace dsplan {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// How many bytes from `at` on are one character of UTF-8 (RFC 3629), or -n where n bytes begin one that breaks off.
int character_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const int length = first >= 0xc2 && first <= 0xdf   ? 2
                     : first >> 4 == 0xe              ? 3
                     : first >= 0xf0 && first <= 0xf4 ? 4
                                                      : 0;
  if (length == 0) return -1;
  for (int i = 1; i < length; ++i) {
    const std::size_t next = at + static_cast<std::size_t>(i);
    if (next >= text.size()) return -i;
    const unsigned char least = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char most = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(next) < least || byte(next) > most) return -i;
  }
  return length;
}

void add_escaped(char c, std::string& into) {
  switch (c) {
    case '"': into += "\\\""; return;
    case '\\': into += "\\\\"; return;
    case '\b': into += "\\b"; return;
    case '\f': into += "\\f"; return;
    case '\n': into += "\\n"; return;
    case '\r': into += "\\r"; return;
    case '\t': into += "\\t"; return;
    default: break;
  }
  if (static_cast<unsigned char>(c) < 0x20) {
    append_formatted(into, "\\u{:04x}", static_cast<unsigned>(c));
  } else {
    into += c;
  }
}

void add_string(std::string_view text, std::string& into) {
  into += '"';
  for (std::size_t at = 0; at < text.size();) {
    const int bytes = character_bytes(text, at);
    const auto length = static_cast<std::size_t>(std::abs(bytes));
    if (bytes == 1) {
      add_escaped(text[at], into);
    } else {
      into += bytes > 0 ? text.substr(at, length) : kReplacement;
    }
    at += length;
  }
  into += '"';
}

// The shortest digits, written out from 10^-5 up to below 10^15 and with an exponent elsewhere.
void add_real(double value, std::string& into) {
  if (!std::isfinite(value)) {
    into += "null";
    return;
  }
  const std::string scientific = shortest_scientific(value);
  std::string_view said = scientific;
  if (said.front() == '-') {
    into += '-';
    said.remove_prefix(1);
  }
  const std::size_t mark = said.find('e');
  std::string digits(said.substr(0, 1));
  if (mark > 2) digits += said.substr(2, mark - 2);
  int exponent = 0;
  const char* from = said.data() + mark + (said[mark + 1] == '+' ? 2 : 1);
  std::from_chars(from, said.data() + said.size(), exponent);
  const int count = static_cast<int>(digits.size());
  const int point = exponent + 1;  // Digits before the point.
  if (count <= point && point <= 15) {
    into += digits + std::string(static_cast<std::size_t>(point - count), '0') + ".0";
  } else if (0 < point && point <= 15) {
    into += digits.insert(static_cast<std::size_t>(point), 1, '.');
  } else if (-4 < point && point <= 0) {
    into += "0." + std::string(static_cast<std::size_t>(-point), '0') + digits;
  } else {
    if (count > 1) digits.insert(1, 1, '.');
    append_formatted(into, "{}e{}{:02}", digits, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
}

}  // namespace

void JsonText::new_line(std::size_t blanks) {
  text_ += '\n';
  text_.append(blanks, ' ');
}

std::size_t JsonText::margin() const {
  const auto levels = std::count_if(open_.begin(), open_.end(), [](const Open& one) { return !one.one_line; });
  return indent_ < 0 ? 0 : static_cast<std::size_t>(levels) * static_cast<std::size_t>(indent_);
}

void JsonText::begin_item() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (open_.empty()) return;
  Open& container = open_.back();
  if (!container.empty) text_ += ',';
  if (indent_ >= 0 && container.one_line && !container.empty) text_ += ' ';
  if (indent_ >= 0 && !container.one_line) new_line(margin());
  container.empty = false;
}

void JsonText::key(std::string_view name) {
  begin_item();
  add_string(name, text_);
  text_ += indent_ < 0 ? ":" : ": ";
  after_key_ = true;
}

void JsonText::open(char bracket, bool one_line) {
  begin_item();
  text_ += bracket;
  open_.push_back({bracket, one_line, true});
}

void JsonText::close() {
  const Open closed = open_.back();
  open_.pop_back();
  if (!closed.empty && !closed.one_line && indent_ >= 0) new_line(margin());
  text_ += closed.bracket == '{' ? '}' : ']';
}

void JsonText::integer(std::int64_t value) {
  begin_item();
  append_formatted(text_, "{}", value);
}

void JsonText::real(double value) {
  begin_item();
  add_real(value, text_);
}

void JsonText::string(std::string_view text) {
  begin_item();
  add_string(text, text_);
}

void JsonText::string_beside(std::string_view text) {
  text_ += ", ";
  add_string(text, text_);
}

void JsonText::raw(std::string_view json) {
  begin_item();
  text_ += json;
}

void JsonText::value(const Value& value) {
  switch (value.kind) {
    case Value::Kind::Null: return null();
    case Value::Kind::Bool: return boolean(value.boolean);
    case Value::Kind::Integer: return integer(value.integer);
    case Value::Kind::Real: return real(value.real);
    case Value::Kind::String: return string(value.string);
    case Value::Kind::Array:
      open('[');
      for (const Value& item : value.items) this->value(item);
      return close();
    case Value::Kind::Object:
      open('{');
      for (const Member& member : value.members) {
        key(member.key);
        this->value(member.value);
      }
      return close();
  }
}

Json::Json(bool value) {
  value_.kind = Value::Kind::Bool;
  value_.boolean = value;
}

Json::Json(Integer whole) {
  value_.kind = Value::Kind::Integer;
  value_.integer = whole.value;
  value_.real = static_cast<double>(whole.value);
}

Json::Json(double value) {
  value_.kind = Value::Kind::Real;
  value_.real = value;
}

Json::Json(std::string_view text) {
  value_.kind = Value::Kind::String;
  value_.string = text;
}

Json::Json(const std::vector<std::string>& texts) {
  value_.kind = Value::Kind::Array;
  for (const std::string& text : texts) push_back(text);
}

Json::Json(const std::vector<std::int64_t>& numbers) {
  value_.kind = Value::Kind::Array;
  for (const std::int64_t number : numbers) push_back(number);
}

Json::Json(std::initializer_list<Pair> members) {
  value_.kind = Value::Kind::Object;
  value_.members.reserve(members.size());
  for (const Pair& member : members) set(member.key, member.value);
}

Json Json::array(std::initializer_list<Json> items) {
  Json made;
  made.value_.kind = Value::Kind::Array;
  for (const Json& item : items) made.push_back(item);
  return made;
}

void Json::push_back(Json item) {
  DSPLAN_CHECK(value_.is(Value::Kind::Array), "an item of what is no list");
  value_.items.push_back(std::move(item.value_));
}

void Json::set(std::string_view key, Json value) {
  if (is_null()) value_.kind = Value::Kind::Object;
  DSPLAN_CHECK(value_.is(Value::Kind::Object), "a member of what is no object");
  for (Member& member : value_.members) {
    if (member.key != key) continue;
    member.value = std::move(value.value_);
    return;
  }
  value_.members.push_back({std::string(key), 0, std::move(value.value_)});
}

void Json::update(Json other) {
  for (Member& member : other.value_.members) set(member.key, Json(member.value));
}

bool operator==(const Json& a, const Json& b) { return json_text(a) == json_text(b); }

std::string json_text(const Value& value, int indent) {
  JsonText text(indent);
  text.value(value);
  return std::move(text).take();
}

}  // namespace dsplan
