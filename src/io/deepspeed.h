// DeepSpeed's configuration file, read as DeepSpeed reads it (deepspeed/runtime/config.py and the pydantic models
// behind it, version 0.19.8).
#pragma once

#include <string>
#include <vector>

#include "core/document.h"
#include "core/inputs.h"
#include "core/training.h"

namespace dsplan {

// Every key is honoured, remembered as not modelled (`DeepSpeedInput::not_modelled`; the resolver refuses those that
// would matter), or reported as inert. Faults, thrown together as one Refusal: wrong types and ranges, unknown keys in
// blocks where DeepSpeed forbids them, a deprecated key beside its successor, odd allgather_bucket_size. Unknown keys
// elsewhere become notices with the nearest name. `document` is the result of parse_hjson, or any object value of
// another document (accelerate and TrainingArguments allow the configuration inline).
[[nodiscard]] DeepSpeedInput read_deepspeed(const Document& document);
[[nodiscard]] DeepSpeedInput read_deepspeed(const Document& document, const Value& object);

// fp16's loss scaling as a DeepSpeed JSON says it. A prediction does not ask: no byte depends on it.

struct LossScalingInput {
  LossScaling scaling;
  std::vector<std::string> keys;  // Those that are given and decided something: "fp16.initial_scale_power".
};

// Keys of "fp16" (DeepSpeed 0.19.8 runtime/precision_config.py); what is not there, or "auto", is DeepSpeed's default.
// `zero`: under ZeRO; else FP16_Optimizer, which knows no hysteresis. Refuses values that DeepSpeed refuses.
[[nodiscard]] LossScalingInput read_loss_scaling(const Document& deepspeed, bool zero);

// The file that --deepspeed names, as Hjson. Refuses a file that belongs to another option, with that option.
[[nodiscard]] Document read_deepspeed_document(const std::string& path);

}  // namespace dsplan
