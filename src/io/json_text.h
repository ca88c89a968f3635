// Writing JSON: text as it grows, and values that are put together before they are written. Reading is io/text.h.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/document.h"
#include "core/units.h"

namespace dsplan {

// JSON text that grows from left to right. Numbers have as few digits as bring the same double back; a whole one keeps
// its ".0", and one that is no number is null. A byte that is not UTF-8 (a user's path may hold it) becomes U+FFFD.
class JsonText {
 public:
  // Each level is indented by `indent` more blanks; below 0: no blanks and no lines at all.
  explicit JsonText(int indent) : indent_(indent) {}

  void key(std::string_view name);
  // '{' or '['. `one_line`: its items stand on the line on which it begins.
  void open(char bracket, bool one_line = false);
  void close();
  void null() { raw("null"); }
  void boolean(bool value) { raw(value ? "true" : "false"); }
  void integer(std::int64_t value);
  void real(double value);
  void string(std::string_view text);
  // Another item of a list, on the line of the one before.
  void string_beside(std::string_view text);
  void value(const Value& value);
  // One item that is JSON already.
  void raw(std::string_view json);

  // Blanks before an item of the open container.
  [[nodiscard]] std::size_t margin() const;
  [[nodiscard]] std::string take() && { return std::move(text_); }

 private:
  struct Open {
    char bracket = '{';
    bool one_line = false;
    bool empty = true;
  };
  void begin_item();
  void new_line(std::size_t blanks);

  int indent_;
  std::string text_;
  std::vector<Open> open_;
  bool after_key_ = false;
};

// A value that is put together before it is written. Braces make an object: {{"key", value}, ...}.
class Json {
 public:
  struct Pair;

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool value);
  template <std::integral Whole>
  Json(Whole value) : Json(Integer{static_cast<std::int64_t>(value)}) {}
  Json(double value);
  Json(std::string_view text);
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(const std::vector<std::string>& texts);
  Json(const std::vector<std::int64_t>& numbers);
  Json(const Value& value) : value_(value) {}
  Json(std::initializer_list<Pair> members);
  template <class Tag>
  Json(Count<Tag> count) : Json(count.value()) {}
  // Null where it is absent.
  template <class T>
  requires std::is_constructible_v<Json, const T&> Json(const std::optional<T>& value)
      : Json(value ? Json(*value) : Json()) {}

  [[nodiscard]] static Json array(std::initializer_list<Json> items = {});
  [[nodiscard]] static Json object() { return std::initializer_list<Pair>(); }

  void push_back(Json item);
  // Replaces the member of that name, or adds it at the end. What is null becomes an object.
  void set(std::string_view key, Json value);
  // All members of another object, one by one.
  void update(Json other);

  [[nodiscard]] const Value& value() const { return value_; }
  [[nodiscard]] bool is_null() const { return value_.is(Value::Kind::Null); }
  [[nodiscard]] bool empty() const { return value_.items.empty() && value_.members.empty(); }
  // Written alike.
  friend bool operator==(const Json& a, const Json& b);

 private:
  struct Integer {
    std::int64_t value;
  };
  Json(Integer whole);

  Value value_;
};

struct Json::Pair {
  std::string_view key;
  Json value;
};

// `indent` as JsonText has it.
[[nodiscard]] std::string json_text(const Value& value, int indent = -1);
[[nodiscard]] inline std::string json_text(const Json& json, int indent = -1) {
  return json_text(json.value(), indent);
}

}  // namespace dsplan
