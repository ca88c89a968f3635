// What one rank carries out.
#pragma once

#include <cstdint>
#include <span>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "core/program.h"
#include "core/schedule.h"
#include "core/training.h"

namespace dsplan::exec {

// `model` is the whole model, graphs, schedule and program are the rank's. Everything must outlive the runner.
struct RankPlan {
  const ModelSpec& model;
  std::span<const Graph> graphs;
  const Schedule& schedule;
  const Program& program;
  std::int64_t tensor_rank = 0;  // Of the ranks that share each layer.

  // Among all ranks: those that share layers are neighbours.
  [[nodiscard]] std::int64_t rank() const { return schedule.rank * schedule.tp + tensor_rank; }
};

// Numbers beside the plan that move no byte.
struct RunSettings {
  OptimizerKind optimizer = OptimizerKind::AdamW;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  double clip = 0;  // Of the global gradient norm; 0: none.
  LossScaling loss_scaling;
  std::uint64_t seed = 0;
  std::int64_t ranks = 1;  // Data-parallel.
  std::int64_t grad_accum = 1;
  std::int64_t micro_batch = 1;

  // Every rank's loss is a mean over its own tokens: with this factor plain sums over ranks and micro-batches make the
  // gradient of the mean over all of them, in whatever order they are taken.
  [[nodiscard]] double seed_of_backward(double loss_scale) const {
    return loss_scale / (static_cast<double>(ranks) * static_cast<double>(grad_accum));
  }
};

// What a job says of them. Learning rate, seed and loss scaling are whoever's that runs it.
[[nodiscard]] RunSettings settings_of(const Job& job);

}  // namespace dsplan::exec
