#include "io/deepspeed_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/format.h"
#include "io/place.h"

namespace dsplan {
namespace {

std::string lowered(std::string_view text) {
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return low;
}

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
      const std::string low = lowered(value.string);
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
    double read = 0;
    const char* const end = value.string.data() + value.string.size();
    const auto [at, error] = std::from_chars(value.string.data(), end, read);
    if (error == std::errc() && at == end && std::isfinite(read)) return read;
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
      if (spelling.text == lowered(value.string)) return {spelling.dtype, context.place(value)};
    }
  }
  return wrong<DType>(context, key, value, "one of fp16, bf16, fp32");
}

}  // namespace dsplan
