// What the tests of step times share: jobs on machines whose rates the test may change, and their estimates.
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "io/machine_files.h"
#include "lowered.h"
#include "planner/time/estimate.h"

namespace timing {

using namespace dsplan;

// doctest's Approx adds one to what it compares, which seconds are small against.
inline bool near(double a, double b, double part = 1e-9) { return std::abs(a - b) <= part * std::abs(b); }

struct Setup {
  ModelSpec model;
  Job job;

  [[nodiscard]] StepTime time() const {
    const Shapes shapes = build_shapes(model, job);
    const Rates rates = Rates::of(job);
    const GraphTimes times = graph_times(shapes.graphs.front(), job.training, rates);
    return estimate(model, job, shapes.graphs.front(), times, rates);
  }
};

inline void set_ranks(Job& job, std::int64_t world, std::int64_t tp = 1, std::int64_t gpus_per_node = 8) {
  job.parallelism = {world, gpus_per_node, (world + gpus_per_node - 1) / gpus_per_node, tp, 1, 1, world / tp};
}

// On one node of eight A100 and as many more as `world` needs. stage < 0: plain PyTorch.
inline Setup on_a100(const std::string& model, int stage, std::int64_t world, std::int64_t tp = 1) {
  Setup setup{lowered::bundled(model), lowered::job(stage, world)};
  setup.job.training.seq = 1024;
  setup.job.training.micro_batch = 4;
  setup.job.training.zero.overlap_comm = stage == 3;
  setup.job.training.zero.reduce_bucket_size = Elements(500'000'000);
  setup.job.hardware = load_hardware("a100-sxm-80");
  setup.job.cluster = load_cluster("8xa100-80g");
  set_ranks(setup.job, world, tp);
  return setup;
}

inline void checkpoint_all(Setup& setup, CheckpointKind kind = CheckpointKind::NonReentrant) {
  for (std::int32_t at = 0; at < setup.model.dims.layers; ++at) {
    setup.job.training.checkpoint.groups.push_back({at, at, kind});
  }
}

inline double exposed(const StepTime& time) {
  double sum = 0;
  for (const PhaseTime& phase : time.phases) sum += phase.exposed;
  return sum;
}
inline double sent(const StepTime& time) {
  double sum = 0;
  for (const PhaseTime& phase : time.phases) sum += phase.exposed + phase.hidden;
  return sum;
}
inline double host(const StepTime& time) {
  double sum = 0;
  for (const PhaseTime& phase : time.phases) sum += phase.host;
  return sum;
}

}  // namespace timing
