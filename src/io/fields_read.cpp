// Descriptions as readers, and what the words of a description say to every visitor.
#include <algorithm>
#include <deque>

#include "core/format.h"
#include "io/fields.h"
#include "io/measured_file.h"

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

}  // namespace dsplan
