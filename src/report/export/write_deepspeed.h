// The DeepSpeed JSON of a job: what a plan hands over to the framework.
#pragma once

#include <string>

#include "core/document.h"
#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// A complete configuration. The batch triple is consistent; every key that decides a byte and has a meaning in this job
// is written out, defaults included, so that another version's defaults cannot move anything; keys that have none are
// written where they differ from the default, because the fingerprint counts them. Only keys that the job's version of
// DeepSpeed accepts: first tags of the keys by deepspeed/runtime/zero/{config,offload_config}.py and
// runtime/precision_config.py of the released versions.
//
// Refused by name: jobs of plain PyTorch, and a value that the job's version of DeepSpeed has no key for. An optimizer
// that DeepSpeed does not make by name (Adafactor, 8-bit Adam, a for-loop AdamW) is the script's to make: the JSON then
// has no "optimizer", see `optimizer_in_deepspeed_json`.
[[nodiscard]] std::string deepspeed_json(const ModelSpec& model, const Job& job);

// The same, with what `own` (the user's configuration) says beyond it and no byte depends on: learning rate, betas,
// scheduler, logging, loss scale, ... "auto" stays where it stood beside such a key.
[[nodiscard]] std::string deepspeed_json(const ModelSpec& model, const Job& job, const Value& own);

// Whether the JSON's "optimizer" says all that the job says of it. Else the training file, or the script, has to.
[[nodiscard]] bool optimizer_in_deepspeed_json(const Training& training);

}  // namespace dsplan
