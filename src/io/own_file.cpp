#include "io/own_file.h"

#include "core/format.h"

namespace dsplan {

std::string read_head(ObjectReader& reader, std::string_view kind) {
  if (!reader.has("dsplan")) {
    reader.fault("dsplan", formatted("\"dsplan\" is missing: our own files begin with \"dsplan\": {}", kFileVersion));
  } else if (const auto version = reader.integer("dsplan", 1, INT64_MAX); version && *version != kFileVersion) {
    reader.fault("dsplan", formatted("file version {} is not known", *version),
                 formatted("this dsplan reads version {}", kFileVersion));
  }
  const std::optional<std::string> read = reader.string("kind");
  if (!reader.has("kind") || (read && *read != kind)) {
    reader.fault("kind", formatted("\"kind\" must be \"{}\"", kind));
  }
  const std::optional<std::string> source = reader.string("source");
  if (!reader.has("source") || (source && source->empty())) {
    reader.fault("source", "\"source\" is missing: say where these figures are from");
  }
  return source.value_or("");
}

void describe_head(Fields& fields, std::string_view kind, std::string& source) {
  if (ObjectReader* reader = fields.reader()) {
    source = read_head(*reader, kind);
    reader->diagnostics().throw_if_any();
    return;
  }
  std::int64_t version = kFileVersion;
  fields("dsplan", version);
  fields.constant("kind", kind);
  fields("source", source);
}

bool is_kind(const Document& document, std::string_view kind) {
  if (!document.root.is(Value::Kind::Object) || document.root.find("dsplan") == nullptr) return false;
  const Value* said = document.root.find("kind");
  return said != nullptr && said->is(Value::Kind::String) && said->string == kind;
}

void expect_object(const Document& document, std::string_view what) {
  if (document.root.is(Value::Kind::Object)) return;
  throw Refusal({document.at(document.root.offset, formatted("{} must be an object", what),
                             formatted("found {}", describe(document.root.kind)))});
}

}  // namespace dsplan

namespace dsplan::detail {

void need(ObjectReader& reader, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    reader.accept(key);
    if (reader.value().find(key) == nullptr) reader.fault(key, formatted("\"{}\" is missing", key));
  }
}

std::optional<Bytes> bytes(ObjectReader& reader, std::string_view key) {
  const std::optional<std::int64_t> read = reader.integer(key, 0, INT64_MAX);
  return read ? std::optional(Bytes(*read)) : std::nullopt;
}

void describe_environment(Fields& fields, ReceiptEnvironment& environment) {
  fields("gpu", environment.gpu);
  fields("capacity_bytes", environment.capacity);
  fields("driver", environment.driver);
  fields("cuda", environment.cuda);
  fields("python", environment.python);
  fields("torch", environment.torch);
  fields("transformers", environment.transformers);
  fields("deepspeed", environment.deepspeed);
  fields("peft", environment.peft);
  fields("allocator_conf", environment.allocator_conf);
  fields("limit_bytes", environment.limit);
  fields("recorded", environment.recorded);
}

void describe_measured_head(Fields& fields, std::string_view schema, std::string& source,
                            ReceiptEnvironment& environment) {
  fields.constant("schema", schema);
  fields("source", source);
  fields.object("environment", {"an environment"}, [&] { describe_environment(fields, environment); });
}

bool is_object(const Document& document, const Value& item, std::string_view what, Diagnostics& faults) {
  if (item.is(Value::Kind::Object)) return true;
  faults.add(document.at(item.offset, formatted("{} must be an object, not {}", what, describe(item.kind))));
  return false;
}

}  // namespace dsplan::detail
