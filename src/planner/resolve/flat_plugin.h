// What accelerate makes of its FSDP plugin under version 1: FullyShardedDataParallel around the model, as settings.
// Sources: accelerate 1.15.0 (accelerator.py, prepare_model; utils/dataclasses.py, FullyShardedDataParallelPlugin;
// utils/launch.py; commands/launch.py), transformers 5.17.0 (training_args.py, _process_fsdp_args).
#pragma once

#include "core/dialects/dialects.h"
#include "core/model.h"

namespace dsplan {

// `launched`: it is accelerate's own configuration that says so, and not TrainingArguments. Settings that are there
// stay. Faults: what accelerate raises for.
void apply_flat_plugin(const ShardingInput& said, bool launched, const ModelSpec& base, Request& request,
                       Diagnostics& faults);

// What version 2 does not read of version 1's keys is said to be without effect.
void say_of_version_1(const ShardingInput& said, bool launched, Request& request);

}  // namespace dsplan
