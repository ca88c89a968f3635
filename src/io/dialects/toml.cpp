// TOML 1.0 by toml++, with the offsets of its own text.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format.h"
#include "io/json_parse.h"
#include "io/text.h"

namespace dsplan {
namespace {

// toml++ counts lines, and characters in them, from one.
class TomlPlaces {
 public:
  explicit TomlPlaces(std::string_view text) : text_(text) {
    starts_.push_back(detail::after_mark(text));
    for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
      starts_.push_back(at + 1);
    }
  }

  [[nodiscard]] std::size_t of(const toml::source_position& position) const {
    if (position.line == 0 || position.line > starts_.size()) return text_.size();
    std::size_t at = starts_[position.line - 1];
    for (toml::source_index passed = 1; passed < position.column && at < text_.size() && text_[at] != '\n'; ++passed) {
      ++at;
      while (at < text_.size() && (static_cast<unsigned char>(text_[at]) & 0xC0) == 0x80) ++at;
    }
    return at;
  }

 private:
  std::string_view text_;
  std::vector<std::size_t> starts_;
};

class TomlBuilder {
 public:
  explicit TomlBuilder(Document& document) : document_(document), places_(document.text) {}

  void run() {
    refuse_deep_keys();
    const toml::parse_result read = toml::parse(std::string_view(document_.text));
    if (!read) {
      // "Error while parsing key-value pair: cannot redefine ..."
      std::string what(read.error().description());
      if (what.starts_with("Error while parsing") && what.find(": ") != std::string::npos)
        what.erase(0, what.find(": ") + 2);
      throw Refusal({document_.at(places_.of(read.error().source().begin), formatted("not TOML: {}", what))});
    }
    document_.root = object(read.table());
    document_.root.offset = 0;
    faults_.throw_if_any();
  }

 private:
  // toml++ makes a table of each part of a dotted key, and frees one inside the other.
  void refuse_deep_keys() const {
    std::size_t dots = 0;
    for (std::size_t at = 0; at < document_.text.size(); ++at) {
      const char c = document_.text[at];
      if (c == '\n' || c == '=' || c == ',') dots = 0;
      if (c != '.' || ++dots < kDeepest) continue;
      throw Refusal({document_.at(at, formatted("nested deeper than {} levels", kDeepest))});
    }
  }

  Value value(const toml::node& node) {
    Value made;
    if (const auto* table = node.as_table()) {
      made = object(*table);
    } else if (const auto* array = node.as_array()) {
      made.kind = Value::Kind::Array;
      for (const toml::node& item : *array) made.items.push_back(value(item));
    } else if (const auto* text = node.as_string()) {
      made.kind = Value::Kind::String;
      made.string = text->get();
    } else if (const auto* whole = node.as_integer()) {
      made.kind = Value::Kind::Integer;
      made.integer = whole->get();
      made.real = static_cast<double>(made.integer);
    } else if (const auto* truth = node.as_boolean()) {
      made.kind = Value::Kind::Bool;
      made.boolean = truth->get();
    } else if (const auto* real = node.as_floating_point(); real != nullptr && std::isfinite(real->get())) {
      made.kind = Value::Kind::Real;
      made.real = real->get();
    } else {
      faults_.add(document_.at(places_.of(node.source().begin),
                               node.is_floating_point() ? "not a finite number" : "dates and times are not read here"));
    }
    made.offset = places_.of(node.source().begin);
    return made;
  }

  // In the order of the file; toml++ has them by name.
  Value object(const toml::table& table) {
    Value made;
    made.kind = Value::Kind::Object;
    for (const auto& [key, node] : table) {
      made.members.push_back({std::string(key.str()), places_.of(key.source().begin), value(node)});
    }
    std::stable_sort(made.members.begin(), made.members.end(),
                     [](const Member& a, const Member& b) { return a.key_offset < b.key_offset; });
    return made;
  }

  Document& document_;
  TomlPlaces places_;
  Diagnostics faults_;
};

}  // namespace

Document parse_toml(std::string path, std::string text) {
  if (text.size() > kLargestYaml) {
    throw Refusal(std::move(path), formatted("larger than {} MiB, the most for TOML", kLargestYaml >> 20));
  }
  Document document{std::move(path), std::move(text), {}};
  detail::refuse_bad_utf8(document);
  TomlBuilder(document).run();
  return document;
}

}  // namespace dsplan
