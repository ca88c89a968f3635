// Operators and optimizer steps as they ran: what the dispatcher of fake tensors or the allocator of a GPU was asked
// for. Read by report/operators_receipt, held against predictions by report/operator_comparison.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

// Optimizer steps: each alone and twice, on parameters whose gradients are there.

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

// Operators: one at a time.

// What one operator does, in words: "+out0:120" an output, "+e:8" a by-product kept for backward, "+in0:240" the
// gradient of input 0, "+t:60" and "-t:60" a temporary. What dies after the last allocation dies with the operator and
// is left out; frees that follow each other stand in order of size.
struct OperatorWords {
  std::string forward;
  std::string backward;
  std::vector<std::string> saved;   // Sorted; "_saved_self=in0", "_saved_result1=e:8".
  std::vector<std::string> passes;  // "in0": its gradient is the incoming one.
  friend bool operator==(const OperatorWords&, const OperatorWords&) = default;
};

// Who watched. Dispatch: what one call makes is one word with commas, sorted, and what kernels allocate inside is not
// seen. Kernel: every allocation is a word, in its order.
enum class RunLevel : std::uint8_t { Dispatch, Kernel };

struct OperatorRun {
  Graph graph;  // Of this one operator.
  OperatorWords words;
  // The backward of fake tensors goes another way here than that of tensors on a GPU, and is not compared.
  bool artefact = false;
  std::string title;  // "linear bf16[6,10]* bf16[4,10]".
};

// A case that could not run: "linear/12/bf16/0/11" and what it threw.
struct FailedRun {
  std::string operation;
  std::string key;
  std::string error;
};

struct OperatorRuns {
  std::string path;
  std::string device;  // cuda, fake or simulated (an allocator's history made up from fake tensors).
  std::string torch;
  RunLevel level = RunLevel::Dispatch;
  bool complete = true;
  std::vector<OperatorRun> runs;
  std::vector<FailedRun> failed;
  std::vector<OptimizerRun> optimizers;
};

}  // namespace dsplan
