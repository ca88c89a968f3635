// What dsplan does with each key of a DeepSpeed JSON. One table: the reader walks it, `show` prints it, and a test
// holds it against the list of keys that matter.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/document.h"
#include "core/inputs.h"

namespace dsplan {

struct DeepSpeedKey {
  enum class Treatment : std::uint8_t {
    Honoured,     // Decides a field of Training.
    NotModelled,  // Refused by name as soon as its value would matter.
    Inert,        // Read, type-checked where DeepSpeed checks it, and reported with the reason.
    Block,        // An object whose keys have rows of their own.
  };
  std::string_view path;  // "zero_optimization.stage"
  Treatment treatment = Treatment::Inert;
  When when = When::Always;  // Where the key can have an effect at all.
  std::string_view note;     // NotModelled: the feature's name. Inert: the reason. Block: empty.
};

// All rows, blocks before their keys.
[[nodiscard]] const std::vector<DeepSpeedKey>& deepspeed_keys();
[[nodiscard]] const DeepSpeedKey* find_deepspeed_key(std::string_view path);

// True for the values with which a key that is not modelled has no effect: null, "auto", its default, a switch that is
// off, an empty block, a block with "enabled": false.
[[nodiscard]] bool is_harmless(std::string_view path, const Value& value);

// True where DeepSpeed itself refuses unknown keys: classes derived from DeepSpeedConfigModel, which pydantic checks
// with extra="forbid" (deepspeed/runtime/config_utils.py). The other blocks are read with dict.get.
[[nodiscard]] bool deepspeed_forbids_unknown(std::string_view block);

// Keys whose presence DeepSpeed refuses, whatever their value, and keys that it knows, both since 0.19.7: 0.19.6 is
// without these rules, 0.19.8 has them, 0.19.7 was not read.
[[nodiscard]] bool deepspeed_removed(std::string_view path);
[[nodiscard]] bool deepspeed_added(std::string_view path);

}  // namespace dsplan
