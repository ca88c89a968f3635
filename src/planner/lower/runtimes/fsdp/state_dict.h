// The model's state dict at save, whole (torch/distributed/checkpoint/state_dict.py, get_model_state_dict).
#pragma once

#include <cstdint>

#include "core/model.h"
#include "core/training.h"
#include "planner/lower/runtimes/fsdp/sharded_parameters.h"

namespace dsplan {

// In the order of the names, a tied weight under each. What `Fsdp::state_dict` says: each is gone before the next
// comes, and rank 0 keeps them on its host; or all stay on the device until the caller lets go of the dict.
void save_whole(const ModelSpec& model, const Training& training, const ShardedParameters& parameters,
                std::int64_t rank, Emitter& emitter);

}  // namespace dsplan
