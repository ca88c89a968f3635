// How axolotl shards: what it hands to the Trainer, and what it does to a model itself.
// Sources: axolotl 0.19.0 (utils/schemas/validation.py; utils/trainer.py, setup_fsdp_envs; loaders/model.py;
// monkeypatch/accelerate/fsdp2.py; core/builders/base.py), which pins accelerate 1.13.0 and transformers 5.16.1.
#pragma once

#include "core/dialects/dialects.h"
#include "core/model.h"

namespace dsplan {

// What the Trainer is told, with `on` said; nothing where the file does not shard. Writes into `request` what the
// Trainer's plugin would say otherwise. Faults: what axolotl refuses, and what is not modelled.
[[nodiscard]] ShardingInput take_axolotl_sharding(const ForeignInput& foreign, const ModelSpec& base, Request& request,
                                                  Diagnostics& faults);

}  // namespace dsplan
