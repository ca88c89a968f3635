// Plan files as the commands use them: written from a job, and taken as MODEL (docs/plans.md).
#pragma once

#include <string>
#include <vector>

#include "cli/assemble.h"
#include "cli/options.h"
#include "core/prediction.h"
#include "report/baseline.h"
#include "report/plan_file.h"

namespace dsplan {

// What a plan takes over from the files behind a job. `source`: who writes it.
[[nodiscard]] PlanParts plan_parts(const Sources& sources, const std::string& source);

// The job as a plan file. It is read again before it is handed out: what does not resolve to the same fingerprint is
// refused, as is what no file can say. `predictions`: of the ranks that the plan shall hold, one or more.
[[nodiscard]] std::string plan_file(const PlanParts& parts, const ModelSpec& model, const Job& job,
                                    const std::vector<Prediction>& predictions);

// The inputs of a plan, with options, launch line and the files that those name (in `sources`) laid over them as over a
// training file; the model in `sources` is the plan. A train_batch_size that the plan derived gives way to other ranks,
// micro-batches or accumulation. Refused: --training beside a plan, and a plan whose fingerprint is not that of its own
// inputs, unless `said.renew`. Where the options change the fingerprint, a notice says so.
[[nodiscard]] Inputs gather_plan(const SavedPlan& plan, const Sources& sources, const SimulateWords& said);

// Refuses --training, which must be given, beside a plan.
[[noreturn]] void refuse_training_file(const SimulateWords& said);

}  // namespace dsplan
