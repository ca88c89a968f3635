// What the programs do by themselves that other projects' files are for: their defaults, and what several keys mean
// together.
#pragma once

#include "core/dialects/dialects.h"
#include "core/inputs.h"
#include "core/model.h"

namespace dsplan {

// `said` as settings alone: adapters become `lora`, and what the program decides without being asked is filled in, each
// at a place that says so. `base` is the model without adapters, `deepspeed` the configuration in use or null. Refused:
// sizes of adapters that nothing turns on, adapters without a rank where the program has no default, patterns of
// modules.
// Sources: trl 1.16.0 (trainer/base_config.py, sft_config.py, model_config.py, sft_trainer.py), peft 0.21
// (utils/constants.py), llamafactory 0.9.5 (hparams, model/adapter.py, model/model_utils/checkpointing.py,
// quantization.py), axolotl 0.19.0 (utils/schemas, utils/config, loaders/model.py), torchtitan 0.2.2 (program_parts.h).
[[nodiscard]] Request with_program(const Said& said, const ModelSpec& base, const DeepSpeedInput* deepspeed);

}  // namespace dsplan
