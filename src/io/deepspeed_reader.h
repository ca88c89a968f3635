// How the DeepSpeed reader is put together: the walk over the rows of core/settings.h, which reads a key by the type of
// its field (deepspeed.cpp), and the keys with a rule of their own (deepspeed_special.cpp). Only these two include it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/format.h"
#include "core/settings.h"
#include "io/deepspeed_values.h"

namespace dsplan::detail {

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
