// Documents as one line of text, for tables of what the readers of text files make of their input.
#pragma once

#include <cctype>
#include <string>

#include "core/format.h"
#include "io/text.h"

namespace dsplan {

using Parse = Document (*)(std::string, std::string);

// The whole refusal as it is printed, or "accepted".
inline std::string refusal(Parse parse, const std::string& text) {
  try {
    (void)parse("f", text);
    return "accepted";
  } catch (const Refusal& refused) {
    return refused.what();
  }
}

// Values with their offsets in one line: {"a"@1: 5@6}@0. Reals are written 1.5e+00, huge ones with a '!'.
inline std::string show(const Value& value) {
  std::string text;
  switch (value.kind) {
    case Value::Kind::Null: text = "null"; break;
    case Value::Kind::Bool: text = value.boolean ? "true" : "false"; break;
    case Value::Kind::Integer: text = dsplan::formatted("{}", value.integer); break;
    case Value::Kind::Real: text = dsplan::formatted("{:.1e}{}", value.real, value.huge ? "!" : ""); break;
    case Value::Kind::String: text = '"' + value.string + '"'; break;
    case Value::Kind::Array:
      for (const Value& item : value.items) text += (text.empty() ? "" : ", ") + show(item);
      text = '[' + text + ']';
      break;
    case Value::Kind::Object:
      for (const Member& member : value.members) {
        text += dsplan::formatted("{}\"{}\"@{}: {}", text.empty() ? "" : ", ", member.key, member.key_offset,
                                  show(member.value));
      }
      text = '{' + text + '}';
      break;
  }
  return dsplan::formatted("{}@{}", text, value.offset);
}

// The value without its offsets.
inline std::string plain(const Value& value) {
  std::string text = show(value);
  std::string kept;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '@' && i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0) {
      while (i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0) ++i;
    } else {
      kept += text[i];
    }
  }
  return kept;
}

struct Row {
  std::string text;
  std::string expected;
};

}  // namespace dsplan
