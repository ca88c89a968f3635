// What accelerate makes of its FSDP plugin: calls of fully_shard, as settings.
// Sources: accelerate 1.15.0 (utils/dataclasses.py, FullyShardedDataParallelPlugin; utils/fsdp_utils.py,
// fsdp2_prepare_model; commands/launch.py, utils/launch.py), transformers 5.17.0 (training_args.py,
// _process_fsdp_args; trainer.py).
#pragma once

#include "core/dialects/dialects.h"
#include "core/model.h"

namespace dsplan {

// Writes into `request` what the one plugin that is turned on says; nothing where none is. Settings that are there
// stay. Faults: what accelerate refuses. Wrapping by size under version 2 and what the programs of `foreign` do to
// shards themselves are not modelled.
void apply_sharding_plugin(const ForeignInput& foreign, const ModelSpec& base, Request& request, Diagnostics& faults);

}  // namespace dsplan
