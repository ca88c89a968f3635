// The tensors that optimizers keep, by the shape and the dtype of what they update.
#pragma once

#include <vector>

#include "core/schedule.h"
#include "core/training.h"

namespace dsplan {

// One tensor of optimizer state.
struct StateTensor {
  Bytes bytes;
  DType dtype = DType::Float32;
  Label label = "";
  bool paged = false;  // In managed memory.
};
// State that the optimizer keeps for one tensor of `shape` whose own dtype is `dtype`, in order of creation.
// Sources: torch/optim/{adam,sgd,adafactor,muon}.py, transformers' Adafactor, bitsandbytes' blockwise 8-bit Adam
// (two bytes and two fp32 scales per 256 elements; tensors below 4,096 elements stay fp32).
// `hidden_matrix`: a 2-D weight that is neither embedding nor head; only Muon cares.
[[nodiscard]] std::vector<StateTensor> optimizer_state(const Optimizer& optimizer, const Shape& shape, DType dtype,
                                                       bool hidden_matrix);

// The same where the optimizer works on the parameters themselves, under plain PyTorch: torch's fused Adam counts its
// steps on the device; bitsandbytes' 32-bit states are fp32 whatever the parameter's dtype, and embeddings are among
// them where transformers' Trainer registers them (trainer.py, create_optimizer).
[[nodiscard]] std::vector<StateTensor> separate_state(const Optimizer& optimizer, const Shape& shape, DType dtype,
                                                      bool hidden_matrix, bool embedding);

// torchao's: elements that share a scale, and whether so many are kept in few bits.
[[nodiscard]] std::int64_t torchao_block(OptimizerKind kind);
[[nodiscard]] bool torchao_quantizes(OptimizerKind kind, std::int64_t elements);

// Who makes DeepSpeed's states: FusedAdam, DeepSpeedCPUAdam, or the backup optimizer of a partial offload.
[[nodiscard]] Source state_source(const Training& training);

}  // namespace dsplan
