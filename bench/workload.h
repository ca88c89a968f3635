// What the benchmarks measure on: bundled models under a configuration that people use.
#pragma once

#include <cstdint>
#include <string>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "core/schedule.h"

namespace dsplan {

// Everything up to the schedule, so that each benchmark times only its own part.
struct Workload {
  ModelSpec model;
  Job job;
};

// A bundled model on `ranks` H100s under ZeRO stage 3 in bf16, every layer its own checkpoint, 2048 tokens.
[[nodiscard]] Workload stage3_workload(const std::string& model, std::int64_t ranks);

// One rank's schedule, from the operator graph on.
[[nodiscard]] Schedule make_schedule(const Workload& workload, std::int64_t rank = 0);

}  // namespace dsplan
