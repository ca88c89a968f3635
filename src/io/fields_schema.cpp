// Descriptions as JSON Schema.
#include "io/fields.h"
#include "io/json_text.h"

namespace dsplan {
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
