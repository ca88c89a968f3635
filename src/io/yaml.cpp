// What a plain YAML scalar means. Not for use outside io's readers.

#include <yaml.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/document.h"
#include "core/format.h"
#include "io/json_parse.h"
#include "io/text.h"

namespace dsplan::detail {

struct Scalar {
  Value value;          // Kind and content; no offset.
  std::string refusal;  // Not empty: why this scalar is not read.
};

// By the implicit resolvers of YAML 1.1 as PyYAML has them (yaml.org/type, PyYAML 6 resolver.py): null, bool, int with
// underscores and bases 2, 8 and 16, float. Wider: a float needs neither a dot nor a signed exponent. Refused:
// infinities and NaN, base-60 numbers, timestamps, the merge key (as a value) and "=".
[[nodiscard]] Scalar resolve_plain(std::string_view text);

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
  if (text == "<<") return refused(text, "YAML's merge key, and no value");
  if (text == "=") return refused(text, "YAML's value key, which is not read here");
  return number_or_string(text);
}

}  // namespace dsplan::detail

namespace dsplan {
namespace {

std::string_view view(const yaml_char_t* text) {
  return text == nullptr ? std::string_view() : std::string_view(reinterpret_cast<const char*>(text));
}

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(&event_); }
  [[nodiscard]] yaml_event_t* get() { return &event_; }
  yaml_event_t* operator->() { return &event_; }

 private:
  yaml_event_t event_{};
};

class Parser {
 public:
  explicit Parser(std::string_view text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { yaml_parser_delete(&parser_); }
  [[nodiscard]] bool next(Event& event) { return yaml_parser_parse(&parser_, event.get()) != 0; }
  yaml_parser_t* operator->() { return &parser_; }

 private:
  yaml_parser_t parser_{};
};

// Turns libyaml's marks, which count characters, into byte offsets. Marks come almost in order, so that one cursor
// makes the whole document linear.
class Offsets {
 public:
  explicit Offsets(std::string_view text) : text_(text), start_(detail::after_mark(text)), byte_(start_) {}

  std::size_t of(const yaml_mark_t& mark) {
    if (mark.index < character_) {
      character_ = 0;
      byte_ = start_;
    }
    for (; character_ < mark.index && byte_ < text_.size(); ++character_) {
      ++byte_;
      while (byte_ < text_.size() && (static_cast<unsigned char>(text_[byte_]) & 0xC0) == 0x80) ++byte_;
    }
    return byte_;
  }

 private:
  std::string_view text_;
  std::size_t start_;
  std::size_t byte_;
  std::size_t character_ = 0;
};

constexpr std::string_view kMerge = "<<";

// Where a value stands: which item or member of which.
using Way = std::vector<std::size_t>;

// Anchored values by name, as PyYAML composes them: a name is given once, and what stands behind it is a copy of all
// that the anchored value holds. `left` bounds the copies, which double with each of a few short lines.
class Anchors {
 public:
  // What is wrong with an alias; the value where nothing is.
  struct Answer {
    std::optional<Value> value;
    std::string fault;
    bool too_much = false;
  };

  // False where the name is taken.
  bool open(std::string_view name, Way way) {
    return named_.try_emplace(std::string(name), Anchor{std::move(way)}).second;
  }
  void close(std::string_view name) { named_.find(name)->second.open = false; }

  [[nodiscard]] Answer copy(std::string_view name, const Value& root, std::size_t deepest) {
    const auto at = named_.find(name);
    if (at == named_.end()) return {{}, formatted("alias *{} names no anchor above it", name)};
    if (at->second.open) return {{}, formatted("alias *{} stands inside what it names", name)};
    const Value* value = &root;
    for (const std::size_t step : at->second.way) {
      value = value->is(Value::Kind::Array) ? &value->items[step] : &value->members[step].value;
    }
    if (!fits(*value, deepest)) return {{}, formatted("with alias *{} the file holds too much", name), true};
    return {*value, {}};
  }

 private:
  struct Anchor {
    Way way;
    bool open = true;  // Not read to its end.
  };

  bool fits(const Value& value, std::size_t deepest) {
    if (deepest == 0 || left_ == 0) return false;
    --left_;
    return std::all_of(value.items.begin(), value.items.end(),
                       [&](const Value& item) { return fits(item, deepest - 1); }) &&
           std::all_of(value.members.begin(), value.members.end(),
                       [&](const Member& member) { return fits(member.value, deepest - 1); });
  }

  std::map<std::string, Anchor, std::less<>> named_;
  std::size_t left_ = kMostValues / 8;
};

// Merge keys give way to the members that they name: what an object says itself wins, and of several named objects the
// first (PyYAML, SafeConstructor.flatten_mapping).
class Merger {
 public:
  Merger(const Document& document, Diagnostics& faults) : document_(document), faults_(faults) {}

  void everywhere(Value& value) {
    for (Value& item : value.items) everywhere(item);
    for (Member& member : value.members) everywhere(member.value);
    const auto at = std::find_if(value.members.begin(), value.members.end(),
                                 [](const Member& member) { return member.key == kMerge; });
    if (at == value.members.end()) return;
    Value named = std::move(at->value);
    value.members.erase(at);
    std::set<std::string, std::less<>> said;
    for (const Member& member : value.members) said.insert(member.key);
    if (!named.is(Value::Kind::Array)) return take(named, value, said);
    for (Value& one : named.items) take(one, value, said);
  }

 private:
  void take(Value& from, Value& into, std::set<std::string, std::less<>>& said) {
    if (!from.is(Value::Kind::Object)) {
      return faults_.add(document_.at(
          from.offset, formatted("a merge key takes a mapping or a list of them, not {}", describe(from.kind))));
    }
    for (Member& member : from.members) {
      if (said.insert(member.key).second) into.members.push_back(std::move(member));
    }
  }

  const Document& document_;
  Diagnostics& faults_;
};

constexpr std::string_view kStandard = "tag:yaml.org,2002:";

class Builder {
 public:
  explicit Builder(Document& document) : document_(&document), parser_(document.text), offsets_(document.text) {}

  void run() {
    // libyaml compares every %TAG directive with all before it, and tags are not read here anyway.
    const std::string_view text = document_->text;
    const std::size_t directive = text.starts_with("%TAG") ? 0 : text.find("\n%TAG");
    if (directive != std::string_view::npos) {
      throw Refusal({document_->at(text[directive] == '\n' ? directive + 1 : 0, "%TAG directives are not read here")});
    }
    for (bool more = true; more;) {
      Event event;
      if (!parser_.next(event)) {
        syntax_fault();
        break;
      }
      more = handle(event) && !diagnostics_.full();
    }
    for (const Open& open : stack_) detail::find_duplicates(*open.value, duplicates_);
    detail::add_duplicates(*document_, std::move(duplicates_), diagnostics_);
    diagnostics_.throw_if_any();
    Merger(*document_, diagnostics_).everywhere(document_->root);
    diagnostics_.throw_if_any();
  }

 private:
  // False at the end.
  bool handle(Event& event) {
    const std::size_t at = offsets_.of(event->start_mark);
    switch (event->type) {
      case YAML_STREAM_END_EVENT: return false;
      case YAML_DOCUMENT_START_EVENT:
        if (++documents_ > 1) {
          fault(at, "a second document in one file");
          return false;
        }
        return true;
      case YAML_ALIAS_EVENT: return alias(at, view(event->data.alias.anchor));
      case YAML_SCALAR_EVENT: return scalar(at, event->data.scalar);
      case YAML_SEQUENCE_START_EVENT:
        judge_tag(at, view(event->data.sequence_start.tag), "seq");
        return open(at, Value::Kind::Array, view(event->data.sequence_start.anchor));
      case YAML_MAPPING_START_EVENT:
        judge_tag(at, view(event->data.mapping_start.tag), "map");
        return open(at, Value::Kind::Object, view(event->data.mapping_start.anchor));
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        detail::find_duplicates(*stack_.back().value, duplicates_);
        if (!stack_.back().anchor.empty()) anchors_.close(stack_.back().anchor);
        stack_.pop_back();
        key_next_ = !stack_.empty() && stack_.back().value->is(Value::Kind::Object);
        return true;
      case YAML_NO_EVENT:
      case YAML_STREAM_START_EVENT:
      case YAML_DOCUMENT_END_EVENT: return true;
    }
    return true;
  }

  void fault(std::size_t at, std::string message, std::string hint = {}) {
    diagnostics_.add(document_->at(at, std::move(message), std::move(hint)));
  }

  // The value placed last gets a name.
  void name(std::size_t at, std::string_view anchor) {
    Way way;
    for (std::size_t k = 0; k < stack_.size(); ++k) {
      const Value& around = *stack_[k].value;
      way.push_back((around.is(Value::Kind::Array) ? around.items.size() : around.members.size()) - 1);
    }
    if (!anchors_.open(anchor, std::move(way))) fault(at, formatted("a second anchor &{}", anchor));
  }

  bool alias(std::size_t at, std::string_view anchor) {
    if (key_next_) {
      fault(at, "an alias as a key is not read here");
      return false;
    }
    Anchors::Answer answer = anchors_.copy(anchor, document_->root, kDeepest - stack_.size());
    if (!answer.fault.empty() && !(answer.too_much && too_much_)) fault(at, std::move(answer.fault));
    too_much_ = too_much_ || answer.too_much;  // Told of once: of what doubles with each line every alias is too much.
    return place(at, std::move(answer.value).value_or(Value()));
  }

  void judge_tag(std::size_t at, std::string_view tag, std::string_view expected) {
    if (tag.empty() || tag == "!") return;
    if (tag.starts_with(kStandard) && tag.substr(kStandard.size()) == expected) return;
    fault(at, formatted("tag {} is not read here", detail::in_quotes(tag)));
  }

  template <typename ScalarData>
  bool scalar(std::size_t at, const ScalarData& data) {
    const std::string_view text(reinterpret_cast<const char*>(data.value), data.length);
    const std::string_view anchor = view(data.anchor);
    if (key_next_ && text == kMerge) return merge_key(at, data.style == YAML_PLAIN_SCALAR_STYLE && anchor.empty());
    detail::Scalar read = resolve(at, text, data);
    if (!read.refusal.empty()) fault(at, formatted("{} is {}", detail::in_quotes(text), read.refusal));
    if (!key_next_) {
      place(at, std::move(read.value));
      if (!anchor.empty()) {
        name(at, anchor);
        anchors_.close(anchor);
      }
      return true;
    }
    if (!anchor.empty()) fault(at, "an anchor on a key is not read here");
    // Devices are numbers in max_memory and device_map. Files begin with no such key.
    const bool number = read.value.is(Value::Kind::Integer) && stack_.size() > 1;
    if (read.refusal.empty() && !read.value.is(Value::Kind::String) && !number) {
      fault(at, formatted("key {} is {} to YAML", detail::in_quotes(text), describe(read.value.kind)),
            "put it in quotes");
    }
    stack_.back().value->members.push_back({std::string(text), at, {}});
    key_next_ = false;
    return true;
  }

  // In quotes it is a key like any other, and no file has it.
  bool merge_key(std::size_t at, bool plain) {
    if (!plain) fault(at, "the key \"<<\" in quotes is not read here");
    stack_.back().value->members.push_back({std::string(kMerge), at, {}});
    key_next_ = false;
    return true;
  }

  // By its tag if it has one, else by its form: a plain scalar may be anything, the other styles are strings.
  template <typename ScalarData>
  detail::Scalar resolve(std::size_t at, std::string_view text, const ScalarData& data) {
    detail::Scalar as_string;
    as_string.value.kind = Value::Kind::String;
    as_string.value.string = text;
    const std::string_view tag = view(data.tag);
    if (tag.empty() || tag == "!") {
      return tag.empty() && data.style == YAML_PLAIN_SCALAR_STYLE ? detail::resolve_plain(text) : as_string;
    }
    const std::string_view name = tag.starts_with(kStandard) ? tag.substr(kStandard.size()) : std::string_view();
    if (name == "str") return as_string;
    detail::Scalar read = detail::resolve_plain(text);
    const Value::Kind kind = read.value.kind;
    if (name == "float" && kind == Value::Kind::Integer) {
      read.value.kind = Value::Kind::Real;
      read.value.integer = 0;
    }
    const bool known = name == "null" || name == "bool" || name == "int" || name == "float";
    const bool meant = (name == "null" && kind == Value::Kind::Null) || (name == "bool" && kind == Value::Kind::Bool) ||
                       (name == "int" && (kind == Value::Kind::Integer || read.value.huge)) ||
                       (name == "float" && (kind == Value::Kind::Integer || kind == Value::Kind::Real));
    if (!known) {
      fault(at, formatted("tag {} is not read here", detail::in_quotes(tag)));
    } else if (!meant && read.refusal.empty()) {
      read.refusal = formatted("not what its tag !!{} says", name);
    }
    return read;
  }

  bool open(std::size_t at, Value::Kind kind, std::string_view anchor) {
    if (key_next_) {
      fault(at, "a key must be a string");
      return false;
    }
    if (stack_.size() == kDeepest) {
      fault(at, formatted("nested deeper than {} levels", kDeepest));
      return false;
    }
    Value made;
    made.kind = kind;
    place(at, std::move(made));
    if (!anchor.empty()) name(at, anchor);
    // Stable: its siblings' vector grows only after it is closed.
    stack_.push_back({placed_, std::string(anchor)});
    key_next_ = kind == Value::Kind::Object;
    return true;
  }

  bool place(std::size_t at, Value made) {
    made.offset = at;
    if (stack_.empty()) {
      placed_ = &(document_->root = std::move(made));
    } else if (stack_.back().value->is(Value::Kind::Array)) {
      placed_ = &stack_.back().value->items.emplace_back(std::move(made));
    } else if (key_next_) {
      return false;  // A container or an alias as a key; already refused.
    } else {
      placed_ = &(stack_.back().value->members.back().value = std::move(made));
      key_next_ = true;
    }
    return true;
  }

  void syntax_fault() {
    // A fault of the reader (a control character) has an offset in bytes; all others have marks.
    const bool reader = parser_->error == YAML_READER_ERROR;
    const std::size_t at = reader ? parser_->problem_offset : offsets_.of(parser_->problem_mark);
    const std::string_view problem = parser_->problem == nullptr ? "cannot be read" : parser_->problem;
    std::string message = formatted("not YAML: {}", problem);
    if (parser_->context != nullptr) {
      message += formatted(" ({}, line {})", parser_->context, parser_->context_mark.line + 1);
    }
    const bool tab = at < document_->text.size() && document_->text[at] == '\t';
    fault(at, std::move(message), tab ? "indent with blanks, not with tabs" : "");
  }

  Document* document_;
  Parser parser_;
  Offsets offsets_;
  Diagnostics diagnostics_;
  std::vector<detail::Duplicate> duplicates_;
  struct Open {
    Value* value;
    std::string anchor;
  };
  std::vector<Open> stack_;  // Open containers.
  Anchors anchors_;
  bool too_much_ = false;
  Value* placed_ = nullptr;  // The value placed last.
  bool key_next_ = false;    // The innermost container is an object and waits for a key.
  int documents_ = 0;
};

}  // namespace

Document parse_yaml(std::string path, std::string text) {
  if (text.size() > kLargestYaml) {
    throw Refusal(std::move(path), formatted("larger than {} MiB, the most for YAML", kLargestYaml >> 20));
  }
  Document document{std::move(path), std::move(text), {}};
  detail::refuse_bad_utf8(document);
  Builder(document).run();
  return document;
}

}  // namespace dsplan
