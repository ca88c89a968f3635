// Steps that others have published (tests/data/step-times.csv), as jobs of dsplan: what the constants of step times are
// fitted to and held against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/job.h"
#include "core/model.h"
#include "core/prediction.h"
#include "planner/time/constants.h"

namespace time_rows {

struct Row {
  bool train = false;  // Of the sources that constants are fitted to.
  std::string source, id, model, family, hardware, runtime, checkpoint, attention, loss, dtype, sent, offload;
  std::int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, vocab = 0, seq = 0;
  std::int64_t gpus = 1, gpus_per_node = 1, tp = 1, micro_batch = 1, grad_accum = 1;
  double network = 0;     // GB/s of one node.
  bool compiled = false;  // Kernels were fused: by a compiler, or by hand.
  double seconds = 0;     // Of one optimizer step, as published.
};

[[nodiscard]] std::vector<Row> read(const std::string& path);

// A row as dsplan sees it.
struct Case {
  Row row;
  dsplan::ModelSpec model;
  dsplan::Job job;
  dsplan::Graph graph;
};
[[nodiscard]] Case make(const Row& row);

// What rows have that dsplan's own jobs do not.
struct Nuisance {
  double old_flash = 0.6;  // FlashAttention before its second version: part of the second's rate. Fitted.
};
// Where a compiler or a hand has fused kernels that only read and write: what remains of the traffic of the eager
// graph. A Llama layer's norms make 30 bytes of traffic for each element and a fused one 4, rotary tables and SwiGLU
// lose a third to three quarters; GPT's norms and GELU are single kernels as they are, and lose an addition.
inline constexpr double kFusedLlama = 0.25;
inline constexpr double kFusedGpt = 0.85;
inline constexpr double kFusedLaunch = 0.25;
[[nodiscard]] Nuisance nuisance(const std::string& architecture);

[[nodiscard]] dsplan::StepTime estimated(const Case& one, const dsplan::TimeConstants& constants,
                                         const Nuisance& nuisance);
[[nodiscard]] dsplan::StepTime estimated(const Case& one);  // As fitted.

}  // namespace time_rows
