#include "io/measured_file.h"

#include "core/format.h"

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
