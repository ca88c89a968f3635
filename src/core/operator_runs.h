// Operators as they ran, one at a time: what the dispatcher of fake tensors or the allocator of a GPU was asked for.
// Read by io/operators_receipt, held against the catalogue by planner/compare_operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/optimizer_runs.h"

namespace dsplan {

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
