// How the loss of fp16 training is scaled, and how the scale moves. No byte depends on it; only an executor asks.
#pragma once

#include <cstdint>

namespace dsplan {

struct LossScaling {
  // Static: fixed; a step whose gradients are not finite is left out nevertheless.
  enum class Kind : std::uint8_t {
    None,        // 1, and nobody looks.
    Static,      // fp16.loss_scale.
    Fused,       // DeepSpeed's FP16_Optimizer, without ZeRO: no hysteresis.
    Dynamic,     // DeepSpeed's DynamicLossScaler, under ZeRO.
    GradScaler,  // torch.amp.GradScaler.
  };
  Kind kind = Kind::None;
  double scale = 1;  // At first. All powers of two are exact.
  std::int64_t window = 1000;
  double least = 1;
  std::int64_t hysteresis = 2;  // So many overflows halve the scale. Dynamic only, as is the next.
  bool refills = false;         // fp16.consecutive_hysteresis.
};

}  // namespace dsplan
