// What accelerate's FSDP plugin does alike under both of its versions. Source: accelerate 1.15.0 (utils/dataclasses.py,
// FullyShardedDataParallelPlugin; commands/launch.py; accelerator.py, prepare_model; utils/fsdp_utils.py,
// fsdp2_apply_ac).
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "core/dialects/dialects.h"
#include "core/model.h"

namespace dsplan {

// What nobody has said.
inline void usually(Setting<std::string>& setting, std::string value, const Place& place) {
  if (!setting.mentioned()) setting = {std::move(value), place};
}

// What torch calls a dtype, in the words of the settings.
[[nodiscard]] inline std::string short_name(const std::string& dtype) {
  return dtype == "bfloat16" ? "bf16" : dtype == "float16" ? "fp16" : dtype == "float32" ? "fp32" : dtype;
}

class FsdpPlugin {
 public:
  // `launched`: it is accelerate's own configuration that says so, and not TrainingArguments. Settings that are there
  // stay. Faults: what accelerate raises for.
  FsdpPlugin(const ShardingInput& said, bool launched, const ModelSpec& base, Request& request, Diagnostics& faults)
      : said_(said), launched_(launched), base_(base), request_(request), faults_(faults) {}

 protected:
  template <class T>
  [[nodiscard]] const Place& place_of(const Setting<T>& setting) const {
    return setting.given() ? setting.place : said_.on.place;
  }
  void not_modelled(const Place& place, std::string feature, std::string_view key);

  // Rank 0 loads for all, and nobody is sent anything.
  void check_loading();
  // Around what is wrapped: "layers", or classes. Not `wraps`: nothing is but the model. False: the request says itself
  // what is checkpointed.
  bool checkpoint(bool wraps, std::string_view wrapped);

  const ShardingInput& said_;
  bool launched_;
  const ModelSpec& base_;
  Request& request_;
  Diagnostics& faults_;
};

}  // namespace dsplan
