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

MeasuredHead read_measured_head(ObjectReader& reader, std::string_view schema) {
  need(reader, {"schema", "source", "environment"});
  const std::optional<std::string> said = reader.string("schema");
  if (said && *said != schema) reader.fault("schema", formatted("\"schema\" must be \"{}\"", schema));
  MeasuredHead head;
  head.source = reader.string("source").value_or("");
  if (const Value* environment = reader.object("environment")) {
    read_fields(reader.document(), *environment, "an environment", reader.diagnostics(),
                [&](Fields& fields) { describe_environment(fields, head.environment); });
  }
  return head;
}

bool is_object(const Document& document, const Value& item, std::string_view what, Diagnostics& faults) {
  if (item.is(Value::Kind::Object)) return true;
  faults.add(document.at(item.offset, formatted("{} must be an object, not {}", what, describe(item.kind))));
  return false;
}

}  // namespace dsplan::detail
