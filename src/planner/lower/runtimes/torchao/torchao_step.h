// What torchao's AdamW takes while it updates one parameter: buffers of what torch.compile makes of single_param_adam
// (torchao 0.18, optim/adam.py, under torch 2.11), measured on the dry device.
#pragma once

#include <array>
#include <vector>

#include "core/training.h"
#include "planner/lower/eager.h"

namespace dsplan {

// They go in the order of the compiled code, when the parameter is updated: moment by moment, or in 8 bits all moments
// before the scales.
struct TorchaoTemporaries {
  TorchaoTemporaries() = default;
  TorchaoTemporaries(TorchaoTemporaries&&) = default;
  TorchaoTemporaries& operator=(TorchaoTemporaries&&) = delete;
  TorchaoTemporaries(const TorchaoTemporaries&) = delete;
  TorchaoTemporaries& operator=(const TorchaoTemporaries&) = delete;
  ~TorchaoTemporaries() noexcept(false);

  std::array<Variable, 2> scales;
  std::array<Variable, 2> moments;
  std::array<Variable, 2> codes;
  bool moments_first = false;
};

class TorchaoStep {
 public:
  // `l2`: bytes of the device's cache, zero where nobody knows.
  TorchaoStep(OptimizerKind kind, Bytes l2, Emitter& emitter);

  [[nodiscard]] TorchaoTemporaries make(const Shape& shape, DType dtype, double weight_decay);

 private:
  // What one of the compiled kernels is made for.
  struct Compiled {
    Shape shape;
    DType dtype = DType::Float32;
    double weight_decay = 0;
    friend bool operator==(const Compiled&, const Compiled&) = default;
  };
  void tune(const Compiled& wanted);
  [[nodiscard]] Variable scratch(Bytes size, DType dtype, Label label);

  OptimizerKind kind_;
  Bytes l2_;
  Eager eager_;
  std::vector<Compiled> compiled_;  // And tuned by now.
};

}  // namespace dsplan
