#include "io/json_parse.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/format.h"
#include "io/json_fault.h"
#include "io/text.h"

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
