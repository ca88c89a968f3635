#include "io/deepspeed.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/format.h"
#include "io/deepspeed_keys.h"
#include "io/dialects/slots.h"
#include "io/own_file.h"
#include "io/text.h"

namespace dsplan {

namespace detail {
namespace {

constexpr std::string_view kZero = "zero_optimization";

// Keys with a rule of their own; they are few.
struct Special {
  std::string_view path;
  void (*take)(Reader&, std::string_view key, const Value& value);
};
constexpr Special kSpecial[] = {
    {"communication_data_type", take_communication_dtype},
    {"gradient_allreduce_op", take_allreduce_op},
    {"bfloat16", take_old_bf16},
    {"optimizer.params.max_grad_norm", refuse_max_grad_norm},
    {"zero_optimization.stage", take_stage},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", take_legacy_gather},
    {"zero_optimization.legacy_stage1", refuse_legacy_stage1},
    {"zero_optimization.cpu_offload",
     [](Reader& reader, std::string_view key, const Value& value) {
       take_legacy_offload(reader, reader.input.zero.offload_optimizer, key, value);
     }},
    {"zero_optimization.cpu_offload_param",
     [](Reader& reader, std::string_view key, const Value& value) {
       take_legacy_offload(reader, reader.input.zero.offload_param, key, value);
     }},
};

// What a field of its type takes.
struct TakePlain {
  Reader& reader;
  const DeepSpeedKey& row;
  std::string_view key;
  const Value& value;

  void operator()(Setting<bool>* field) const { *field = boolean_setting(reader.context, key, value); }
  void operator()(Setting<std::int64_t>* field) const {
    *field = integer_setting(reader.context, key, value, row.least);
  }
  void operator()(Setting<double>* field) const {
    Setting<double> read = number_setting(reader.context, key, value);
    if (read.given() && *read < 0) {
      reader.context.fault(value, formatted("\"{}\" must not be negative", key));
    } else {
      *field = std::move(read);
    }
  }
  void operator()(Setting<std::string>* field) const { *field = string_setting(reader.context, key, value); }
  void operator()(Setting<DType>* field) const { *field = dtype_setting(reader.context, key, value); }
  void operator()(Setting<OffloadDevice>* field) const { take_device(reader, *field, key, value); }
  void operator()(Setting<std::vector<std::string>>* field) const { take_names(reader, *field, key, value); }
  void operator()(Setting<std::vector<double>>* field) const { take_numbers(reader, *field, key, value); }
};

std::string dotted(std::string_view block, std::string_view key) {
  return block.empty() ? std::string(key) : formatted("{}.{}", block, key);
}

// DeepSpeed's pydantic fields may also be named without their alias (populate_by_name).
std::string canonical(std::string_view block, std::string_view key) {
  std::string path = dotted(block, key);
  if (block == kZero && find_deepspeed_key(path) == nullptr) {
    std::string aliased = formatted("{}.stage3_{}", block, key);
    if (find_deepspeed_key(aliased) != nullptr) return aliased;
  }
  return path;
}

}  // namespace

void Reader::unknown(std::string_view block, const Member& member) {
  std::vector<std::string_view> siblings;
  for (const SettingRow& row : settings()) {
    const DeepSpeedKey& key = row.json;
    if (key.path.empty()) continue;
    const std::size_t dot = key.path.rfind('.');
    const std::string_view parent = dot == std::string_view::npos ? std::string_view() : key.path.substr(0, dot);
    if (parent == block) siblings.push_back(dot == std::string_view::npos ? key.path : key.path.substr(dot + 1));
  }
  const std::string_view meant = nearest(member.key, siblings);
  std::string hint = did_you_mean(meant);
  const SettingRow* const around = find_deepspeed_key(block);
  if (around != nullptr && around->json.strict) {
    context.diagnostics.add(context.document.at(
        member.key_offset, formatted("unknown key \"{}\" in {}: DeepSpeed forbids it", member.key, block),
        std::move(hint)));
    return;
  }
  std::string message = formatted("unknown key \"{}\": DeepSpeed ignores it", dotted(block, member.key));
  if (!hint.empty()) message += "; " + hint;
  input.notices.push_back(
      {Notice::Kind::Unknown, place_at(context.document, member.key_offset), std::move(message), {}});
}

void Reader::not_modelled(const DeepSpeedKey& key, const Member& member) {
  if (is_harmless(key, member.value)) return;
  input.not_modelled.push_back({context.place(member.value), key.when, std::string(key.path), std::string(key.note)});
}

void Reader::inert(const DeepSpeedKey& key, const Member& member) {
  if (member.value.is(Value::Kind::Null)) return;
  check_inert(context, key.path, member);
  input.notices.push_back({Notice::Kind::Inert,
                           place_at(context.document, member.key_offset),
                           formatted("\"{}\" has no effect here: {}", key.path, key.note),
                           {},
                           "inert_key",
                           std::string(key.path)});
}

void Reader::honour(const DeepSpeedKey& key, const Member& member) {
  const auto at =
      std::find_if(std::begin(kSpecial), std::end(kSpecial), [&](const Special& one) { return one.path == key.path; });
  if (at != std::end(kSpecial)) {
    at->take(*this, member.key, member.value);
  } else {
    DSPLAN_CHECK(key.field, std::string(key.path) + " is marked honoured and nobody reads it");
    std::visit(TakePlain{*this, key, member.key, member.value}, key.field.of(input));
  }
  if (key.when != When::Always && !member.value.is(Value::Kind::Null)) {
    input.conditional.push_back({place_at(context.document, member.key_offset), key.when, std::string(key.path)});
  }
}

void Reader::enter(const DeepSpeedKey& key, const Value& value) {
  if (value.is(Value::Kind::Null)) return;
  // "zero_optimization": true is an old way to say stage 1 (deepspeed/runtime/zero/config.py).
  if (key.path == kZero && value.is(Value::Kind::Bool)) {
    input.zero.present = true;
    input.zero.place = context.place(value);
    input.zero.stage = {value.boolean ? 1 : 0, input.zero.place};
    return;
  }
  if (!value.is(Value::Kind::Object)) {
    context.fault(value, formatted("\"{}\" must be an object, not {}", key.path, describe(value.kind)));
    return;
  }
  const auto mark = [&](auto& block) {
    block.present = true;
    block.place = context.place(value);
  };
  if (key.path == kZero) mark(input.zero);
  if (key.path == "optimizer") mark(input.optimizer);
  if (key.path == "activation_checkpointing") mark(input.activation_checkpointing);
  if (key.path == "zero_optimization.offload_param") mark(input.zero.offload_param);
  if (key.path == "zero_optimization.offload_optimizer") mark(input.zero.offload_optimizer);
  block(key.path, value);
}

void Reader::member(std::string_view block, const Member& member) {
  const std::string path = canonical(block, member.key);
  const SettingRow* const row = find_deepspeed_key(path);
  if (row == nullptr) return unknown(block, member);
  const DeepSpeedKey& key = row->json;
  const ConditionalKey here{place_at(context.document, member.key_offset), When::Always, path};
  if (key.removed != Version{}) input.removed.push_back(here);
  if (key.since >= kRulesOfKeys) input.added.push_back(here);
  switch (key.treatment) {
    case DeepSpeedKey::Treatment::Honoured: return honour(key, member);
    case DeepSpeedKey::Treatment::NotModelled: return not_modelled(key, member);
    case DeepSpeedKey::Treatment::Inert: return inert(key, member);
    case DeepSpeedKey::Treatment::Block: return enter(key, member.value);
  }
}

void Reader::block(std::string_view path, const Value& object) {
  // A deprecated key is judged against its successor, so it is read last, wherever it stands.
  const auto deprecated = [](const Member& m) {
    return m.key.starts_with("cpu_offload") || m.key == "stage3_gather_fp16_weights_on_model_save" ||
           m.key == "bfloat16";
  };
  for (const Member& m : object.members) {
    if (!deprecated(m)) member(path, m);
  }
  for (const Member& m : object.members) {
    if (deprecated(m)) member(path, m);
  }
}

}  // namespace detail

DeepSpeedInput read_deepspeed(const Document& document) { return read_deepspeed(document, document.root); }

DeepSpeedInput read_deepspeed(const Document& document, const Value& object) {
  Diagnostics diagnostics;
  detail::Reader reader{{document, diagnostics}, {}};
  reader.input.path = document.path;
  reader.input.place = place_at(document, object.offset);
  if (object.is(Value::Kind::Object)) {
    reader.block({}, object);
  } else {
    diagnostics.add(document.at(object.offset, "a DeepSpeed configuration must be an object",
                                formatted("found {}", describe(object.kind))));
  }
  detail::check_together(reader.context, reader.input);
  diagnostics.throw_if_any();
  return std::move(reader.input);
}

namespace {

constexpr std::int64_t kMostPower = 1000;  // A scale is a double.
constexpr std::int64_t kMost = 1'000'000'000;

class Reader {
 public:
  Reader(const Document& document, const Value& fp16, std::vector<std::string>& keys)
      : reader_(document, fp16, faults_), keys_(keys) {}

  // "auto" is left to Hugging Face, which leaves it to DeepSpeed.
  [[nodiscard]] bool says(std::string_view key) {
    const Value* value = reader_.find(key);
    return value != nullptr && !value->is(Value::Kind::String) && !value->is(Value::Kind::Null);
  }
  double number(std::string_view key) {
    if (!says(key)) return 0;
    count(key);
    return reader_.number(key).value_or(0);
  }
  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most, std::int64_t fallback) {
    if (!says(key)) return fallback;
    count(key);
    return reader_.integer(key, least, most).value_or(fallback);
  }
  bool boolean(std::string_view key) {
    if (!says(key)) return false;
    count(key);
    return reader_.boolean(key).value_or(false);
  }
  void finish() const { faults_.throw_if_any(); }

 private:
  void count(std::string_view key) { keys_.push_back(formatted("fp16.{}", key)); }

  Diagnostics faults_;
  ObjectReader reader_;
  std::vector<std::string>& keys_;
};

}  // namespace

LossScalingInput read_loss_scaling(const Document& deepspeed, bool zero) {
  LossScalingInput input;
  LossScaling& scaling = input.scaling;
  scaling.kind = zero ? LossScaling::Kind::Dynamic : LossScaling::Kind::Fused;
  scaling.scale = 65'536;
  const Value* fp16 = deepspeed.root.find("fp16");
  if (fp16 == nullptr || !fp16->is(Value::Kind::Object)) return input;
  Reader reader(deepspeed, *fp16, input.keys);
  if (const double fixed = reader.number("loss_scale"); fixed > 0) {
    scaling.kind = LossScaling::Kind::Static;
    scaling.scale = fixed;
    reader.finish();
    return input;
  }
  scaling.scale = std::ldexp(1.0, static_cast<int>(reader.integer("initial_scale_power", 0, kMostPower, 16)));
  scaling.window = reader.integer("loss_scale_window", 1, kMost, scaling.window);
  scaling.least = static_cast<double>(reader.integer("min_loss_scale", 1, kMost, 1));
  if (zero) {
    scaling.hysteresis = reader.integer("hysteresis", 1, kMost, scaling.hysteresis);
    scaling.refills = reader.boolean("consecutive_hysteresis");
  }
  reader.finish();
  return input;
}

Document read_deepspeed_document(const std::string& path) {
  std::string text = read_file(path);
  std::optional<Document> document;
  try {
    document = parse_hjson(path, text);
  } catch (const Refusal&) {
    refuse_other_slot(path, text, FileSlot::DeepSpeed);
    throw;
  }
  refuse_other_slot(*document, FileSlot::DeepSpeed);
  return *std::move(document);
}

}  // namespace dsplan
