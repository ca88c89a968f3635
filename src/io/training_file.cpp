#include "io/training_file.h"

#include <algorithm>
#include <array>

#include "core/format.h"
#include "core/settings.h"
#include "io/json_text.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

// Reads keys of one object into settings that know their place.
class SettingReader {
 public:
  explicit SettingReader(ObjectReader& reader) : reader_(reader) {}

  // What the table says of a key (core/settings.h). `key` is its name in this object.
  void take(const RequestColumn& column, std::string_view key, Request& request);
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
  // `choices`: "bf16|fp16"; empty: any text.
  void text(std::string_view key, Setting<std::string>& setting, std::string_view choices = {});
  void bytes(std::string_view key, Setting<Bytes>& setting);
  void texts(std::string_view key, Setting<std::vector<std::string>>& setting);

 private:
  // A number or a text, kept as text.
  void number_or_text(std::string_view key, Setting<std::string>& setting);
  // [512, 1024] or "512,1024", kept as the latter.
  void numbers(std::string_view key, Setting<std::string>& setting);
  [[nodiscard]] Place place(std::string_view key) {
    const Value* value = reader_.value().find(key);
    return place_at(reader_.document(), value == nullptr ? reader_.value().offset : value->offset);
  }

  ObjectReader& reader_;
};

void SettingReader::text(std::string_view key, Setting<std::string>& setting, std::string_view choices) {
  const std::optional<std::string> read = reader_.string(key);
  if (!read) return;
  std::vector<std::string_view> words;
  while (!choices.empty()) {
    const std::size_t end = std::min(choices.find('|'), choices.size());
    words.push_back(choices.substr(0, end));
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  if (words.empty() || std::find(words.begin(), words.end(), *read) != words.end()) {
    setting = {*read, place(key)};
  } else {
    reader_.fault(key, formatted("\"{}\" must be one of {}, not \"{}\"", key, joined(words, ", "), *read),
                  did_you_mean(nearest(*read, words)));
  }
}

void SettingReader::take(const RequestColumn& column, std::string_view key, Request& request) {
  const RequestAccess::Write field = column.field.of(request);
  if (Setting<std::string>* const* said = std::get_if<Setting<std::string>*>(&field)) {
    if (key == "rank") return number_or_text(key, **said);
    if (key == "image_size" && reader_.find(key) != nullptr && reader_.find(key)->is(Value::Kind::Integer)) {
      return number_or_text(key, **said);
    }
    if (key == "seq_list" || key == "image_size") return numbers(key, **said);
    return text(key, **said, column.choices);
  }
  if (const auto* number_at = std::get_if<Setting<std::int64_t>*>(&field)) return count(key, **number_at, column.least);
  if (const auto* real_at = std::get_if<Setting<double>*>(&field)) return number(key, **real_at);
  if (const auto* size_at = std::get_if<Setting<Bytes>*>(&field)) return bytes(key, **size_at);
  if (const auto* list_at = std::get_if<Setting<std::vector<std::string>>*>(&field)) return texts(key, **list_at);
  if (const auto read = reader_.boolean(key)) *std::get<Setting<bool>*>(field) = {*read, place(key)};
}

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

constexpr std::string_view kInOptimizer = "optimizer.";
constexpr std::string_view kInFsdp = "fsdp.";
constexpr std::string_view kInDdp = "ddp.";

// "fsdp": {"wrap": "layers", "reshard_after_forward": true, "param_dtype": "bf16"}; kept in words.
void read_fsdp(ObjectReader& parent, Request& request) {
  const Value* value = parent.find("fsdp");
  if (value == nullptr || parent.object("fsdp") == nullptr) return;
  ObjectReader reader(parent.document(), *value, parent.diagnostics());
  for (const SettingRow& row : dsplan::settings()) {
    if (!row.request.key.starts_with(kInFsdp)) continue;
    const std::string_view key = row.request.key.substr(kInFsdp.size());
    const Value* said = reader.find(key);
    if (said == nullptr) continue;
    Setting<std::string>& into = *std::get<Setting<std::string>*>(row.request.field.of(request));
    const Place place = place_at(parent.document(), said->offset);
    switch (said->kind) {
      case Value::Kind::String: into = {said->string, place}; break;
      case Value::Kind::Integer: into = {std::to_string(said->integer), place}; break;
      case Value::Kind::Bool: into = {said->boolean ? "true" : "false", place}; break;
      default: reader.fault(*said, formatted("\"{}\" is a word, a number or a truth value", key)); break;
    }
  }
  reader.refuse_unread("fsdp");
}

// "ddp": {"find_unused_parameters": true, "bucket_cap_mb": 50}
void read_ddp(ObjectReader& parent, Request& request) {
  const Value* value = parent.find("ddp");
  if (value == nullptr || parent.object("ddp") == nullptr) return;
  ObjectReader reader(parent.document(), *value, parent.diagnostics());
  SettingReader settings(reader);
  for (const SettingRow& row : dsplan::settings()) {
    if (row.request.key.starts_with(kInDdp)) settings.take(row.request, row.request.key.substr(kInDdp.size()), request);
  }
  reader.refuse_unread("ddp");
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
  for (const SettingRow& row : dsplan::settings()) {
    if (row.request.key.starts_with(kInOptimizer)) {
      settings.take(row.request, row.request.key.substr(kInOptimizer.size()), request);
    }
  }
  if (!reader.has("name")) reader.fault("name", "\"name\" is missing: which optimizer?");
  reader.refuse_unread("optimizer");
}

// "lora": "r=8,targets=q_proj" or {"r": 8, "targets": ["q_proj"], "dtype": "fp32", "save": ["lm_head"]}; kept in the
// words of --lora.
class LoraWords {
 public:
  explicit LoraWords(ObjectReader& reader) : reader_(reader), settings_(reader) {}

  std::string read() {
    Setting<std::int64_t> rank;
    settings_.count("r", rank);
    if (rank.given()) words_.push_back(formatted("r={}", *rank));
    names("targets");
    names("parameters");
    text("dtype", "fp32|bf16|fp16|model");
    number("dropout");
    number("alpha");
    flag("rslora");
    text("bias", "none|all|lora_only");
    flag("dora");
    names("save");
    text("save_dtype", "fp32|bf16|fp16|model");
    reader_.refuse_unread("lora");
    return formatted("{}", joined(words_, ","));
  }

 private:
  void number(std::string_view key) {
    Setting<double> setting;
    settings_.number(key, setting);
    if (setting.given()) words_.push_back(formatted("{}={}", key, *setting));
  }
  void flag(std::string_view key) {
    if (const std::optional<bool> on = reader_.boolean(key)) words_.push_back(formatted("{}={}", key, *on));
  }
  void text(std::string_view key, std::string_view choices) {
    Setting<std::string> setting;
    settings_.text(key, setting, choices);
    if (setting.given()) words_.push_back(formatted("{}={}", key, *setting));
  }
  void names(std::string_view key) {
    Setting<std::vector<std::string>> setting;
    const Value* value = reader_.find(key);
    if (value != nullptr && value->is(Value::Kind::String)) {
      setting = {{value->string}, Place()};
    } else {
      settings_.texts(key, setting);
    }
    if (setting.given()) words_.push_back(formatted("{}={}", key, joined(*setting, "+")));
  }

  ObjectReader& reader_;
  SettingReader settings_;
  std::vector<std::string> words_;
};

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
  request.lora = {LoraWords(reader).read(), place};
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

// The tokens of each expert of one mixture.
void read_counts(ObjectReader& reader, const Value& row, std::vector<TokenCounts>& rows) {
  if (!row.is(Value::Kind::Array)) return reader.fault(row, "a row is a list of the tokens of each expert");
  rows.push_back({{}, place_at(reader.document(), row.offset)});
  for (const Value& count : row.items) {
    if (!count.is(Value::Kind::Integer) || count.integer < 0) {
      return reader.fault(count, "an expert has a whole number of tokens, 0 or more");
    }
    rows.back().tokens.push_back(count.integer);
  }
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
  for (const SettingRow& row : dsplan::settings()) {
    const std::string_view key = row.request.key;
    if (!key.empty() && key != "lora" && !key.starts_with(kInOptimizer) && !key.starts_with(kInFsdp)) {
      settings.take(row.request, key, request);
    }
  }
  read_optimizer(reader, request);
  read_fsdp(reader, request);
  read_ddp(reader, request);
  read_lora(reader, request);
  reader.refuse_unread("the training file");
  diagnostics.throw_if_any();
  return request;
}

namespace {

// `what` file of one list, under `key`: `read` is given each of its items.
template <class Read>
void read_list(const Document& document, const char* kind, const char* key, const std::string& what, const Read& read) {
  expect_object(document, "a " + what);
  Diagnostics diagnostics;
  ObjectReader reader(document, document.root, diagnostics);
  (void)read_head(reader, kind);
  if (!reader.has(key)) reader.fault(key, formatted("\"{}\" is missing", key));
  if (const Value* items = reader.array(key)) {
    for (const Value& item : items->items) read(reader, item);
  }
  reader.refuse_unread("the " + what);
  diagnostics.throw_if_any();
}

}  // namespace

std::vector<CheckpointEntry> read_checkpoint_file(const Document& document) {
  std::vector<CheckpointEntry> entries;
  read_list(document, "checkpoint", "groups", "checkpointing file", [&](ObjectReader& reader, const Value& item) {
    const std::optional<CheckpointEntry> entry = read_entry(reader, item);
    if (!entry) return;
    if (!entries.empty() && entry->first <= entries.back().last) {
      reader.fault(item,
                   formatted("layer {} is not above layer {} of the group before", entry->first, entries.back().last));
    }
    entries.push_back(*entry);
  });
  return entries;
}

std::vector<TokenCounts> read_routing_file(const Document& document) {
  std::vector<TokenCounts> rows;
  read_list(document, "routing", "counts", "routing file",
            [&](ObjectReader& reader, const Value& row) { read_counts(reader, row, rows); });
  return rows;
}

}  // namespace dsplan
