// What DeepSpeed's own memory estimators answer, to the byte, so that a user can hold them beside dsplan's figure.
// Source: estimate_zero2_model_states_mem_needs (runtime/zero/stage_1_and_2.py, in early releases stage2.py) and
// estimate_zero3_model_states_mem_needs (runtime/zero/stage3.py). They appear with release 0.4.2; the ZeRO-2 figure
// without offload changed in release 0.14.3 (PR #5099), the ZeRO-3 figures never did. There is none for ZeRO-1.
//
// They count model states only and assume 16-bit Adam training. The host figures carry a safety factor of 3/2.
// Rounding: each quotient is cut to whole bytes, as Python's int() does. Python computes in double precision, so
// beyond 2^53 bytes its own answer can be off by a rounding; ours is exact.
#pragma once

#include <cstdint>

#include "core/model.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

inline constexpr Version kFirstEstimators{0, 4, 2};
inline constexpr Version kZero2EstimatorChanged{0, 14, 3};

struct EstimatorInput {
  Elements parameters;     // All of them, trainable or not, shared ones once.
  Elements largest_layer;  // ZeRO-3 only; see largest_layer().
  std::int64_t nodes = 1;
  std::int64_t gpus_per_node = 1;
};

// The estimators know no offload of parameters alone.
enum class EstimatorOffload : std::uint8_t { None, Optimizer, OptimizerAndParameters };

struct Estimate {
  Bytes per_gpu;
  Bytes per_cpu;  // Host memory of one node.
  friend bool operator==(const Estimate&, const Estimate&) = default;
};

// The largest sum of DIRECT parameters of one module: usually the embedding.
[[nodiscard]] Elements largest_layer(const ModelSpec& model);

// Both refuse releases before 0.4.2, counts below 1 node or 1 GPU, and negative sizes. ZeRO-2 refuses
// OptimizerAndParameters.
[[nodiscard]] Estimate estimate_zero2(const EstimatorInput& input, EstimatorOffload offload, const Version& deepspeed);
[[nodiscard]] Estimate estimate_zero3(const EstimatorInput& input, EstimatorOffload offload, bool zero_init,
                                      const Version& deepspeed);

}  // namespace dsplan
