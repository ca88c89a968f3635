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

ReceiptEnvironment read_environment(const Document& document, const Value& value, Diagnostics& faults) {
  ObjectReader reader(document, value, faults);
  need(reader, {"gpu", "capacity_bytes", "driver", "cuda", "python", "torch", "transformers", "deepspeed", "peft",
                "allocator_conf", "limit_bytes", "recorded"});
  ReceiptEnvironment into;
  into.gpu = reader.string("gpu");
  into.capacity = bytes(reader, "capacity_bytes");
  into.driver = reader.string("driver");
  into.cuda = reader.string("cuda");
  into.python = reader.string("python");
  into.torch = reader.string("torch");
  into.transformers = reader.string("transformers");
  into.deepspeed = reader.string("deepspeed");
  into.peft = reader.string("peft");
  into.allocator_conf = reader.string("allocator_conf").value_or("");
  into.limit = bytes(reader, "limit_bytes");
  into.recorded = reader.string("recorded").value_or("");
  reader.refuse_unread("an environment");
  return into;
}

MeasuredHead read_measured_head(ObjectReader& reader, std::string_view schema) {
  need(reader, {"schema", "source", "environment"});
  const std::optional<std::string> said = reader.string("schema");
  if (said && *said != schema) reader.fault("schema", formatted("\"schema\" must be \"{}\"", schema));
  MeasuredHead head;
  head.source = reader.string("source").value_or("");
  if (const Value* environment = reader.object("environment")) {
    head.environment = read_environment(reader.document(), *environment, reader.diagnostics());
  }
  return head;
}

bool is_object(const Document& document, const Value& item, std::string_view what, Diagnostics& faults) {
  if (item.is(Value::Kind::Object)) return true;
  faults.add(document.at(item.offset, formatted("{} must be an object, not {}", what, describe(item.kind))));
  return false;
}

}  // namespace dsplan::detail
