// Single values of a DeepSpeed file, with the conversions that pydantic's lax mode makes: booleans may be 0, 1 or
// words such as "true" and "off", integers may be integral reals (5e8) or digits in quotes. "auto" is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

// The faults of one file, with its places.
struct ReadContext {
  const Document& document;
  Diagnostics& diagnostics;

  void fault(const Value& value, std::string message, std::string hint = {}) {
    diagnostics.add(document.at(value.offset, std::move(message), std::move(hint)));
  }
  [[nodiscard]] Place place(const Value& value) const;
};

[[nodiscard]] bool is_auto(const Value& value);
[[nodiscard]] std::optional<bool> lax_boolean(const Value& value);
[[nodiscard]] std::optional<double> lax_number(const Value& value);

// Each reads `value` into a Setting; null reads as absent, a fault is recorded under `key` and also reads as absent.
[[nodiscard]] Setting<bool> boolean_setting(ReadContext& context, std::string_view key, const Value& value);
[[nodiscard]] Setting<std::int64_t> integer_setting(ReadContext& context, std::string_view key, const Value& value,
                                                    std::int64_t least);
[[nodiscard]] Setting<double> number_setting(ReadContext& context, std::string_view key, const Value& value);
[[nodiscard]] Setting<std::string> string_setting(ReadContext& context, std::string_view key, const Value& value);
// "fp16", "float16", "half", "torch.float16", ...: DeepSpeed's DtypeEnum; int8 is no training dtype and a fault.
[[nodiscard]] Setting<DType> dtype_setting(ReadContext& context, std::string_view key, const Value& value);

}  // namespace dsplan
