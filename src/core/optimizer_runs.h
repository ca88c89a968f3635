// Optimizer steps as they ran, each alone and twice, on parameters whose gradients are there: what the dispatcher of
// fake tensors or the allocator of a GPU was asked for. Read by io/operators_receipt, held against predictions by
// planner/compare_optimizers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/training.h"
#include "core/units.h"

namespace dsplan {

// What the constructor, the first and the second step did. A dispatcher writes "fp32 1024" and "-1024", an allocator
// "+1024" and "-1024". Frees between two allocations are sorted: their order follows from how Python takes a list
// apart.
struct OptimizerLog {
  std::vector<std::string> lines;
  std::int64_t peak = 0;  // Above what was there before the constructor; of the constructor itself not kept.
};
using OptimizerLogs = std::array<OptimizerLog, 3>;

inline void sort_frees(std::vector<std::string>& lines) {
  const auto is_free = [](const std::string& line) { return line.starts_with('-'); };
  for (auto at = lines.begin(); at != lines.end();) {
    at = std::find_if(at, lines.end(), is_free);
    const auto end = std::find_if_not(at, lines.end(), is_free);
    std::sort(at, end);
    at = end;
  }
}

struct OptimizerRun {
  // Step: optimizer.step(). Clip: clip_grad_norm_. ZeroGrad. LossScaler: scale, unscale_ and clip if asked, step,
  // update.
  enum class Action : std::uint8_t { Step, Clip, ZeroGrad, LossScaler };
  struct Given {
    Shape shape;
    DType dtype = DType::Float32;
  };
  Action action = Action::Step;
  Optimizer optimizer;
  std::vector<Given> parameters;
  std::int64_t embedding = -1;  // Which parameter is an nn.Embedding's; -1: none.
  bool keep = false;            // Clip: the caller keeps the norm.
  bool clip = false;            // LossScaler.
  bool set_to_none = true;      // ZeroGrad.
  OptimizerLogs logs;
  std::string title;  // "optimizer=adam implementation=fused dtypes=bf16".
};

}  // namespace dsplan
