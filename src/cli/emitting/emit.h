// A job as text for others: what `emit --format` and `plan --emit` print.
#pragma once

#include <string>
#include <string_view>

#include "core/job.h"
#include "core/model.h"
#include "report/plan_file.h"

namespace dsplan {

// `format`: deepspeed, accelerate, torchtitan, plan, launch or checkpointing; all others are refused under `option`,
// with the nearest name. `parts`: of which files the job was made (cli/saved_plan.h, plan_parts). Notes go to standard
// error. A plan holds what predict_asked answers. Refused: what the format cannot say.
[[nodiscard]] std::string emitted(std::string_view format, const PlanParts& parts, const ModelSpec& model,
                                  const Job& job, const std::string& option = "--emit");

}  // namespace dsplan
