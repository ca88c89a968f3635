// From what the user said to what will be predicted.
#pragma once

#include "core/inputs.h"
#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// The model that is trained: with LoRA adapters, if the request has them.
[[nodiscard]] ModelSpec model_of(ModelSpec model, const Request& request);

// Lays `request` over the DeepSpeed configuration (request.inline_deepspeed where `deepspeed` is null), fills in every
// default of interface.md's table and notes for each input whether it was given, derived or assumed. `hardware` and
// `cluster` may be null; with a cluster, `hardware` is the cluster's unless --hardware named another.
//
// Refused, all faults together: contradictions (the batch triple, two precisions, a world that tp x sp does not
// divide, TrainingArguments against the JSON as transformers' trainer_config_finalize judges them), combinations that
// DeepSpeed rejects, ZeRO without a number of ranks, and whatever dsplan does not model yet, by name. With
// request.strict, every assumed input is refused as well, naming the option that would settle it.
// `model` must be what model_of made.
[[nodiscard]] Job resolve(const ModelSpec& model, const Request& request, const DeepSpeedInput* deepspeed,
                          const Hardware* hardware, const Cluster* cluster);

}  // namespace dsplan
