// How the DeepSpeed reader is put together: the walk (deepspeed.cpp), one function per honoured key (the templates here
// for the plain ones, deepspeed_special.cpp for those with a rule of their own). Only these two files include it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/format.h"
#include "io/deepspeed_keys.h"
#include "io/deepspeed_values.h"

namespace dsplan::detail {

// One honoured key: where it goes and how it is read.
struct Reader;
using Take = void (*)(Reader&, std::string_view key, const Value& value);

struct Honoured {
  std::string_view path;
  Take take;
};

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

template <auto First, auto... Rest, class Owner>
auto& reach(Owner& owner) {
  if constexpr (sizeof...(Rest) == 0) {
    return owner.*First;
  } else {
    return reach<Rest...>(owner.*First);
  }
}

template <auto... Path>
void take_flag(Reader& reader, std::string_view key, const Value& value) {
  reach<Path...>(reader.input) = boolean_setting(reader.context, key, value);
}

template <std::int64_t Least, auto... Path>
void take_count(Reader& reader, std::string_view key, const Value& value) {
  reach<Path...>(reader.input) = integer_setting(reader.context, key, value, Least);
}

template <auto... Path>
void take_number(Reader& reader, std::string_view key, const Value& value) {
  Setting<double> read = number_setting(reader.context, key, value);
  if (read.given() && *read < 0) {
    reader.context.fault(value, formatted("\"{}\" must not be negative", key));
    return;
  }
  reach<Path...>(reader.input) = std::move(read);
}

template <auto... Path>
void take_text(Reader& reader, std::string_view key, const Value& value) {
  reach<Path...>(reader.input) = string_setting(reader.context, key, value);
}

template <auto... Path>
void take_dtype(Reader& reader, std::string_view key, const Value& value) {
  reach<Path...>(reader.input) = dtype_setting(reader.context, key, value);
}

template <auto Block>
void take_device(Reader& reader, std::string_view key, const Value& value) {
  const Setting<std::string> device = string_setting(reader.context, key, value);
  if (!device.given() || *device == "auto") return;
  auto& setting = (reader.input.zero.*Block).device;
  if (*device == "none") setting = {OffloadDevice::None, device.place};
  if (*device == "cpu") setting = {OffloadDevice::Cpu, device.place};
  if (*device == "nvme") setting = {OffloadDevice::Nvme, device.place};
  if (!setting.given()) {
    reader.context.fault(value, formatted("\"{}\" must be one of none, cpu, nvme, not \"{}\"", key, *device));
  }
}

// `cpu_offload: true` means {"device": "cpu"}; beside the block itself DeepSpeed refuses it, false included.
template <auto Block>
void take_legacy_offload(Reader& reader, std::string_view key, const Value& value) {
  const Setting<bool> flag = boolean_setting(reader.context, key, value);
  if (!flag.given()) return;
  OffloadInput& block = reader.input.zero.*Block;
  if (block.present) {
    reader.context.fault(value, formatted("the deprecated \"{}\" stands beside its successor", key),
                         "DeepSpeed takes one of the two");
    return;
  }
  if (*flag) block.device = {OffloadDevice::Cpu, flag.place};
  reader.input.notices.push_back({Notice::Kind::Warning, flag.place, formatted("\"{}\" is deprecated", key), {}});
}

// Keys with rules of their own.
void take_stage(Reader& reader, std::string_view key, const Value& value);
void take_betas(Reader& reader, std::string_view key, const Value& value);
void refuse_max_grad_norm(Reader& reader, std::string_view key, const Value& value);
void refuse_legacy_stage1(Reader& reader, std::string_view key, const Value& value);
void take_allreduce_op(Reader& reader, std::string_view key, const Value& value);
void take_communication_dtype(Reader& reader, std::string_view key, const Value& value);
void take_legacy_gather(Reader& reader, std::string_view key, const Value& value);
void take_old_bf16(Reader& reader, std::string_view key, const Value& value);

// What DeepSpeed checks of a key that has no effect here.
void check_inert(ReadContext& context, std::string_view path, const Member& member);
// What it checks of several keys at once, whatever the model and the version.
void check_together(ReadContext& context, const DeepSpeedInput& input);

}  // namespace dsplan::detail
