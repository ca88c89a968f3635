// What every fuzz target checks. A target gives arbitrary bytes to a public function: a Refusal is a good answer, any
// other exception, a crash, a hang or a broken property is a finding.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "core/document.h"
#include "core/format.h"

namespace dsplan::fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken property: %s\n", what);
  std::abort();
}

// Runs `reader`; true if it accepted. Every refusal must say something and point into its text.
template <typename Reader>
bool accepts(const Reader& reader) {
  try {
    reader();
    return true;
  } catch (const Refusal& refusal) {
    require(!refusal.diagnostics().empty(), "a refusal has a diagnostic");
    require(refusal.diagnostics().size() <= Diagnostics::kMost + 1, "a refusal has at most 20 diagnostics");
    for (const Diagnostic& diagnostic : refusal.diagnostics()) {
      require(!diagnostic.message.empty(), "a diagnostic has a message");
      require(diagnostic.line == 0 || diagnostic.column > diagnostic.source_begin, "a column lies in the excerpt");
      require(diagnostic.column <= diagnostic.source_begin + diagnostic.source_line.size() + 1,
              "a column lies within its line");
    }
    return false;
  }
}

inline void write_string(const std::string& text, std::string& out) {
  out += '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += dsplan::formatted("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  out += '"';
}

inline std::string real(const Value& value) {
  if (!value.huge) return dsplan::formatted("{:.17e}", value.real);
  // -2^63 itself fits in 63 bits and a sign; its neighbours below round to the same double.
  return value.real == -0x1p63 ? "-9223372036854775809" : dsplan::formatted("{:.0f}", value.real);
}

// The value as compact strict JSON. Reals keep 18 digits, so that reading gives them back.
inline void write_json(const Value& value, std::string& out) {
  switch (value.kind) {
    case Value::Kind::Null: out += "null"; return;
    case Value::Kind::Bool: out += value.boolean ? "true" : "false"; return;
    case Value::Kind::Integer: out += dsplan::formatted("{}", value.integer); return;
    case Value::Kind::Real: out += real(value); return;
    case Value::Kind::String: write_string(value.string, out); return;
    case Value::Kind::Array:
      out += '[';
      for (const Value& item : value.items) {
        if (&item != &value.items.front()) out += ',';
        write_json(item, out);
      }
      out += ']';
      return;
    case Value::Kind::Object:
      out += '{';
      for (const Member& member : value.members) {
        if (&member != &value.members.front()) out += ',';
        write_string(member.key, out);
        out += ':';
        write_json(member.value, out);
      }
      out += '}';
      return;
  }
}

inline bool equal(const Value& a, const Value& b) {
  if (a.kind != b.kind || a.boolean != b.boolean || a.integer != b.integer || a.huge != b.huge || a.real != b.real ||
      a.string != b.string || a.items.size() != b.items.size() || a.members.size() != b.members.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(a.items[i], b.items[i])) return false;
  }
  for (std::size_t i = 0; i < a.members.size(); ++i) {
    if (a.members[i].key != b.members[i].key || !equal(a.members[i].value, b.members[i].value)) return false;
  }
  return true;
}

// Offsets lie in the text and ascend in document order; containers start at their bracket where brackets are required.
class OffsetJudge {
 public:
  OffsetJudge(const std::string& text, bool brackets) : text_(text), brackets_(brackets) {}

  void judge(const Value& value, std::size_t depth = 0) {
    require(depth <= 128, "nesting is bounded");
    ascend(value.offset);
    const char first = value.offset < text_.size() ? text_[value.offset] : '\0';
    if (brackets_) {
      require(!value.is(Value::Kind::Array) || first == '[', "an array starts at '['");
      require(!value.is(Value::Kind::Object) || first == '{', "an object starts at '{'");
      require(!value.is(Value::Kind::String) || first == '"', "a string starts at its quote");
      require(!value.is(Value::Kind::Bool) || first == (value.boolean ? 't' : 'f'), "a boolean starts at its word");
    }
    for (const Value& item : value.items) judge(item, depth + 1);
    for (const Member& member : value.members) {
      ascend(member.key_offset);
      if (brackets_) require(text_[member.key_offset] == '"', "a key starts at its quote");
      judge(member.value, depth + 1);
    }
  }

 private:
  void ascend(std::size_t offset) {
    require(offset <= text_.size(), "an offset lies in the text");
    require(offset >= last_, "offsets ascend");
    last_ = offset;
  }

  const std::string& text_;
  bool brackets_;
  std::size_t last_ = 0;
};

}  // namespace dsplan::fuzz
