// One description for each kind of file, from which its writer, its reader and its schema come.
//
// A description is a function `describe(Fields&, T&)` that names each key once, in the order of the file, with the
// member that holds it. Three visitors walk it: one writes, one reads and reports every fault with its place, one makes
// the JSON Schema. Of presence it says:
//
//   a member            the key is there and not null
//   an optional member  the key is there, and null where the member is absent
//   Key::if_there       not even the key need be there; `written` says whether it is
//   derived             it follows from other members: written, and passed over on reading
//
// Keys that no description names are refused. What only a reader asks (what members have to do with each other) stands
// behind `if (ObjectReader* reader = fields.reader())`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/document.h"
#include "core/units.h"

namespace dsplan {

class Json;

struct Key {
  Key(const char* said) : name(said) {}
  // It outlives the object that it stands in.
  Key(std::string_view said) : name(said) {}
  Key(const std::string& said) : name(said) {}
  // A key that only some files have.
  [[nodiscard]] static Key if_there(std::string_view said, bool written) {
    Key key(said);
    key.always = false;
    key.written = written;
    return key;
  }

  std::string_view name;
  bool always = true;
  bool written = true;
};

// One value that is neither object nor list.
struct FieldValue {
  Value::Kind type = Value::Kind::Null;  // Bool, Integer, Real or String.
  bool nullable = false;
  bool derived = false;
  std::int64_t least = 0;  // Of integers; reals are never negative.
  std::int64_t most = INT64_MAX;
  std::vector<std::string_view> words;  // Of strings, any of these; none: any string.
  bool open = false;                    // The schema does not list the words.
  Value value;                          // To be written, or as read. Null: absent.
};

// How the members of an object stand in files that people read: on one line, or each on its own.
enum class FieldLine : std::uint8_t { Own, Same };

// An object or a list under a key.
struct Nested {
  std::string_view what;  // For a fault: "a rank of a receipt".
  FieldLine line = FieldLine::Own;
  bool nullable = false;
  bool there = true;  // When writing: it is not null.
};

// What a description is told to: a writer, a reader or a maker of schemas.
class FieldVisitor {
 public:
  FieldVisitor() = default;
  FieldVisitor(const FieldVisitor&) = delete;
  FieldVisitor& operator=(const FieldVisitor&) = delete;
  virtual ~FieldVisitor() = default;

  // The object that is being read; nullptr where nothing is read.
  [[nodiscard]] virtual ObjectReader* reader() { return nullptr; }
  virtual void scalar(const Key& key, FieldValue& scalar) = 0;
  // A part that somebody else describes: `part` is written whole, nullptr as null. What was read, or nullptr.
  virtual const Value* document(const Key& key, const Value* part) = 0;
  // A part that is written whole, with its own schema; passed over on reading.
  virtual void other(const Key& key, const Value& part, const Json& schema) = 0;
  // Whether members come next; then `close_object` ends them.
  virtual bool open_object(const Key& key, const Nested& part) = 0;
  virtual void close_object(std::string_view what) = 0;
  // How many items come next, of a list that has `size`; then `close_list` ends them. nullopt: none, and no end.
  virtual std::optional<std::size_t> open_list(const Key& key, const Nested& part, std::size_t size) = 0;
  // An item: an object with members, as `open_object`, or a string.
  virtual bool open_item(const Nested& part) = 0;
  virtual void item(std::string& text, std::string_view what) = 0;
  virtual void close_list() = 0;
};

namespace detail {

// What a member is in a file, and how it gets there and back.
template <class T>
struct AsScalar {
  static constexpr Value::Kind kType = std::is_same_v<T, bool>     ? Value::Kind::Bool
                                       : std::is_same_v<T, double> ? Value::Kind::Real
                                       : std::is_integral_v<T>     ? Value::Kind::Integer
                                                                   : Value::Kind::String;
  static void put(const T& from, Value& to) {
    if constexpr (kType == Value::Kind::Bool) to.boolean = from;
    if constexpr (kType == Value::Kind::Real) to.real = from;
    if constexpr (kType == Value::Kind::Integer) to.integer = static_cast<std::int64_t>(from);
    if constexpr (kType == Value::Kind::String) to.string = from;
    to.kind = kType;
  }
  static void take(const Value& from, T& to) {
    if constexpr (kType == Value::Kind::Bool) to = from.boolean;
    if constexpr (kType == Value::Kind::Real) to = from.real;
    if constexpr (kType == Value::Kind::Integer) to = static_cast<T>(from.integer);
    if constexpr (kType == Value::Kind::String) to = from.string;
  }
};
template <class Tag>
struct AsScalar<Count<Tag>> {
  static constexpr Value::Kind kType = Value::Kind::Integer;
  static void put(Count<Tag> from, Value& to) { AsScalar<std::int64_t>::put(from.value(), to); }
  static void take(const Value& from, Count<Tag>& to) { to = Count<Tag>(from.integer); }
};
template <class T>
struct AsScalar<std::optional<T>> {
  static constexpr Value::Kind kType = AsScalar<T>::kType;
  static void put(const std::optional<T>& from, Value& to) {
    if (from) AsScalar<T>::put(*from, to);
  }
  static void take(const Value& from, std::optional<T>& to) {
    to.reset();
    if (!from.is(Value::Kind::Null)) AsScalar<T>::take(from, to.emplace());
  }
};
template <class T>
inline constexpr bool kOptional = false;
template <class T>
inline constexpr bool kOptional<std::optional<T>> = true;

template <class T>
[[nodiscard]] FieldValue field_of(const T& member, std::int64_t least) {
  FieldValue field;
  field.type = AsScalar<T>::kType;
  field.nullable = kOptional<T>;
  field.least = least;
  AsScalar<T>::put(member, field.value);
  return field;
}

}  // namespace detail

// The words of a description.
class Fields {
 public:
  explicit Fields(FieldVisitor& visitor) : visitor_(visitor) {}

  [[nodiscard]] ObjectReader* reader() { return visitor_.reader(); }

  // A scalar: an integer, bytes or another count (from `least` on), a truth, a quantity, a string; or an optional one.
  template <class T>
  void operator()(const Key& key, T& member, std::int64_t least = 0, std::int64_t most = INT64_MAX);
  // A string, null where it is empty.
  void text_or_null(const Key& key, std::string& text);
  void word(const Key& key, std::string& text, std::vector<std::string_view> words);
  // One of these values, by its `name`. `open`: the schema does not list them.
  template <class E>
  void named(const Key& key, E& value, const std::vector<std::type_identity_t<E>>& all, bool open = false);
  // A word that is always the same.
  void constant(const Key& key, std::string_view word);
  template <class T>
  void derived(const Key& key, const T& value, std::int64_t least = 0);
  // A part that somebody else describes, whole; as read it still points into its file.
  void document(const Key& key, std::optional<Document>& part);
  // One that must be there, and be what `whole` says: "the whole file".
  void document(const Key& key, Document& part, std::string_view whole = {});
  // What no member is: a number or a word, keys that the user chose, rows that are lists, an object of another schema.
  // Written whole, with a schema that stands beside it.
  void other(const Key& key, const Json& part, const Json& schema);
  void texts(const Key& key, std::vector<std::string>& texts, std::string_view what);

  // An object whose members `members` names.
  template <class Members>
  void object(const Key& key, const Nested& part, Members&& members);
  template <class T, class Members>
  void object(const Key& key, std::optional<T>& member, Nested part, Members&& members);
  // A list of objects, whose members `each` names.
  template <class T, class Each>
  void list(const Key& key, std::vector<T>& items, const Nested& part, Each&& each);
  template <class T, class Each>
  void list(const Key& key, std::optional<std::vector<T>>& items, Nested part, Each&& each);

 private:
  FieldVisitor& visitor_;
};

// All values of an enumeration, from the first to `last`.
template <class E>
[[nodiscard]] std::vector<E> all_up_to(E last) {
  std::vector<E> all;
  for (int one = 0; one <= static_cast<int>(last); ++one) all.push_back(static_cast<E>(one));
  return all;
}

// How a file is laid out. `kept`: for people who keep it in their repository and read its differences.
struct Layout {
  int indent = 2;
  bool kept = false;
};
using Description = std::function<void(Fields&)>;

// The text of an object, with a line's end after it.
[[nodiscard]] std::string written(const Description& description, Layout layout = {});
// Reads the document's root, which is an object. All faults are thrown together. `what`: "a receipt".
void read_fields(const Document& document, std::string_view what, const Description& description);
void read_fields(const Document& document, const Value& object, std::string_view what, Diagnostics& faults,
                 const Description& description);
// The JSON Schema (draft 2020-12) of what `written` writes: each object lists all its keys.
[[nodiscard]] std::string schema_of(std::string_view title, std::string_view text, const Description& description);
// The paths of all nulls that `written` writes outside of lists: "memory.peak.process".
[[nodiscard]] std::vector<std::string> nulls_of(const Description& description);

// What only reads does not change what it is told of.
template <class T>
[[nodiscard]] T& described(const T& written_only) {
  return const_cast<T&>(written_only);
}

template <class T>
void Fields::operator()(const Key& key, T& member, std::int64_t least, std::int64_t most) {
  FieldValue scalar = detail::field_of(member, least);
  scalar.most = most;
  visitor_.scalar(key, scalar);
  if (reader() != nullptr) detail::AsScalar<T>::take(scalar.value, member);
}

template <class E>
void Fields::named(const Key& key, E& value, const std::vector<std::type_identity_t<E>>& all, bool open) {
  FieldValue scalar;
  scalar.type = Value::Kind::String;
  scalar.open = open;
  for (const E one : all) scalar.words.push_back(name(one));
  detail::AsScalar<std::string>::put(std::string(name(value)), scalar.value);
  visitor_.scalar(key, scalar);
  for (const E one : all) {
    if (reader() != nullptr && scalar.value.string == name(one)) value = one;
  }
}

template <class T>
void Fields::derived(const Key& key, const T& value, std::int64_t least) {
  FieldValue scalar = detail::field_of(value, least);
  scalar.derived = true;
  visitor_.scalar(key, scalar);
}

template <class Members>
void Fields::object(const Key& key, const Nested& part, Members&& members) {
  if (!visitor_.open_object(key, part)) return;
  members();
  visitor_.close_object(part.what);
}

template <class T, class Members>
void Fields::object(const Key& key, std::optional<T>& member, Nested part, Members&& members) {
  part.nullable = key.always;
  part.there = member.has_value();
  if (!visitor_.open_object(key, part)) return;
  if (!member) member.emplace();
  members(*member);
  visitor_.close_object(part.what);
}

template <class T, class Each>
void Fields::list(const Key& key, std::vector<T>& items, const Nested& part, Each&& each) {
  const std::optional<std::size_t> size = visitor_.open_list(key, part, items.size());
  if (!size) return;
  if (*size != items.size()) items.resize(*size);
  for (T& item : items) {
    if (!visitor_.open_item(part)) continue;
    each(item);
    visitor_.close_object(part.what);
  }
  visitor_.close_list();
}

template <class T, class Each>
void Fields::list(const Key& key, std::optional<std::vector<T>>& items, Nested part, Each&& each) {
  part.nullable = key.always;
  part.there = items.has_value();
  if (items) return list(key, *items, part, each);
  std::vector<T> made;
  list(key, made, part, each);
  if (reader() != nullptr && reader()->array(key.name) != nullptr) items = std::move(made);
}

}  // namespace dsplan
