// Descriptions as text, and the nulls that such text has.
#include <algorithm>

#include "core/format.h"
#include "core/receipt.h"
#include "io/fields.h"
#include "io/json_text.h"

namespace dsplan {
namespace {

// A whole number that was written with a point stays one, as it was read.
std::string kept_scalar(const Value& value) {
  std::string text = canonical_json(value);
  const bool whole = value.is(Value::Kind::Real) && text.find_first_of(".eE") == std::string::npos;
  return whole && !value.huge ? text + ".0" : text;
}

// A user's own document: one line per member; lists without objects and lists in them stand on one line.
void add_kept(const Value& value, JsonText& text) {
  const bool object = value.is(Value::Kind::Object);
  const bool flat = std::none_of(value.items.begin(), value.items.end(), [](const Value& item) {
    return item.is(Value::Kind::Object) || item.is(Value::Kind::Array);
  });
  if (!object && !value.is(Value::Kind::Array)) return text.raw(kept_scalar(value));
  if (!object && flat) return text.raw(canonical_json(value));
  text.open(object ? '{' : '[');
  for (const Member& member : value.members) {
    text.key(member.key);
    add_kept(member.value, text);
  }
  for (const Value& item : value.items) add_kept(item, text);
  text.close();
}

class FieldWriter : public FieldVisitor {
 public:
  explicit FieldWriter(Layout layout) : layout_(layout), text_(layout.indent) {}

  void scalar(const Key& key, FieldValue& scalar) override {
    if (!key.written) return;
    text_.key(key.name);
    if (layout_.kept && scalar.value.is(Value::Kind::Real)) return text_.raw(canonical_json(scalar.value));
    text_.value(scalar.value);
  }
  const Value* document(const Key& key, const Value* part) override {
    text_.key(key.name);
    if (part == nullptr) {
      text_.null();
    } else {
      layout_.kept ? add_kept(*part, text_) : text_.value(*part);
    }
    return nullptr;
  }
  bool open_object(const Key& key, const Nested& part) override { return key.written && open(key, part, '{'); }
  void close_object(std::string_view) override { text_.close(); }
  std::optional<std::size_t> open_list(const Key& key, const Nested& part, std::size_t size) override {
    word_ = {};
    if (!key.written || !open(key, {part.what, FieldLine::Own, part.nullable, part.there}, '[')) return std::nullopt;
    return size;
  }
  bool open_item(const Nested& part) override {
    text_.open('{', part.line == FieldLine::Same && layout_.kept);
    return true;
  }
  void item(std::string& text, std::string_view) override {
    // In a kept file an option and its value stand on one line.
    const bool value = layout_.kept && word_.size() > 2 && word_.starts_with("--") && !text.starts_with("--");
    value ? text_.string_beside(text) : text_.string(text);
    word_ = text;
  }
  void close_list() override { text_.close(); }

  [[nodiscard]] std::string take() && { return std::move(text_).take(); }
  JsonText& text() { return text_; }

 private:
  bool open(const Key& key, const Nested& part, char bracket) {
    text_.key(key.name);
    if (part.nullable && !part.there) {
      text_.null();
      return false;
    }
    text_.open(bracket, part.line == FieldLine::Same && layout_.kept);
    return true;
  }

  Layout layout_;
  JsonText text_;
  std::string word_;  // Of a list of words, the one before.
};

// Lists are most of a prediction, and nulls inside of them are not looked for.
class NullFinder : public FieldVisitor {
 public:
  void scalar(const Key& key, FieldValue& scalar) override {
    if (key.written && scalar.value.is(Value::Kind::Null)) add(key);
  }
  const Value* document(const Key& key, const Value* part) override {
    if (part == nullptr) add(key);
    return nullptr;
  }
  bool open_object(const Key& key, const Nested& part) override {
    if (!key.written) return false;
    if (part.nullable && !part.there) {
      add(key);
      return false;
    }
    path_.push_back(key.name);
    return true;
  }
  void close_object(std::string_view) override { path_.pop_back(); }
  std::optional<std::size_t> open_list(const Key& key, const Nested& part, std::size_t) override {
    if (key.written && part.nullable && !part.there) add(key);
    return std::nullopt;
  }
  bool open_item(const Nested&) override { return false; }
  void item(std::string&, std::string_view) override {}
  void close_list() override {}

  std::vector<std::string> found;

 private:
  void add(const Key& key) {
    path_.push_back(key.name);
    found.push_back(formatted("{}", joined(path_, ".")));
    path_.pop_back();
  }

  std::vector<std::string_view> path_;
};

}  // namespace

std::string written(const Description& description, Layout layout) {
  FieldWriter writer(layout);
  writer.text().open('{');
  Fields fields(writer);
  description(fields);
  writer.text().close();
  return std::move(writer).take() + "\n";
}

std::vector<std::string> nulls_of(const Description& description) {
  NullFinder finder;
  Fields fields(finder);
  description(fields);
  return finder.found;
}

}  // namespace dsplan
