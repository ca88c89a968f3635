#include "planner/lower/runtimes/torchao/torchao_step.h"

#include <algorithm>

#include "planner/lower/runtimes/optimizer_state.h"

namespace dsplan {

TorchaoTemporaries::~TorchaoTemporaries() noexcept(false) {
  if (moments_first) {
    for (Variable& made : moments) made.reset();
  }
  for (std::size_t at = 0; at < 2; ++at) {
    moments[at].reset();
    codes[at].reset();
    scales[at].reset();
  }
}

TorchaoStep::TorchaoStep(OptimizerKind kind, Bytes l2, Emitter& emitter) : kind_(kind), l2_(l2), eager_(emitter) {}

Variable TorchaoStep::scratch(Bytes size, DType dtype, Label label) {
  Variable made = eager_.scratch(size, dtype, {Role::Temporaries, label, "torchao/optim/adam.py, single_param_adam"});
  eager_.zero(Part(made), label);
  return made;
}

// New scales, and between two kernels what the next one reads: both moments in fp32, in 4 bits their codes in int64 as
// well; in fp8 the new codes, where rows are whole blocks.
TorchaoTemporaries TorchaoStep::make(const Shape& shape, DType dtype, double weight_decay) {
  TorchaoTemporaries made;
  const Elements elements = shape.elements();
  if (torchao_quantizes(kind_, elements.value())) {
    const Bytes scale = storage(div_floor(elements, torchao_block(kind_)), DType::Float32);
    const DType wide = kind_ == OptimizerKind::AoAdamWFp8 ? DType::UInt8 : DType::Float32;
    for (Variable& one : made.scales) one = scratch(scale, DType::Float32, "new scales");
    const bool fits = wide == DType::Float32 || shape.dims[shape.rank - 1U] % torchao_block(kind_) == 0;
    if (fits) {
      for (Variable& one : made.moments) one = scratch(storage(elements, wide), wide, "new moment");
    }
    if (kind_ == OptimizerKind::AoAdamW4bit) {
      for (Variable& one : made.codes) one = scratch(storage(elements, DType::Int64), DType::Int64, "codes in int64");
    }
    made.moments_first = kind_ == OptimizerKind::AoAdamW8bit;
  }
  tune({shape, dtype, weight_decay});
  return made;
}

// Inductor's first call of a kernel tries configurations and flushes the L2 cache by a tensor as large before each
// (_inductor/runtime/benchmarking.py, benchmark_gpu). What the kernel writes in place is copied before: on the device
// where that raises no peak, else to the host (triton_heuristics.py, copy_args_to_cpu_if_needed). A cache on disk that
// knows the kernel spares all that.
void TorchaoStep::tune(const Compiled& wanted) {
  if (std::find(compiled_.begin(), compiled_.end(), wanted) != compiled_.end()) return;
  compiled_.push_back(wanted);
  if (l2_ > Bytes(0)) scratch(l2_, DType::Int32, "what flushes the cache").reset();
}

}  // namespace dsplan
