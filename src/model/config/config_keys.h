// What the keys of a config.json do that no builder asks for. Each field of a family's configuration class is asked for
// by the family's builder, or has a row here: `tests/config_keys_test.cpp` holds both against the fields that
// transformers' classes have (tests/witnesses/config_keys.json). A new family that lacks a row does not pass it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/model.h"
#include "model/config/config_reader.h"

namespace dsplan {

enum class KeyEffect : std::uint8_t {
  Inert,    // No byte depends on it.
  Graph,    // Activations depend on it; graphs are those of the usual values.
  Chance,   // What a step takes depends on it and on chance; graphs are those of the steps that take most.
  Refused,  // Parameters, buffers or who computes them depend on it; only the usual values are built.
};

struct ConfigKey {
  std::string_view families;  // Of model_type, between blanks; empty: all.
  std::string_view key;
  KeyEffect effect;
  std::string_view usual;   // Values as JSON between bars: "null|false". Inert: empty.
  std::string_view reason;  // Inert: why. Else what it switches, as in "... is not modelled yet".
};

[[nodiscard]] const std::vector<ConfigKey>& config_keys();
// The row of a key in a family, its own before everybody's; nullptr where there is none.
[[nodiscard]] const ConfigKey* config_key(std::string_view family, std::string_view key);

// What a rope_scaling or rope_parameters says of its kind; nullptr where it says nothing.
[[nodiscard]] const Value* rotary_type(const Value& rope);
// A rope_scaling of type "dynamic" with an alpha, as published files of hunyuan have it: one table for all lengths up
// to max_position_embeddings.
[[nodiscard]] bool rotary_of_lengths(const Value& rope);
// Of a family whose classes have LongRoPE: that kind, by each name that the family gives it.
[[nodiscard]] bool rotary_of_two_tables(std::string_view family, const Value& rope);
// Before a builder: rotary tables that each forward looks at are gaps, those that transformers does not know faults.
void check_rotary(ConfigReader& reader);
// Behind it: the classes that `architectures` names must be `built`, or one of `others`, whose body it is.
void check_architectures(const ConfigReader& reader, std::string_view built,
                         const std::vector<std::string_view>& others);

// After `reader`'s builder has asked for what it knows: judges the other keys of the file. Faults are those whose value
// is not built and those that nobody knows; the reader's gaps are those that no graph models.
// Returns the unknown ones that switch nothing on (null, false, 0, empty).
[[nodiscard]] std::vector<UnknownKey> judge_other_keys(ConfigReader& reader, std::string_view family);

}  // namespace dsplan
