// The three visitors of a description: one reads, one writes, one makes the schema; and what a description says to
// each.

#include "io/fields.h"

#include <algorithm>
#include <deque>

#include "core/format.h"
#include "core/receipt.h"
#include "io/json_text.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

class FieldReader : public FieldVisitor {
 public:
  FieldReader(const Document& document, const Value& object, Diagnostics& faults)
      : document_(document), faults_(faults) {
    objects_.emplace_back(document_, object, faults_);
  }

  [[nodiscard]] ObjectReader* reader() override { return &objects_.back(); }

  void scalar(const Key& key, FieldValue& scalar) override {
    Value read;
    const bool there = present(key, scalar.nullable);
    if (there && !scalar.derived) take(key, scalar, read);
    scalar.value = std::move(read);
  }

  const Value* document(const Key& key, const Value*) override {
    return present(key, true) ? reader()->object(key.name) : nullptr;
  }

  void other(const Key& key, const Value&, const Json&) override { (void)present(key, true); }

  bool open_object(const Key& key, const Nested& part) override {
    if (!present(key, part.nullable)) return false;
    const Value* object = reader()->object(key.name);
    if (object == nullptr) return false;
    objects_.emplace_back(document_, *object, faults_);
    return true;
  }

  void close_object(std::string_view what) override {
    reader()->refuse_unread(what);
    objects_.pop_back();
  }

  std::optional<std::size_t> open_list(const Key& key, const Nested& part, std::size_t) override {
    if (!present(key, part.nullable)) return std::nullopt;
    const Value* list = reader()->array(key.name);
    if (list == nullptr) return std::nullopt;
    lists_.push_back({list, 0});
    return list->items.size();
  }

  bool open_item(const Nested& part) override {
    const Value& value = next();
    if (!detail::is_object(document_, value, part.what, faults_)) return false;
    objects_.emplace_back(document_, value, faults_);
    return true;
  }

  void item(std::string& text, std::string_view what) override {
    const Value& value = next();
    if (!value.is(Value::Kind::String)) {
      reader()->fault(value, formatted("{} must be a string, not {}", what, describe(value.kind)));
    }
    text = value.string;
  }

  void close_list() override { lists_.pop_back(); }

 private:
  struct OpenList {
    const Value* list;
    std::size_t next;
  };

  const Value& next() {
    OpenList& list = lists_.back();
    return list.list->items[list.next++];
  }

  // Whether a value stands there. Marks the key as known.
  bool present(const Key& key, bool nullable) {
    if (reader()->has(key.name)) return true;
    if (key.always && reader()->value().find(key.name) == nullptr) {
      reader()->fault(key.name, formatted("\"{}\" is missing", key.name));
    } else if (key.always && !nullable) {
      reader()->fault(key.name, formatted("\"{}\" must not be null", key.name));
    }
    return false;
  }

  void take(const Key& key, const FieldValue& scalar, Value& into) {
    ObjectReader& object = *reader();
    const auto keep = [&](auto read, auto Value::*member) {
      if (!read) return;
      into.kind = scalar.type;
      into.*member = *read;
    };
    switch (scalar.type) {
      case Value::Kind::Bool: return keep(object.boolean(key.name), &Value::boolean);
      case Value::Kind::Integer: return keep(object.integer(key.name, scalar.least, scalar.most), &Value::integer);
      case Value::Kind::Real: {
        const std::optional<double> read = object.number(key.name);
        if (read && *read < 0) object.fault(key.name, formatted("\"{}\" must not be negative", key.name));
        return keep(read, &Value::real);
      }
      default: break;
    }
    std::optional<std::string> read = object.string(key.name);
    if (read && !scalar.words.empty() &&
        std::find(scalar.words.begin(), scalar.words.end(), *read) == scalar.words.end()) {
      object.fault(key.name,
                   formatted("\"{}\" must be one of {}, not \"{}\"", key.name, joined(scalar.words, ", "), *read),
                   did_you_mean(nearest(*read, scalar.words)));
      read.reset();
    }
    keep(std::move(read), &Value::string);
  }

  const Document& document_;
  Diagnostics& faults_;
  std::deque<ObjectReader> objects_;
  std::vector<OpenList> lists_;
};

}  // namespace

void read_fields(const Document& document, const Value& object, std::string_view what, Diagnostics& faults,
                 const Description& description) {
  FieldReader reader(document, object, faults);
  Fields fields(reader);
  description(fields);
  reader.reader()->refuse_unread(what);
}

void read_fields(const Document& document, std::string_view what, const Description& description) {
  Diagnostics faults;
  read_fields(document, document.root, what, faults, description);
  faults.throw_if_any();
}

void Fields::text_or_null(const Key& key, std::string& text) {
  std::optional<std::string> said;
  if (!text.empty()) said = text;
  (*this)(key, said);
  if (reader() != nullptr) text = said.value_or("");
}

void Fields::word(const Key& key, std::string& text, std::vector<std::string_view> words) {
  FieldValue scalar;
  scalar.type = Value::Kind::String;
  scalar.words = std::move(words);
  detail::AsScalar<std::string>::put(text, scalar.value);
  visitor_.scalar(key, scalar);
  if (reader() != nullptr) text = scalar.value.string;
}

void Fields::document(const Key& key, std::optional<Document>& part) {
  const Value* read = visitor_.document(key, part ? &part->root : nullptr);
  if (reader() == nullptr) return;
  part.reset();
  if (read != nullptr) part = Document{reader()->document().path, reader()->document().text, *read};
}

void Fields::document(const Key& key, Document& part, std::string_view whole) {
  const Value* read = visitor_.document(key, &part.root);
  ObjectReader* object = reader();
  if (object == nullptr) return;
  if (read != nullptr) {
    part = {object->document().path, object->document().text, *read};
  } else if (object->value().find(key.name) != nullptr && !object->has(key.name)) {
    object->fault(key.name, formatted("\"{}\" must {}{}", key.name, whole.empty() ? "not be null" : "be ", whole));
  }
}

void Fields::other(const Key& key, const Json& part, const Json& schema) { visitor_.other(key, part.value(), schema); }

void Fields::constant(const Key& key, std::string_view word) {
  std::string text(word);
  this->word(key, text, {word});
}

void Fields::texts(const Key& key, std::vector<std::string>& texts, std::string_view what) {
  const std::optional<std::size_t> size = visitor_.open_list(key, {what}, texts.size());
  if (!size) return;
  if (*size != texts.size()) texts.resize(*size);
  for (std::string& text : texts) visitor_.item(text, what);
  visitor_.close_list();
}

// Descriptions as text, and the nulls that such text has.

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
  void other(const Key& key, const Value& part, const Json&) override {
    if (!key.written) return;
    text_.key(key.name);
    text_.value(part);
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
  void other(const Key& key, const Value& part, const Json&) override {
    if (key.written && part.is(Value::Kind::Null)) add(key);
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

// Descriptions as JSON Schema.

namespace {

std::string_view type_name(Value::Kind type) {
  switch (type) {
    case Value::Kind::Bool: return "boolean";
    case Value::Kind::Integer: return "integer";
    case Value::Kind::Real: return "number";
    case Value::Kind::String: return "string";
    case Value::Kind::Array: return "array";
    case Value::Kind::Object: return "object";
    case Value::Kind::Null: break;
  }
  return "null";
}

Json type_of(Value::Kind type, bool nullable) {
  return nullable ? Json::array({type_name(type), "null"}) : Json(type_name(type));
}

Json type_of(const FieldValue& scalar) {
  if (!scalar.words.empty() && !scalar.open) {
    Json words = Json::array();
    for (const std::string_view word : scalar.words) words.push_back(word);
    return {{"enum", std::move(words)}};
  }
  Json type = {{"type", type_of(scalar.type, scalar.nullable)}};
  const bool number = scalar.type == Value::Kind::Integer || scalar.type == Value::Kind::Real;
  if (number && scalar.least == 0) type.set("minimum", 0);
  return type;
}

class SchemaMaker : public FieldVisitor {
 public:
  SchemaMaker() { objects_.emplace_back(); }

  void scalar(const Key& key, FieldValue& scalar) override { add(key, type_of(scalar)); }
  const Value* document(const Key& key, const Value*) override {
    add(key, {{"type", type_of(Value::Kind::Object, true)}});
    return nullptr;
  }
  void other(const Key& key, const Value&, const Json& schema) override { add(key, schema); }
  bool open_object(const Key& key, const Nested& part) override {
    open_.push_back({key, part.nullable, false});
    objects_.emplace_back();
    return true;
  }
  void close_object(std::string_view) override {
    Json made = take(open_.back().nullable && !open_.back().list);
    if (open_.back().list) {
      items_ = std::move(made);
    } else {
      const Opened closed = open_.back();
      open_.pop_back();
      add(closed.key, std::move(made));
    }
  }
  std::optional<std::size_t> open_list(const Key& key, const Nested& part, std::size_t) override {
    open_.push_back({key, part.nullable, true});
    return 1;
  }
  bool open_item(const Nested&) override {
    objects_.emplace_back();
    return true;
  }
  void item(std::string&, std::string_view) override { items_ = {{"type", "string"}}; }
  void close_list() override {
    const Opened closed = open_.back();
    open_.pop_back();
    add(closed.key, {{"type", type_of(Value::Kind::Array, closed.nullable)}, {"items", std::move(items_)}});
  }

  // The members of the object that is open, as a schema.
  Json take(bool nullable) {
    Members members = std::move(objects_.back());
    objects_.pop_back();
    members.properties.update(std::move(members.sometimes));
    return {{"type", type_of(Value::Kind::Object, nullable)},
            {"additionalProperties", false},
            {"required", std::move(members.required)},
            {"properties", std::move(members.properties)}};
  }

 private:
  struct Opened {
    Key key;
    bool nullable;
    bool list;
  };
  struct Members {
    Json required = Json::array();
    Json properties = Json::object();
    Json sometimes = Json::object();  // What only some files have stands last.
  };

  void add(const Key& key, Json type) {
    Members& members = objects_.back();
    (key.always ? members.properties : members.sometimes).set(key.name, std::move(type));
    if (key.always) members.required.push_back(key.name);
  }

  std::vector<Members> objects_;  // Those that are open.
  std::vector<Opened> open_;      // Objects and lists, by the keys that they stand under.
  Json items_;                    // Of the list that is open, one of them.
};

}  // namespace

std::string schema_of(std::string_view title, std::string_view text, const Description& description) {
  SchemaMaker maker;
  Fields fields(maker);
  description(fields);
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", title}, {"description", text}};
  schema.update(maker.take(false));
  return json_text(schema, 2) + "\n";
}

}  // namespace dsplan
