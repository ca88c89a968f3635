#include "io/deepspeed_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/format.h"
#include "core/text/letters.h"
#include "core/text/real_numbers.h"
#include "io/own_file.h"

namespace dsplan {
namespace {

template <class T>
Setting<T> automatic(const ReadContext& context, const Value& value) {
  Setting<T> setting;
  setting.is_auto = true;
  setting.place = context.place(value);
  return setting;
}

template <class T>
Setting<T> wrong(ReadContext& context, std::string_view key, const Value& value, std::string_view wanted) {
  const std::string got = value.is(Value::Kind::String) ? formatted("\"{}\"", value.string.substr(0, 80))
                                                        : std::string(describe(value.kind));
  context.fault(value, formatted("\"{}\" must be {}, not {}", key, wanted, got));
  return {};
}

std::optional<std::int64_t> lax_integer(const Value& value) {
  if (value.is(Value::Kind::Integer)) return value.integer;
  if (value.is(Value::Kind::Bool)) return value.boolean ? 1 : 0;
  if (value.is(Value::Kind::Real) && !value.huge && std::floor(value.real) == value.real &&
      std::abs(value.real) < 9.2e18) {
    return static_cast<std::int64_t>(value.real);
  }
  if (value.is(Value::Kind::String)) {
    std::int64_t read = 0;
    const char* const end = value.string.data() + value.string.size();
    const auto [at, error] = std::from_chars(value.string.data(), end, read);
    if (error == std::errc() && at == end) return read;
  }
  return std::nullopt;
}

}  // namespace

Place ReadContext::place(const Value& value) const { return place_at(document, value.offset); }

bool is_auto(const Value& value) { return value.is(Value::Kind::String) && value.string == "auto"; }

std::optional<bool> lax_boolean(const Value& value) {
  constexpr std::array<std::string_view, 6> kTrue = {"true", "t", "yes", "y", "on", "1"};
  constexpr std::array<std::string_view, 6> kFalse = {"false", "f", "no", "n", "off", "0"};
  switch (value.kind) {
    case Value::Kind::Bool: return value.boolean;
    case Value::Kind::Integer:
    case Value::Kind::Real:
      if (value.real == 0) return false;
      if (value.real == 1) return true;
      return std::nullopt;
    case Value::Kind::String: {
      const std::string low = in_lower_case(value.string);
      if (std::find(kTrue.begin(), kTrue.end(), low) != kTrue.end()) return true;
      if (std::find(kFalse.begin(), kFalse.end(), low) != kFalse.end()) return false;
      return std::nullopt;
    }
    default: return std::nullopt;
  }
}

std::optional<double> lax_number(const Value& value) {
  if (value.is(Value::Kind::Integer) || value.is(Value::Kind::Real)) return value.real;
  if (value.is(Value::Kind::String)) {
    const std::optional<double> read = real_number(value.string);
    if (read && std::isfinite(*read)) return read;
  }
  return std::nullopt;
}

Setting<bool> boolean_setting(ReadContext& context, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return {};
  if (is_auto(value)) return automatic<bool>(context, value);
  if (const std::optional<bool> read = lax_boolean(value)) return {*read, context.place(value)};
  return wrong<bool>(context, key, value, "true or false");
}

Setting<std::int64_t> integer_setting(ReadContext& context, std::string_view key, const Value& value,
                                      std::int64_t least) {
  if (value.is(Value::Kind::Null)) return {};
  if (is_auto(value)) return automatic<std::int64_t>(context, value);
  if (value.is(Value::Kind::Real) && (value.huge || std::abs(value.real) >= 9.2e18)) {
    context.fault(value, formatted("\"{}\" does not fit in 63 bits", key));
    return {};
  }
  const std::optional<std::int64_t> read = lax_integer(value);
  if (!read) return wrong<std::int64_t>(context, key, value, "an integer");
  if (*read < least) {
    context.fault(value, formatted("\"{}\" must be at least {}, not {}", key, least, *read));
    return {};
  }
  return {*read, context.place(value)};
}

Setting<double> number_setting(ReadContext& context, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return {};
  if (is_auto(value)) return automatic<double>(context, value);
  if (const std::optional<double> read = lax_number(value)) return {*read, context.place(value)};
  return wrong<double>(context, key, value, "a number");
}

Setting<std::string> string_setting(ReadContext& context, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return {};
  if (value.is(Value::Kind::String)) return {value.string, context.place(value)};
  return wrong<std::string>(context, key, value, "a string");
}

Setting<DType> dtype_setting(ReadContext& context, std::string_view key, const Value& value) {
  struct Spelling {
    std::string_view text;
    DType dtype;
  };
  constexpr Spelling kSpellings[] = {
      {"fp16", DType::Float16},          {"float16", DType::Float16},        {"half", DType::Float16},
      {"fp32", DType::Float32},          {"float32", DType::Float32},        {"float", DType::Float32},
      {"bf16", DType::BFloat16},         {"bfloat16", DType::BFloat16},      {"torch.float16", DType::Float16},
      {"torch.float32", DType::Float32}, {"torch.bfloat16", DType::BFloat16}};
  if (value.is(Value::Kind::Null)) return {};
  if (is_auto(value)) return automatic<DType>(context, value);
  if (value.is(Value::Kind::String)) {
    for (const Spelling& spelling : kSpellings) {
      if (spelling.text == in_lower_case(value.string)) return {spelling.dtype, context.place(value)};
    }
  }
  return wrong<DType>(context, key, value, "one of fp16, bf16, fp32");
}

}  // namespace dsplan

namespace dsplan::detail {

void take_stage(Reader& reader, std::string_view key, const Value& value) {
  const Setting<std::int64_t> stage = integer_setting(reader.context, key, value, 0);
  if (stage.given() && *stage > 3) {
    reader.context.fault(value, formatted("ZeRO stage {} does not exist", *stage), "DeepSpeed has stages 0 to 3");
    return;
  }
  reader.input.zero.stage = stage;
}

void take_device(Reader& reader, Setting<OffloadDevice>& field, std::string_view key, const Value& value) {
  const Setting<std::string> device = string_setting(reader.context, key, value);
  if (!device.given() || *device == "auto") return;
  for (const OffloadDevice one : {OffloadDevice::None, OffloadDevice::Cpu, OffloadDevice::Nvme}) {
    if (*device == name(one)) field = {one, device.place};
  }
  if (!field.given()) {
    reader.context.fault(value, formatted("\"{}\" must be one of none, cpu, nvme, not \"{}\"", key, *device));
  }
}

// deepspeed/runtime/zero/leaf_module_config.py.
void take_names(Reader& reader, Setting<std::vector<std::string>>& field, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return;
  std::vector<std::string> names;
  if (value.is(Value::Kind::String)) names.push_back(value.string);
  for (const Value& item : value.items) {
    if (item.is(Value::Kind::String)) names.push_back(item.string);
  }
  const bool list = value.is(Value::Kind::Array) && names.size() == value.items.size();
  if (!list && !value.is(Value::Kind::String)) {
    reader.context.fault(value, formatted("\"{}\" must be a name or an array of names", key));
    return;
  }
  field = {std::move(names), reader.context.place(value)};
}

void take_numbers(Reader& reader, Setting<std::vector<double>>& field, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return;
  if (is_auto(value)) {
    field.is_auto = true;
    field.place = reader.context.place(value);
    return;
  }
  std::vector<double> read;
  for (const Value& item : value.items) {
    if (const std::optional<double> number = lax_number(item)) read.push_back(*number);
  }
  if (!value.is(Value::Kind::Array) || read.size() != value.items.size()) {
    reader.context.fault(value, formatted("\"{}\" must be an array of numbers", key));
    return;
  }
  field = {std::move(read), reader.context.place(value)};
}

void take_legacy_offload(Reader& reader, OffloadInput& block, std::string_view key, const Value& value) {
  const Setting<bool> flag = boolean_setting(reader.context, key, value);
  if (!flag.given()) return;
  if (block.present) {
    reader.context.fault(value, formatted("the deprecated \"{}\" stands beside its successor", key),
                         "DeepSpeed takes one of the two");
    return;
  }
  if (*flag) block.device = {OffloadDevice::Cpu, flag.place};
  reader.input.notices.push_back({Notice::Kind::Warning, flag.place, formatted("\"{}\" is deprecated", key), {}});
}

// The engine raises for it (deepspeed/runtime/engine.py, _configure_basic_optimizer).
void refuse_max_grad_norm(Reader& reader, std::string_view key, const Value& value) {
  reader.context.fault(value, formatted("DeepSpeed does not take \"{}\" as an optimizer parameter", key),
                       "use the top-level \"gradient_clipping\"");
}

void refuse_legacy_stage1(Reader& reader, std::string_view key, const Value& value) {
  if (boolean_setting(reader.context, key, value).value_or(false)) {
    reader.context.fault(value, "DeepSpeed no longer has the legacy stage 1", "remove \"legacy_stage1\"");
  }
}

void take_allreduce_op(Reader& reader, std::string_view key, const Value& value) {
  const Setting<std::string> op = string_setting(reader.context, key, value);
  if (!op.given()) return;
  if (*op != "mean" && *op != "sum") {
    reader.context.fault(value, formatted("\"{}\" must be mean or sum, not \"{}\"", key, *op));
    return;
  }
  reader.input.sum_gradients = {*op == "sum", op.place};
}

void take_legacy_gather(Reader& reader, std::string_view key, const Value& value) {
  const Setting<bool> flag = boolean_setting(reader.context, key, value);
  if (!flag.given()) return;
  Setting<bool>& successor = reader.input.zero.gather_16bit_weights_on_model_save;
  if (successor.given()) {
    reader.context.fault(value, formatted("the deprecated \"{}\" stands beside its successor", key),
                         "DeepSpeed takes one of the two");
    return;
  }
  successor = flag;
  reader.input.notices.push_back({Notice::Kind::Warning, flag.place, formatted("\"{}\" is deprecated", key), {}});
}

// "bfloat16" is the old name of the block; the new one wins, as in DeepSpeed (precision_config.py).
void take_old_bf16(Reader& reader, std::string_view key, const Value& value) {
  if (value.is(Value::Kind::Null)) return;
  if (!value.is(Value::Kind::Object)) {
    reader.context.fault(value, formatted("\"{}\" must be an object, not {}", key, describe(value.kind)));
  } else if (!reader.input.bf16_enabled.mentioned()) {
    reader.block("bf16", value);
  }
}

// Spelt exactly so (deepspeed/runtime/config.py, get_communication_data_type); "auto" is none of them.
void take_communication_dtype(Reader& reader, std::string_view key, const Value& value) {
  const Setting<std::string> given = string_setting(reader.context, key, value);
  if (!given.given()) return;
  const std::string low = in_lower_case(*given);
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32}) {
    if (low == (dtype == DType::Float16 ? "fp16" : dtype == DType::BFloat16 ? "bf16" : "fp32")) {
      reader.input.communication_dtype = {dtype, given.place};
      return;
    }
  }
  reader.context.fault(value, formatted("\"{}\" must be one of fp16, bf16, fp32, not \"{}\"", key, *given),
                       "DeepSpeed knows no other spelling here");
}

namespace {

// precision_config.py, DeepSpeedFP16Config.
void check_loss_scaler(ReadContext& context, std::string_view path, const Member& member) {
  const bool scale = path == "fp16.loss_scale";
  if (is_auto(member.value)) return;
  if (member.value.is(Value::Kind::Bool)) {
    return context.fault(member.value,
                         formatted("\"{}\" must be {}, not a boolean", member.key, scale ? "a number" : "an integer"));
  }
  const Setting<double> read = number_setting(context, member.key, member.value);
  if (!read.given()) return;
  if (scale && *read < 0) {
    context.fault(member.value, formatted("\"{}\" must not be negative", member.key),
                  "0 turns dynamic loss scaling on");
  }
}

}  // namespace

bool is_harmless(const DeepSpeedKey& key, const Value& value) {
  struct Neutral {
    std::string_view path;
    double most;
  };
  constexpr Neutral kAtMost[] = {{"sequence_parallel_size", 1}, {"zero_optimization.mics_shard_size", 0}};
  if (value.is(Value::Kind::Null) || is_auto(value)) return true;
  for (const Neutral& neutral : kAtMost) {
    if (neutral.path == key.path) return lax_number(value).value_or(neutral.most + 1) <= neutral.most;
  }
  if (const std::optional<bool> flag = lax_boolean(value)) return *flag == key.on;
  if (value.is(Value::Kind::Object)) {
    if (value.members.empty()) return true;
    if (key.path == "tensor_parallel") {
      const Value* size = value.find("autotp_size");
      return size == nullptr || lax_number(*size).value_or(2) <= 1;
    }
    const Value* enabled = value.find("enabled");
    return enabled != nullptr && !lax_boolean(*enabled).value_or(true);
  }
  return value.is(Value::Kind::Array) && value.items.empty();
}

void check_inert(ReadContext& context, std::string_view path, const Member& member) {
  if (path == "zero_optimization.allgather_bucket_size") {
    const Setting<std::int64_t> size = integer_setting(context, member.key, member.value, 0);
    if (size.given() && *size % 2 != 0) {
      context.fault(member.value, formatted("\"{}\" must be even, not {}", member.key, *size));
    }
  }
  if (path == "fp16.loss_scale" || path == "fp16.loss_scale_window" || path == "fp16.min_loss_scale") {
    check_loss_scaler(context, path, member);
  }
}

void check_together(ReadContext& context, const DeepSpeedInput& in) {
  const auto fault = [&context](const Place& place, std::string message, std::string hint) {
    context.diagnostics.add(place.says(std::move(message), std::move(hint)));
  };
  if (in.bf16_enabled.value_or(false) && in.fp16_enabled.value_or(false)) {
    fault(in.fp16_enabled.place, "bf16 and fp16 are both enabled", "DeepSpeed allows one of them");
  }
  // activation_checkpointing/checkpointing.py, configure.
  const ActivationCheckpointingInput& activation = in.activation_checkpointing;
  if (!activation.contiguous_memory_optimization.value_or(false)) return;
  const Place& place = activation.contiguous_memory_optimization.place;
  if (!activation.partition_activations.value_or(false)) {
    fault(place, "\"contiguous_memory_optimization\" without \"partition_activations\"",
          "deepspeed.checkpointing.configure asserts both");
  }
  if (!activation.number_checkpoints.given()) {
    fault(place, "\"contiguous_memory_optimization\" without \"number_checkpoints\"",
          "deepspeed.checkpointing.configure asserts a count");
  }
}

}  // namespace dsplan::detail
