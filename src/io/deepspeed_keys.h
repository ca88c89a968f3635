// Single values of a DeepSpeed file, with the conversions that pydantic's lax mode makes: booleans may be 0, 1 or
// words such as "true" and "off", integers may be integral reals (5e8) or digits in quotes. "auto" is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/format.h"
#include "core/inputs.h"
#include "core/settings.h"

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

namespace dsplan::detail {

// How the DeepSpeed reader is put together: the walk over the rows of core/settings.h, which reads a key by the type of
// its field (deepspeed.cpp), and the keys with a rule of their own.

struct Reader {
  ReadContext context;
  DeepSpeedInput input;

  void block(std::string_view path, const Value& object);
  void member(std::string_view block, const Member& member);
  void unknown(std::string_view block, const Member& member);
  void not_modelled(const DeepSpeedKey& key, const Member& member);
  void inert(const DeepSpeedKey& key, const Member& member);
  void honour(const DeepSpeedKey& key, const Member& member);
  void enter(const DeepSpeedKey& key, const Value& value);
};

// Values of a type that no other reader has: "cpu" and "nvme", one name or a list of names, a list of numbers.
void take_device(Reader& reader, Setting<OffloadDevice>& field, std::string_view key, const Value& value);
void take_names(Reader& reader, Setting<std::vector<std::string>>& field, std::string_view key, const Value& value);
void take_numbers(Reader& reader, Setting<std::vector<double>>& field, std::string_view key, const Value& value);

// Keys with rules of their own.
void take_stage(Reader& reader, std::string_view key, const Value& value);
void refuse_max_grad_norm(Reader& reader, std::string_view key, const Value& value);
void refuse_legacy_stage1(Reader& reader, std::string_view key, const Value& value);
void take_allreduce_op(Reader& reader, std::string_view key, const Value& value);
void take_communication_dtype(Reader& reader, std::string_view key, const Value& value);
void take_legacy_gather(Reader& reader, std::string_view key, const Value& value);
// `cpu_offload: true` means {"device": "cpu"}; beside the block itself DeepSpeed refuses it, false included.
void take_legacy_offload(Reader& reader, OffloadInput& block, std::string_view key, const Value& value);
void take_old_bf16(Reader& reader, std::string_view key, const Value& value);

// True for the values with which a key that is not modelled has no effect: null, "auto", its default, a switch that is
// as it is by default, an empty block, a block with "enabled": false.
[[nodiscard]] bool is_harmless(const DeepSpeedKey& key, const Value& value);
// What DeepSpeed checks of a key that has no effect here.
void check_inert(ReadContext& context, std::string_view path, const Member& member);
// What it checks of several keys at once, whatever the model and the version.
void check_together(ReadContext& context, const DeepSpeedInput& input);

}  // namespace dsplan::detail
