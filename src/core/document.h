// A parsed text file as plain data with addresses. `io` makes documents from JSON, Hjson and YAML; every other room
// reads them through `ObjectReader`, so that each fault names file, line and column, and no room but `io` knows a
// parser. Values keep the byte offset at which they start in the original text.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace dsplan {

struct Member;

struct Value {
  enum class Kind : std::uint8_t { Null, Bool, Integer, Real, String, Array, Object };
  Kind kind = Kind::Null;
  bool boolean = false;
  std::int64_t integer = 0;  // Integer only. Integers beyond 63 bits arrive as Real with `huge` set.
  double real = 0;           // Real; also set for Integer.
  bool huge = false;         // An integer literal that does not fit in 63 bits.
  std::size_t offset = 0;    // Byte offset of the first character in Document::text.
  std::string string;
  std::vector<Value> items;     // Array.
  std::vector<Member> members;  // Object, in file order. Duplicate keys are refused by the parser.

  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] bool is(Kind k) const { return kind == k; }
};

struct Member {
  std::string key;
  std::size_t key_offset = 0;
  Value value;
};

struct Document {
  std::string path;  // As the user named it.
  std::string text;
  Value root;

  // A diagnostic that points at `offset`.
  [[nodiscard]] Diagnostic at(std::size_t offset, std::string message, std::string hint = {}) const;
};

// "string", "an integer", ...: for messages.
[[nodiscard]] std::string_view describe(Value::Kind kind);

// The candidate nearest to `word` by edit distance, if within 2 (and less than the word's length); else empty.
[[nodiscard]] std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);
// The hint of a message about a name: `did you mean "nearest"?`, or nothing where nothing is near.
[[nodiscard]] std::string did_you_mean(std::string_view nearest);
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

// Typed access to one object of a document. Faults go to the Diagnostics; a faulty field reads as absent, so reading
// goes on and several faults are reported together. The reader remembers which keys were asked for: `unread()` are
// those that nobody knows.
class ObjectReader {
 public:
  // `object` must be an Object of `document`; both must outlive the reader.
  ObjectReader(const Document& document, const Value& object, Diagnostics& diagnostics);

  // Present and not null. Marks the key as known.
  [[nodiscard]] const Value* find(std::string_view key);
  [[nodiscard]] bool has(std::string_view key) { return find(key) != nullptr; }

  // nullopt where absent, null, or faulty. Integers may be written as integral reals (5e8), as DeepSpeed reads them.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t least, std::int64_t most);
  [[nodiscard]] std::optional<double> number(std::string_view key);
  [[nodiscard]] std::optional<bool> boolean(std::string_view key);
  [[nodiscard]] std::optional<std::string> string(std::string_view key);
  // One of `choices`; otherwise a fault with the nearest choice.
  [[nodiscard]] std::optional<std::string> choice(std::string_view key,
                                                  std::initializer_list<std::string_view> choices);
  // nullptr where absent or not an object / array (a fault unless absent or null).
  [[nodiscard]] const Value* object(std::string_view key);
  [[nodiscard]] const Value* array(std::string_view key);

  // A required integer: its absence is a fault at the object's own place.
  [[nodiscard]] std::int64_t required_integer(std::string_view key, std::int64_t least, std::int64_t most,
                                              std::int64_t fallback);

  void fault(const Value& value, std::string message, std::string hint = {});
  // Points at the key's value if present, else at the object.
  void fault(std::string_view key, std::string message, std::string hint = {});

  // Marks a key as known without reading it.
  void accept(std::string_view key);
  [[nodiscard]] std::vector<const Member*> unread() const;
  // Each unread key becomes a fault with the nearest known key.
  void refuse_unread(std::string_view what);

  [[nodiscard]] const Document& document() const { return *document_; }
  [[nodiscard]] const Value& value() const { return *object_; }
  [[nodiscard]] Diagnostics& diagnostics() const { return *diagnostics_; }
  [[nodiscard]] const std::vector<std::string_view>& known() const { return known_; }

 private:
  const Document* document_;
  const Value* object_;
  Diagnostics* diagnostics_;
  std::vector<std::string_view> known_;  // Keys asked for; views of literals or of the document.
};

}  // namespace dsplan
