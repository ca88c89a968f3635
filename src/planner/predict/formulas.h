// Closed forms of the ZeRO papers, in integer bytes. They are the sanity check and the vocabulary of `show formulas`,
// never the model of a run: what DeepSpeed really allocates comes from the schedule.
//
//   [1] Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3 and 5, tables 1 and 2
//   [2] Ren et al., ZeRO-Offload, arXiv 2101.06840, section 3
//   [3] Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857, section 3
#pragma once

#include <array>
#include <cstdint>

#include "core/model.h"
#include "core/training.h"
#include "core/units.h"

namespace dsplan {

// Bytes that one parameter costs in each of the three model states.
struct StateWidths {
  std::int64_t parameter = 2;   // fp16 or bf16.
  std::int64_t gradient = 2;    // fp16 or bf16.
  std::int64_t optimizer = 12;  // K of [1].
};
// Mixed-precision Adam of [1]: K = 12 is the fp32 copy, momentum and variance; 16 bytes in all.
inline constexpr StateWidths kAdam16{2, 2, 12};
// [3] counts an fp32 gradient as well; 20 bytes in all.
inline constexpr StateWidths kAdam20{2, 2, 16};

struct PaperStates {
  Bytes parameters;
  Bytes gradients;
  Bytes optimizer;
  [[nodiscard]] Bytes total() const { return parameters + gradients + optimizer; }
};

// Model states of one rank [1, table 1]. Stage 1 divides the optimizer states by the data-parallel `degree`, stage 2
// the gradients as well, stage 3 the parameters as well; `model_parallel` divides the model first. A share that does
// not come out even is rounded up to whole elements, as some rank has to hold it.
// Refuses a stage outside 0..3, a degree below 1, a negative count.
[[nodiscard]] PaperStates paper_states(Elements parameters, int stage, std::int64_t degree,
                                       std::int64_t model_parallel = 1, const StateWidths& widths = kAdam16);

// The largest model whose states fit `budget` on each rank: activations and buffers count nothing [1, table 2, left].
[[nodiscard]] Elements largest_model(Bytes budget, int stage, std::int64_t degree, std::int64_t model_parallel = 1,
                                     const StateWidths& widths = kAdam16);

// Elements that a rank sends per optimizer step as [1, section 7] counts them, with (W - 1) / W taken as 1: 2 N for
// stages 0 to 2, 3 N for stage 3. DeepSpeed's stages 1 and 2 move more, because they all-reduce gradients.
[[nodiscard]] Elements paper_traffic(Elements parameters, int stage);

// The four ways to cut the data flow that move the fewest bytes over the host link [2, table 1].
struct OffloadCut {
  const char* on_device;             // What stays on the GPU.
  std::int64_t bytes_per_parameter;  // On the GPU.
};
inline constexpr std::array<OffloadCut, 4> kOffloadCuts{{
    {"everything", 16},
    {"all but 16-bit gradients", 14},
    {"16-bit parameters and gradients", 4},
    {"16-bit parameters (ZeRO-Offload)", 2},
}};

// A stack of transformer blocks as [3] sees it; embeddings and norms are left out.
struct TransformerShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
};

// 12 L h^2 parameters [3, section 3].
[[nodiscard]] Elements transformer_parameters(const TransformerShape& shape);
// 240 L h^2: 20 bytes for each of them, over all devices [3, section 3].
[[nodiscard]] Bytes transformer_states(const TransformerShape& shape);
// 2 bsz seq h L / ci: 16-bit inputs of every ci-th block [3, section 3]. Rounded up.
[[nodiscard]] Bytes checkpoint_bytes(const TransformerShape& shape, std::int64_t batch, std::int64_t seq,
                                     std::int64_t interval);
// bsz seq ci (16 h + 2 heads seq): what lives between two checkpoints [3, section 3].
[[nodiscard]] Bytes activation_working_memory(const TransformerShape& shape, std::int64_t batch, std::int64_t seq,
                                              std::int64_t interval);
// 16 h^2: 16-bit parameters and gradients of the largest operator, the h to 4h linear [3, section 3].
[[nodiscard]] Bytes state_working_memory(const TransformerShape& shape);

// What DeepSpeed's own memory estimators answer, to the byte, so that a user can hold them beside dsplan's figure.
// Source: estimate_zero2_model_states_mem_needs (runtime/zero/stage_1_and_2.py, in early releases stage2.py) and
// estimate_zero3_model_states_mem_needs (runtime/zero/stage3.py). They appear with release 0.4.2; the ZeRO-2 figure
// without offload changed in release 0.14.3 (PR #5099), the ZeRO-3 figures never did. There is none for ZeRO-1.
//
// They count model states only and assume 16-bit Adam training. The host figures carry a safety factor of 3/2.
// Rounding: each quotient is cut to whole bytes, as Python's int() does. Python computes in double precision, so
// beyond 2^53 bytes its own answer can be off by a rounding; ours is exact.

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
