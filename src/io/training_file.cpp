#include "io/training_file.h"

#include <algorithm>
#include <array>

#include "core/format.h"
#include "io/json_text.h"
#include "io/own_file.h"
#include "io/place.h"

namespace dsplan {
namespace {

// Reads keys of one object into settings that know their place.
class SettingReader {
 public:
  explicit SettingReader(ObjectReader& reader) : reader_(reader) {}

  void count(std::string_view key, Setting<std::int64_t>& setting, std::int64_t least = 1) {
    if (const auto read = reader_.integer(key, least, INT64_MAX)) setting = {*read, place(key)};
  }
  void number(std::string_view key, Setting<double>& setting) {
    const auto read = reader_.number(key);
    if (read && *read < 0) {
      reader_.fault(key, formatted("\"{}\" must not be negative", key));
    } else if (read) {
      setting = {*read, place(key)};
    }
  }
  void flag(std::string_view key, Setting<bool>& setting) {
    if (const auto read = reader_.boolean(key)) setting = {*read, place(key)};
  }
  void text(std::string_view key, Setting<std::string>& setting) {
    if (const auto read = reader_.string(key)) setting = {*read, place(key)};
  }
  void choice(std::string_view key, Setting<std::string>& setting, std::initializer_list<std::string_view> choices) {
    if (const auto read = reader_.choice(key, choices)) setting = {*read, place(key)};
  }
  void bytes(std::string_view key, Setting<Bytes>& setting);
  void texts(std::string_view key, Setting<std::vector<std::string>>& setting);
  // A number or a text, kept as text.
  void number_or_text(std::string_view key, Setting<std::string>& setting);
  // [512, 1024] or "512,1024", kept as the latter.
  void numbers(std::string_view key, Setting<std::string>& setting);
  [[nodiscard]] Place place(std::string_view key) {
    const Value* value = reader_.value().find(key);
    return place_at(reader_.document(), value == nullptr ? reader_.value().offset : value->offset);
  }

 private:
  ObjectReader& reader_;
};

void SettingReader::bytes(std::string_view key, Setting<Bytes>& setting) {
  const Value* value = reader_.find(key);
  if (value == nullptr) return;
  if (value->is(Value::Kind::String)) {
    if (const std::optional<Bytes> read = parse_bytes(value->string)) {
      setting = {*read, place(key)};
    } else {
      reader_.fault(*value, formatted("\"{}\" is not a size", value->string), "write 70GiB, 512MiB or plain bytes");
    }
  } else if (const auto read = reader_.integer(key, 0, INT64_MAX)) {
    setting = {Bytes(*read), place(key)};
  }
}

void SettingReader::texts(std::string_view key, Setting<std::vector<std::string>>& setting) {
  const Value* array = reader_.array(key);
  if (array == nullptr) return;
  std::vector<std::string> read;
  for (const Value& item : array->items) {
    if (item.is(Value::Kind::String)) {
      read.push_back(item.string);
    } else {
      reader_.fault(item, formatted("\"{}\" holds strings, not {}", key, describe(item.kind)));
    }
  }
  setting = {std::move(read), place(key)};
}

void SettingReader::numbers(std::string_view key, Setting<std::string>& setting) {
  const Value* value = reader_.find(key);
  if (value == nullptr) return;
  if (value->is(Value::Kind::String)) return text(key, setting);
  const Value* array = reader_.array(key);
  if (array == nullptr) return;
  std::vector<std::int64_t> read;
  for (const Value& item : array->items) {
    if (item.is(Value::Kind::Integer)) {
      read.push_back(item.integer);
    } else {
      reader_.fault(item, formatted("\"{}\" holds whole numbers, not {}", key, describe(item.kind)));
    }
  }
  setting = {formatted("{}", joined(read, ",")), place(key)};
}

void SettingReader::number_or_text(std::string_view key, Setting<std::string>& setting) {
  const Value* value = reader_.find(key);
  if (value == nullptr) return;
  if (value->is(Value::Kind::Integer)) {
    setting = {std::to_string(value->integer), place(key)};
  } else {
    text(key, setting);
  }
}

// "optimizer": "adamw:fused" or {"name": "adamw", "implementation": "fused", "momentum": 0.9, "weight_decay": 0.1}.
void read_optimizer(ObjectReader& parent, Request& request) {
  const Value* value = parent.find("optimizer");
  if (value == nullptr) return;
  if (value->is(Value::Kind::String)) {
    request.optimizer = {value->string, place_at(parent.document(), value->offset)};
    return;
  }
  if (parent.object("optimizer") == nullptr) return;
  ObjectReader reader(parent.document(), *value, parent.diagnostics());
  SettingReader settings(reader);
  settings.text("name", request.optimizer);
  settings.choice("implementation", request.implementation, {"fused", "foreach", "for-loop"});
  settings.number("momentum", request.momentum);
  settings.number("weight_decay", request.weight_decay);
  if (!reader.has("name")) reader.fault("name", "\"name\" is missing: which optimizer?");
  reader.refuse_unread("optimizer");
}

// "lora": "r=8,targets=q_proj" or {"r": 8, "targets": ["q_proj"], "dtype": "fp32", "dropout": 0.05, "alpha": 16};
// kept in the words of --lora.
void read_lora(ObjectReader& parent, Request& request) {
  const Value* value = parent.find("lora");
  if (value == nullptr) return;
  const Place place = place_at(parent.document(), value->offset);
  if (value->is(Value::Kind::String)) {
    request.lora = {value->string, place};
    return;
  }
  if (parent.object("lora") == nullptr) return;
  ObjectReader reader(parent.document(), *value, parent.diagnostics());
  SettingReader settings(reader);
  Setting<std::int64_t> r;
  Setting<std::vector<std::string>> targets;
  Setting<std::string> dtype;
  Setting<double> dropout;
  Setting<double> alpha;
  settings.count("r", r);
  const Value* one = reader.find("targets");
  if (one != nullptr && one->is(Value::Kind::String)) {
    targets = {{one->string}, place};
  } else {
    settings.texts("targets", targets);
  }
  settings.choice("dtype", dtype, {"fp32", "bf16", "fp16", "model"});
  settings.number("dropout", dropout);
  settings.number("alpha", alpha);
  reader.refuse_unread("lora");
  std::vector<std::string> words;
  if (r.given()) words.push_back(formatted("r={}", *r));
  if (targets.given()) words.push_back(formatted("targets={}", joined(*targets, "+")));
  if (dtype.given()) words.push_back(formatted("dtype={}", *dtype));
  if (dropout.given()) words.push_back(formatted("dropout={}", *dropout));
  if (alpha.given()) words.push_back(formatted("alpha={}", *alpha));
  request.lora = {formatted("{}", joined(words, ",")), place};
}

void read_run(SettingReader& settings, Request& request) {
  settings.choice("runtime", request.runtime, {"pytorch", "deepspeed"});
  settings.count("zero_stage", request.zero_stage, 0);
  settings.count("gpus", request.gpus);
  settings.count("gpus_per_node", request.gpus_per_node);
  settings.count("tp", request.tp);
  settings.count("sp", request.sp);
  settings.count("ep", request.ep);
  settings.count("micro_batch", request.micro_batch);
  settings.count("grad_accum", request.grad_accum);
  settings.count("seq", request.seq);
  settings.numbers("seq_list", request.seq_list);
  settings.choice("dtype", request.dtype, {"bf16", "fp16", "fp32"});
  settings.choice("autocast", request.autocast, {"none", "bf16", "fp16"});
  settings.choice("mixed_precision", request.mixed_precision, {"bf16", "fp16"});
  settings.choice("param_groups", request.param_groups, {"single", "decay"});
  settings.choice("model_init", request.model_init, {"zero_init", "device", "host"});
  settings.flag("zero_grad_set_to_none", request.zero_grad_set_to_none);
  settings.number("max_grad_norm", request.max_grad_norm);
  settings.texts("freeze", request.freeze);
  settings.text("loss", request.loss);
  settings.text("attention", request.attention);
  settings.text("checkpoint", request.checkpoint);
  settings.choice("checkpoint_impl", request.checkpoint_impl, {"reentrant", "non_reentrant", "deepspeed"});
  settings.flag("preserve_rng_state", request.preserve_rng_state);
  settings.choice("level", request.level, {"kernel", "dispatch"});
  settings.choice("loop", request.loop, {"trainer", "minimal"});
  settings.text("routing", request.routing);
}

void read_machine(SettingReader& settings, Request& request) {
  settings.text("deepspeed", request.deepspeed);
  settings.text("hardware", request.hardware);
  settings.text("cluster", request.cluster);
  settings.text("calibration", request.calibration);
  settings.text("env", request.env);
  settings.text("allocator_conf", request.alloc_conf);
  settings.choice("stream_frees", request.stream_frees, {"at-sync", "immediate"});
  settings.choice("placement", request.placement, {"caching", "planned"});
  settings.text("deepspeed_version", request.deepspeed_version);
  settings.text("torch_version", request.torch_version);
  settings.text("transformers_version", request.transformers_version);
  settings.bytes("host_memory", request.host_memory);
  settings.bytes("nvme_memory", request.nvme_memory);
  settings.bytes("capacity", request.capacity);
  settings.bytes("reserve", request.reserve);
}

void read_report(SettingReader& settings, Request& request) {
  settings.number_or_text("rank", request.rank);
  settings.text("phase", request.phase);
  settings.flag("strict", request.strict);
  settings.texts("set", request.set);
  settings.text("sweep", request.sweep);
  settings.choice("format", request.format, {"table", "json", "csv", "md"});
  settings.text("out", request.out);
}

constexpr std::string_view kKeep = "keep:";
constexpr const char* kModesHint =
    "modes are \"recompute\", \"store\", \"reentrant\", \"non_reentrant\", \"keep:OP+OP\"";

// The operators of "keep:OP+OP".
bool read_kept(ObjectReader& reader, const Value& mode, std::vector<Op>& kept) {
  std::string_view rest = std::string_view(mode.string).substr(kKeep.size());
  while (true) {
    const std::size_t plus = rest.find('+');
    const std::optional<Op> op = operator_named(rest.substr(0, plus));
    if (!op) {
      std::vector<std::string_view> names;
      for (std::size_t at = 0; at < kOps; ++at) names.emplace_back(name(static_cast<Op>(at)));
      reader.fault(mode, formatted("no operator \"{}\"", rest.substr(0, plus)),
                   did_you_mean(nearest(rest.substr(0, plus), names)));
      return false;
    }
    kept.push_back(*op);
    if (plus == std::string_view::npos) return true;
    rest.remove_prefix(plus + 1);
  }
}

// One [first, last, mode].
std::optional<CheckpointEntry> read_entry(ObjectReader& reader, const Value& item) {
  const bool shaped = item.is(Value::Kind::Array) && item.items.size() == 3 && item.items[0].is(Value::Kind::Integer) &&
                      item.items[1].is(Value::Kind::Integer) && item.items[2].is(Value::Kind::String);
  if (!shaped) {
    reader.fault(item, "a group is [first layer, last layer, mode]", kModesHint);
    return std::nullopt;
  }
  const std::string& mode = item.items[2].string;
  constexpr std::array<std::string_view, 4> kModes = {"recompute", "store", "reentrant", "non_reentrant"};
  const bool keeps = mode.starts_with(kKeep);
  if (!keeps && std::find(kModes.begin(), kModes.end(), mode) == kModes.end()) {
    reader.fault(item.items[2], formatted("no mode \"{}\"", mode), kModesHint);
    return std::nullopt;
  }
  std::optional<CheckpointKind> kind;
  if (keeps) kind = CheckpointKind::NonReentrant;
  if (mode == "reentrant") kind = CheckpointKind::Reentrant;
  if (mode == "non_reentrant") kind = CheckpointKind::NonReentrant;
  CheckpointEntry entry{item.items[0].integer,
                        item.items[1].integer,
                        mode != "store",
                        kind,
                        place_at(reader.document(), item.offset),
                        {}};
  if (keeps && !read_kept(reader, item.items[2], entry.kept)) return std::nullopt;
  if (entry.first < 0 || entry.last < entry.first) {
    reader.fault(item, formatted("layers {} to {} are no group", entry.first, entry.last));
    return std::nullopt;
  }
  return entry;
}

}  // namespace

Request read_training_file(const Document& document) {
  expect_object(document, "a training file");
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  (void)read_head(reader, "training");
  Request request;
  request.has_training_file = true;
  SettingReader settings(reader);
  read_run(settings, request);
  read_machine(settings, request);
  read_report(settings, request);
  read_optimizer(reader, request);
  read_lora(reader, request);
  reader.refuse_unread("the training file");
  diagnostics.throw_if_any();
  return request;
}

std::vector<CheckpointEntry> read_checkpoint_file(const Document& document) {
  expect_object(document, "a checkpointing file");
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  (void)read_head(reader, "checkpoint");
  std::vector<CheckpointEntry> entries;
  if (!reader.has("groups")) reader.fault("groups", "\"groups\" is missing");
  if (const Value* groups = reader.array("groups")) {
    for (const Value& item : groups->items) {
      const std::optional<CheckpointEntry> entry = read_entry(reader, item);
      if (!entry) continue;
      if (!entries.empty() && entry->first <= entries.back().last) {
        reader.fault(
            item, formatted("layer {} is not above layer {} of the group before", entry->first, entries.back().last));
      }
      entries.push_back(*entry);
    }
  }
  reader.refuse_unread("the checkpointing file");
  diagnostics.throw_if_any();
  return entries;
}

std::string checkpoint_file(const std::vector<CheckpointEntry>& entries, const std::string& source) {
  std::string text =
      formatted("{{\"dsplan\": 1, \"kind\": \"checkpoint\", \"source\": {},\n \"groups\": [", json_text(Json(source)));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const CheckpointEntry& entry = entries[i];
    std::string mode = entry.kind == CheckpointKind::Reentrant ? "reentrant" : "non_reentrant";
    if (!entry.kind) mode = "recompute";
    if (!entry.recompute) mode = "store";
    for (std::size_t k = 0; k < entry.kept.size(); ++k) {
      mode = (k == 0 ? std::string(kKeep) : mode + "+") + name(entry.kept[k]);
    }
    text += formatted("{}\n  [{}, {}, \"{}\"]", i == 0 ? "" : ",", entry.first, entry.last, mode);
  }
  return text + "]}\n";
}

}  // namespace dsplan
