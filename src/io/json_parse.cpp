#include "io/json_parse.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/format.h"
#include "io/text.h"

namespace dsplan::detail {
namespace {

constexpr std::string_view kBlanks = " \n\t\r";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '+' || c == '-'; }

std::size_t skip(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(kBlanks, at), text.size());
}

std::string_view word_at(std::string_view text, std::size_t at) {
  std::size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  return text.substr(at, end - at);
}

std::size_t line_of(std::string_view text, std::size_t offset) {
  return 1 +
         static_cast<std::size_t>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
}

JsonFault number_fault(std::string_view text, std::size_t at, bool overflow) {
  const std::string number = in_quotes(word_at(text, at));
  const std::string shown = number.substr(1, number.size() - 2);
  if (overflow) return {at, formatted("{} is too large for a number", shown), {}};
  return {at, formatted("{} is not a JSON number", shown), "write it like 10, -0.5 or 1e-8"};
}

JsonFault word_fault(std::string_view text, std::size_t at) {
  const std::string_view word = word_at(text, at);
  for (const auto& [wrong, right] : {std::pair<std::string_view, std::string_view>{"True", "true"},
                                     {"TRUE", "true"},
                                     {"False", "false"},
                                     {"FALSE", "false"},
                                     {"None", "null"},
                                     {"NULL", "null"},
                                     {"Null", "null"}}) {
    if (word == wrong) {
      return {at, formatted("expected a value, found {}", in_quotes(word)), formatted("JSON writes {}", right)};
    }
  }
  for (std::string_view number : {"NaN", "nan", "Infinity", "inf", "-Infinity", "-inf", "Inf"}) {
    if (word == number) return {at, formatted("{} is not a JSON number", word), {}};
  }
  return {at, formatted("expected a value, found {}", in_quotes(word)), "a string needs double quotes"};
}

// The file ends too early; points behind its last character that is not blank.
JsonFault end_fault(const Progress& progress) {
  const std::size_t last = progress.json.find_last_not_of(kBlanks);
  if (last == std::string_view::npos || progress.after == After::Nothing) {
    return {0, "the file is empty", "expected a JSON value"};
  }
  return {last + 1,
          formatted("the file ends inside the {} opened on line {}", progress.in_object ? "object" : "array",
                    line_of(progress.json, progress.opened)),
          {}};
}

JsonFault comment_fault(std::size_t at) { return {at, "JSON has no comments", {}}; }

bool comment_at(std::string_view text, std::size_t at) {
  return text[at] == '#' || (text[at] == '/' && at + 1 < text.size() && (text[at + 1] == '/' || text[at + 1] == '*'));
}

JsonFault value_fault(const Progress& progress, std::size_t at) {
  const std::string_view text = progress.json;
  if (at == text.size()) return end_fault(progress);
  const char c = text[at];
  if (c == '"') return judge_string(text, at);
  if (c == '-' && at + 1 < text.size() && is_letter(text[at + 1])) return word_fault(text, at);
  if (c == '-' || c == '.' || c == '+' || is_digit(c)) return number_fault(text, at, progress.overflow);
  if (is_letter(c)) return word_fault(text, at);
  if (comment_at(text, at)) return comment_fault(at);
  return {at, formatted("expected a value, found {}", found(text, at)),
          c == '\'' ? "a string needs double quotes" : ""};
}

JsonFault key_fault(const Progress& progress, std::size_t at, bool after_comma) {
  const std::string_view text = progress.json;
  if (at == text.size()) return end_fault(progress);
  if (text[at] == '"') return judge_string(text, at);
  if (comment_at(text, at)) return comment_fault(at);
  if (text[at] == '}' && after_comma) return {at, "expected a key after ',', found '}'", "remove the trailing comma"};
  const std::string_view word = word_at(text, at);
  const bool unquoted = !word.empty() || text[at] == '\'';
  return {at, formatted("expected a key, found {}", word.empty() ? found(text, at) : in_quotes(word)),
          unquoted ? "a key needs double quotes" : ""};
}

JsonFault item_fault(const Progress& progress, std::size_t at) {
  const std::string_view text = progress.json;
  if (progress.number && at == progress.cursor && at < text.size() && is_word(text[at])) {
    return number_fault(text, progress.last, false);
  }
  if (progress.at_root) {
    if (comment_at(text, at)) return comment_fault(at);
    return {at, formatted("expected the end of the file, found {}", found(text, at)), {}};
  }
  if (at == text.size()) return end_fault(progress);
  if (text[at] == ',') {
    const std::size_t next = skip(text, at + 1);
    if (progress.in_object) return key_fault(progress, next, true);
    if (next < text.size() && text[next] == ']') {
      return {next, "expected a value after ',', found ']'", "remove the trailing comma"};
    }
    return value_fault(progress, next);
  }
  if (comment_at(text, at)) return comment_fault(at);
  return {at, formatted("expected ',' or '{}', found {}", progress.in_object ? '}' : ']', found(text, at)), {}};
}

// Four hexadecimal digits at `at`, or -1.
int code_unit(std::string_view text, std::size_t at) {
  if (at + 4 > text.size()) return -1;
  int unit = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const char c = text[i];
    if (is_digit(c)) {
      unit = unit * 16 + (c - '0');
    } else if (c >= 'a' && c <= 'f') {
      unit = unit * 16 + (c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      unit = unit * 16 + (c - 'A' + 10);
    } else {
      return -1;
    }
  }
  return unit;
}

// A fault of the escape whose backslash is at `at`, or its length in `offset`.
JsonFault judge_escape(std::string_view text, std::size_t at, char quote) {
  const char c = text[at + 1];
  if (c != 'u') {
    if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos || (c == '\'' && quote == '\''))
      return {2, {}, {}};
    return {at, formatted("unknown escape '\\{}' in a string", is_word(c) ? std::string(1, c) : "..."),
            "a backslash is written \\\\"};
  }
  const int unit = code_unit(text, at + 2);
  if (unit < 0) return {at, "'\\u' needs four hexadecimal digits", {}};
  if (unit < 0xD800 || unit > 0xDFFF) return {6, {}, {}};
  const bool paired = unit < 0xDC00 && text.substr(at + 6, 2) == "\\u";
  const int second = paired ? code_unit(text, at + 8) : -1;
  if (second >= 0xDC00 && second <= 0xDFFF) return {12, {}, {}};
  return {at, "half of a surrogate pair in a string", "characters beyond \\uffff take two \\u escapes"};
}

}  // namespace

JsonFault diagnose(const Progress& progress) {
  const std::size_t at = skip(progress.json, progress.cursor);
  switch (progress.after) {
    case After::Nothing: return value_fault(progress, at);
    case After::Open: return progress.in_object ? key_fault(progress, at, false) : value_fault(progress, at);
    case After::Key:
      if (at == progress.json.size()) return end_fault(progress);
      if (progress.json[at] == ':') return value_fault(progress, skip(progress.json, at + 1));
      return {at, formatted("expected ':' after the key, found {}", found(progress.json, at)), {}};
    case After::Item: return item_fault(progress, at);
  }
  return {at, "not JSON", {}};
}

std::size_t token_end(std::string_view json, std::size_t at, Value::Kind kind) {
  switch (kind) {
    case Value::Kind::Null: return at + 4;
    case Value::Kind::Bool: return at + (json[at] == 't' ? 4 : 5);
    case Value::Kind::Array:
    case Value::Kind::Object: return at + 1;
    case Value::Kind::String:
      for (++at; json[at] != '"'; ++at) {
        if (json[at] == '\\') ++at;
      }
      return at + 1;
    case Value::Kind::Integer:
    case Value::Kind::Real: break;
  }
  const auto digits = [&] {
    while (at < json.size() && is_digit(json[at])) ++at;
  };
  if (json[at] == '-') ++at;
  // A leading zero is a whole integer part: what follows in "01" is the next token.
  if (json[at] == '0') {
    ++at;
  } else {
    digits();
  }
  if (at < json.size() && json[at] == '.') {
    ++at;
    digits();
  }
  if (at < json.size() && (json[at] == 'e' || json[at] == 'E')) {
    ++at;
    if (json[at] == '+' || json[at] == '-') ++at;
    digits();
  }
  return at;
}

JsonFault judge_string(std::string_view text, std::size_t open) {
  const char quote = text[open];
  for (std::size_t at = open + 1; at < text.size();) {
    const char c = text[at];
    if (c == quote) return {at + 1, {}, {}};
    if (c == '\n' || c == '\r') break;
    if (static_cast<unsigned char>(c) < 0x20) {
      return {at, formatted("control character 0x{:02X} in a string", static_cast<unsigned>(c)),
              formatted("write it as \\u{:04x}", static_cast<unsigned>(c))};
    }
    if (c != '\\') {
      ++at;
      continue;
    }
    if (at + 1 == text.size()) break;
    JsonFault escape = judge_escape(text, at, quote);
    if (!escape.message.empty()) return escape;
    at += escape.offset;
  }
  return {open, "the string that starts here has no closing quote on its line", {}};
}

}  // namespace dsplan::detail

namespace dsplan::detail {
namespace {

bool blank_or_separator(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == ',' || c == ':'; }

// Builds the value tree from nlohmann's events. Those carry no positions, so a cursor follows them through the text:
// what lies between two events is only blanks and separators, which the parser has already judged.
class Builder {
 public:
  Builder(const Document& document, std::string_view json, const std::vector<Anchor>* anchors)
      : document_(&document), json_(json), anchors_(anchors), progress_{json, after_mark(json)} {}

  bool null() { return scalar(Value::Kind::Null, {}); }
  bool boolean(bool value) {
    Value made;
    made.boolean = value;
    return scalar(Value::Kind::Bool, std::move(made));
  }
  bool number_integer(std::int64_t value) {
    Value made;
    made.integer = value;
    made.real = static_cast<double>(value);
    return scalar(Value::Kind::Integer, std::move(made));
  }
  bool number_unsigned(std::uint64_t value) {
    if (value <= static_cast<std::uint64_t>(INT64_MAX)) return number_integer(static_cast<std::int64_t>(value));
    Value made;
    made.real = static_cast<double>(value);
    made.huge = true;
    return scalar(Value::Kind::Real, std::move(made));
  }
  bool number_float(double value, const std::string& literal) {
    Value made;
    made.real = value;
    made.huge = literal.find_first_of(".eE") == std::string::npos;
    return scalar(Value::Kind::Real, std::move(made));
  }
  bool string(std::string& value) {
    Value made;
    made.string = std::move(value);
    return scalar(Value::Kind::String, std::move(made));
  }
  bool binary(std::vector<std::uint8_t>&) { return false; }  // Never called for text.

  bool start_object(std::size_t) { return open(Value::Kind::Object); }
  bool start_array(std::size_t) { return open(Value::Kind::Array); }
  bool end_object() {
    find_duplicates(*stack_.back(), duplicates_);
    return close();
  }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    const std::size_t at = token(Value::Kind::String);
    progress_.after = After::Key;
    stack_.back()->members.push_back({std::move(name), original(at), {}});
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& exception) {
    // 406: the only complaint about a well-formed token, a number beyond the range of a double.
    progress_.overflow = exception.id == 406;
    syntax_fault();
    return false;
  }

  Value finish(bool parsed) {
    // The parser takes a NUL byte for the end of its input.
    if (parsed && json_.find_first_not_of(" \n\t\r", progress_.cursor) != std::string_view::npos) syntax_fault();
    for (const Value* object : stack_) find_duplicates(*object, duplicates_);
    Diagnostics diagnostics;
    add_duplicates(*document_, std::move(duplicates_), diagnostics);
    if (fatal_) diagnostics.add(std::move(*fatal_));
    diagnostics.throw_if_any();
    DSPLAN_CHECK(parsed, "the parser stopped without a fault in " + document_->path);
    return std::move(root_);
  }

 private:
  [[nodiscard]] std::size_t original(std::size_t at) const {
    if (anchors_ == nullptr) return at;
    const auto after = std::upper_bound(anchors_->begin(), anchors_->end(), at,
                                        [](std::size_t offset, const Anchor& anchor) { return offset < anchor.json; });
    if (after == anchors_->begin()) return 0;
    const Anchor& anchor = *std::prev(after);
    const std::size_t limit = after == anchors_->end() ? document_->text.size() : after->original;
    return std::min(anchor.original + (at - anchor.json), limit);
  }

  // The start of the next token, which the parser has just accepted; leaves the cursor behind it.
  std::size_t token(Value::Kind kind) {
    std::size_t at = progress_.cursor;
    while (blank_or_separator(json_[at])) ++at;
    progress_.last = at;
    progress_.cursor = token_end(json_, at, kind);
    return at;
  }

  // Gives a value its place in the open container; nullptr if there are too many values.
  Value* place(Value::Kind kind, Value made) {
    made.kind = kind;
    made.offset = original(token(kind));
    if (++count_ > kMostValues) {
      fatal_ = document_->at(made.offset, formatted("more than {} values", kMostValues));
      return nullptr;
    }
    progress_.after = After::Item;
    if (stack_.empty()) return &(root_ = std::move(made));
    Value& container = *stack_.back();
    if (container.is(Value::Kind::Object)) return &(container.members.back().value = std::move(made));
    return &container.items.emplace_back(std::move(made));
  }

  bool scalar(Value::Kind kind, Value made) {
    progress_.number = kind == Value::Kind::Integer || kind == Value::Kind::Real;
    return place(kind, std::move(made)) != nullptr;
  }

  bool open(Value::Kind kind) {
    Value* container = place(kind, {});
    if (container == nullptr) return false;
    if (stack_.size() == kDeepest) {
      fatal_ = document_->at(container->offset, formatted("nested deeper than {} levels", kDeepest));
      return false;
    }
    stack_.push_back(container);  // Stable: its siblings' vector grows only after it is closed.
    progress_.after = After::Open;
    progress_.in_object = kind == Value::Kind::Object;
    return true;
  }

  bool close() {
    progress_.cursor = json_.find_first_of("]}", progress_.cursor) + 1;
    stack_.pop_back();
    progress_.after = After::Item;
    progress_.number = false;
    progress_.in_object = !stack_.empty() && stack_.back()->is(Value::Kind::Object);
    return true;
  }

  void syntax_fault() {
    if (!stack_.empty()) progress_.opened = stack_.back()->offset;
    progress_.at_root = stack_.empty();
    JsonFault fault = diagnose(progress_);
    DSPLAN_CHECK(anchors_ == nullptr || progress_.overflow, "rewritten Hjson is not JSON: " + fault.message);
    fatal_ = document_->at(original(fault.offset), std::move(fault.message), std::move(fault.hint));
  }

  const Document* document_;
  std::string_view json_;
  const std::vector<Anchor>* anchors_;
  Progress progress_;
  Value root_;
  std::vector<Value*> stack_;  // Open containers.
  std::size_t count_ = 0;
  std::vector<Duplicate> duplicates_;
  std::optional<Diagnostic> fatal_;
};

}  // namespace

Value parse_strict(const Document& document, std::string_view json, const std::vector<Anchor>* anchors) {
  Builder builder(document, json, anchors);
  const bool parsed = nlohmann::json::sax_parse(json.data(), json.data() + json.size(), &builder);
  return builder.finish(parsed);
}

void find_duplicates(const Value& object, std::vector<Duplicate>& duplicates) {
  const std::vector<Member>& members = object.members;
  if (members.size() < 2) return;
  std::vector<const Member*> sorted;
  sorted.reserve(members.size());
  for (const Member& member : members) sorted.push_back(&member);
  std::sort(sorted.begin(), sorted.end(), [](const Member* a, const Member* b) {
    const int order = a->key.compare(b->key);
    return order != 0 ? order < 0 : a < b;
  });
  const Member* first = sorted.front();
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->key != first->key) {
      first = sorted[i];
    } else {
      duplicates.push_back({sorted[i]->key_offset, first->key_offset, first->key});
    }
  }
}

void add_duplicates(const Document& document, std::vector<Duplicate> duplicates, Diagnostics& diagnostics) {
  std::sort(duplicates.begin(), duplicates.end(),
            [](const Duplicate& a, const Duplicate& b) { return a.second < b.second; });
  for (const Duplicate& duplicate : duplicates) {
    if (diagnostics.full()) {
      diagnostics.add({});  // Only counted.
      continue;
    }
    const auto begin = document.text.begin();
    const auto line = 1 + std::count(begin, begin + static_cast<std::ptrdiff_t>(duplicate.first), '\n');
    diagnostics.add(document.at(duplicate.second, formatted("duplicate key {}", in_quotes(duplicate.key)),
                                formatted("first given on line {}", line)));
  }
}

}  // namespace dsplan::detail

namespace dsplan {

Document parse_json(std::string path, std::string text) {
  Document document{std::move(path), std::move(text), {}};
  detail::refuse_bad_utf8(document);
  document.root = detail::parse_strict(document, document.text, nullptr);
  return document;
}

}  // namespace dsplan
