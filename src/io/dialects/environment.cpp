#include <charconv>
#include <cstdlib>
#include <string>

#include "core/format.h"
#include "core/text/letters.h"
#include "core/text/real_numbers.h"
#include "io/dialects/dialect_reader.h"

namespace dsplan::detail {
namespace {

bool is_name(std::string_view text) {
  if (text.empty() || (text.front() >= '0' && text.front() <= '9')) return false;
  return std::all_of(text.begin(), text.end(), is_word_character);
}

// A text that reads as a number or a truth value becomes one, as if it had been written without quotes.
void retype(Value& value) {
  const std::string& text = value.string;
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    value.kind = Value::Kind::Bool;
    value.boolean = text == "true" || text == "True";
  } else if (const auto read = std::from_chars(text.data(), end, whole); read.ec == std::errc() && read.ptr == end) {
    value.kind = Value::Kind::Integer;
    value.integer = whole;
    value.real = static_cast<double>(whole);
  } else if (const std::optional<double> real = real_number(text)) {
    value.kind = Value::Kind::Real;
    value.real = *real;
  }
}

struct Substitution {
  const Document& document;
  Diagnostics& faults;

  // What stands between the braces, replaced; nullopt: a fault.
  [[nodiscard]] std::optional<std::string> of(const Value& value, std::string_view inside) const {
    std::string_view name = inside;
    std::optional<std::string> otherwise;
    if (name.starts_with("oc.env:")) {
      name.remove_prefix(7);
      if (const std::size_t comma = name.find(','); comma != std::string_view::npos) {
        otherwise = name.substr(comma + 1);
        name = name.substr(0, comma);
      }
    } else if (const std::size_t dash = name.find(":-"); dash != std::string_view::npos) {
      otherwise = name.substr(dash + 2);
      name = name.substr(0, dash);
    }
    if (!is_name(name)) {
      faults.add(document.at(value.offset, formatted("\"${{{}}}\" names no environment variable", inside)));
      return std::nullopt;
    }
    if (const char* const found = std::getenv(std::string(name).c_str())) return found;
    if (otherwise) return otherwise;
    faults.add(document.at(value.offset, formatted("the environment variable {} is not set", name),
                           "set it, or write the value"));
    return std::nullopt;
  }

  void text(Value& value) const {
    std::string made;
    std::string_view rest = value.string;
    while (true) {
      const std::size_t open = rest.find("${");
      made += rest.substr(0, open);
      if (open == std::string_view::npos) break;
      const std::size_t close = rest.find('}', open);
      if (close == std::string_view::npos) {
        faults.add(document.at(value.offset, "\"${\" without \"}\""));
        value.kind = Value::Kind::Null;  // Once is enough.
        return;
      }
      const std::optional<std::string> replaced = of(value, rest.substr(open + 2, close - open - 2));
      if (!replaced) {
        value.kind = Value::Kind::Null;
        return;
      }
      made += *replaced;
      rest.remove_prefix(close + 1);
    }
    value.string = std::move(made);
    retype(value);
  }

  void everywhere(Value& value) const {
    if (faults.full()) return;
    if (value.is(Value::Kind::String) && value.string.find("${") != std::string::npos) text(value);
    for (Value& item : value.items) everywhere(item);
    for (Member& member : value.members) everywhere(member.value);
  }
};

}  // namespace

void take_environment(Document& document, Diagnostics& faults) {
  Value root = std::move(document.root);
  Substitution{document, faults}.everywhere(root);
  document.root = std::move(root);
}

}  // namespace dsplan::detail
