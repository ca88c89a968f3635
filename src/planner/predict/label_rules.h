// Where the framework's code says that a buffer exists: file and function, for `--explain peak`.
#pragma once

#include <string_view>

#include "core/prediction.h"
#include "core/training.h"

namespace dsplan {

// For a label of the lowering under `training`'s runtime and stage: "zero/stage3.py, __add_grad_to_ipg_bucket". Files
// are below deepspeed/runtime unless they begin with "torch/" or "deepspeed/". A label of DeepSpeed's that has no row
// yet gets its optimizer's file; empty for what an operator makes.
[[nodiscard]] std::string_view rule_of(std::string_view label, Role role, const Training& training);

}  // namespace dsplan
