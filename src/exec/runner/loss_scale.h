// The loss scale of fp16 training while a run goes on.
//
// Sources: DeepSpeed 0.19.8 runtime/fp16/loss_scaler.py (DynamicLossScaler.update_scale) and fused_optimizer.py
// (_update_scale); torch 2.11 torch/amp/grad_scaler.py and ATen/native/cuda/AmpKernels.cu (amp_update_scale).
#pragma once

#include "core/training.h"

namespace dsplan::exec {

class LossScale {
 public:
  explicit LossScale(const LossScaling& rules);

  [[nodiscard]] double now() const { return now_; }
  // Whether steps with gradients that are not finite are left out.
  [[nodiscard]] bool looks() const { return rules_.kind != LossScaling::Kind::None; }
  // DeepSpeed moves the scale when it knows of the overflow, before gradients are divided by it: in a step in which the
  // scale grows they are divided by twice what the loss was multiplied by. torch does so after the step.
  [[nodiscard]] bool moves_before_update() const { return rules_.kind != LossScaling::Kind::GradScaler; }
  // Once in each step. False: the scale is as small as it may be, and DeepSpeed ends the training.
  [[nodiscard]] bool step(bool overflow);

 private:
  void grow();

  LossScaling rules_;
  double now_;
  std::int64_t steps_ = 0;
  std::int64_t last_overflow_ = -1;
  std::int64_t hysteresis_;
};

}  // namespace dsplan::exec
