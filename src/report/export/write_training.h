// A training file that says what a job says beside its DeepSpeed JSON.
#pragma once

#include <string>

#include "core/job.h"
#include "core/model.h"

namespace dsplan {

// Kind "training": ranks, batch shape, execution, checkpointing, allocator and versions, each written out. Under
// DeepSpeed without what the job's JSON says (deepspeed_json): stage, micro-batch, accumulation, dtypes, clipping, and
// the optimizer unless the script makes it. The machine is named by files of its own; a capacity, a reserve and a
// host's memory stand here where they were given and not derived from those. `source`: who made it.
//
// Refused by name: what no key of the training file says (torch.amp.GradScaler).
[[nodiscard]] std::string training_json(const ModelSpec& model, const Job& job, const std::string& source);

// The words of --checkpoint: none, full, nested, every:K, keep:OP+OP, modules:NAME+NAME where one of them says it all,
// else groups:FIRST-LAST,...
[[nodiscard]] std::string checkpoint_words(const Checkpointing& checkpoint, std::int64_t layers);

}  // namespace dsplan
