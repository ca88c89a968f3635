// A job under fully_shard as the files of those that call it: accelerate and torchtitan.
#pragma once

#include <string>

#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// accelerate's YAML (accelerate 1.15.0): ranks, mixed precision and the block fsdp_config of version 2. Batch, length,
// optimizer and attention are the script's; so are checkpoints, unless they are of the kind that accelerate makes.
// Read back beside those, it is the same job.
//
// Refused by name, all together: jobs without fully_shard, and what accelerate has no key for or does otherwise: a mesh
// with replicas, other groups, a policy of several dtypes, models that are made elsewhere than on the host.
[[nodiscard]] std::string accelerate_yaml(const ModelSpec& model, const Job& job);

// torchtitan's TOML (torchtitan 0.2.2): the whole job, its model included. Attention, versions and the allocator have
// no key there.
//
// Refused by name, all together: jobs without fully_shard, models that torchtitan has not, and what it does otherwise:
// other groups, gradients that are reduced in 16 bits, adapters, other optimizers and loops than its own.
[[nodiscard]] std::string torchtitan_toml(const ModelSpec& model, const Job& job);

}  // namespace dsplan
