// The Python that realises a recompute plan in the framework.
#pragma once

#include <string>

#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// Lines for the training script, once `model` (transformers) is made and before DeepSpeed or DDP wraps it. The shortest
// that says it: transformers' gradient_checkpointing_enable for single layers (every_n_layers for every K-th of them,
// context_fn for kept operators), else runs of layers around torch.utils.checkpoint or deepspeed.checkpointing, else
// checkpoints around named modules. Runs keep the layers' names and their hooks. tools/oracles/checkpointing_calls.py
// runs every form on small models.
//
// Refused by name: kept operators for which no operator of ATen stands alone, checkpoints around modules in the
// reentrant form (arguments by keyword would get no gradient), runs of layers in a model that gives its layers
// different masks (each run gets those of its first layer), and selective runs under DeepSpeed's function.
[[nodiscard]] std::string checkpointing_call(const ModelSpec& model, const Job& job);

}  // namespace dsplan
