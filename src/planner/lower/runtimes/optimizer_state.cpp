#include "planner/lower/runtimes/optimizer_state.h"

#include <string_view>

namespace dsplan {

namespace {

// Row and column statistics for matrices (over the last two dimensions), a full moment for vectors; always fp32.
std::vector<StateTensor> adafactor_state(const Shape& shape) {
  const std::int64_t elements = shape.elements().value();
  if (shape.rank < 2 || elements == 0)
    return {{storage(Elements(elements), DType::Float32), DType::Float32, "exp_avg_sq"}};
  const std::int64_t rows = elements / shape.dims[shape.rank - 1U];
  const std::int64_t columns = elements / shape.dims[shape.rank - 2U];
  return {{storage(Elements(rows), DType::Float32), DType::Float32, "exp_avg_sq_row"},
          {storage(Elements(columns), DType::Float32), DType::Float32, "exp_avg_sq_col"}};
}

std::vector<StateTensor> adam8bit_state(std::int64_t elements) {
  if (elements < 4096) {
    const Bytes full = storage(Elements(elements), DType::Float32);
    return {{full, DType::Float32, "exp_avg"}, {full, DType::Float32, "exp_avg_sq"}};
  }
  const Bytes scales = storage(div_ceil(Elements(elements), 256), DType::Float32);
  const Bytes quantised = storage(Elements(elements), DType::UInt8);
  return {{quantised, DType::UInt8, "exp_avg"},
          {quantised, DType::UInt8, "exp_avg_sq"},
          {scales, DType::Float32, "absmax of exp_avg"},
          {scales, DType::Float32, "absmax of exp_avg_sq"}};
}

std::vector<StateTensor> lion8bit_state(std::int64_t elements) {
  if (elements < 4096) return {{storage(Elements(elements), DType::Float32), DType::Float32, "exp_avg"}};
  return {{storage(Elements(elements), DType::UInt8), DType::UInt8, "exp_avg"},
          {storage(div_ceil(Elements(elements), 256), DType::Float32), DType::Float32, "absmax of exp_avg"}};
}

// A fast and a slow average in one tensor, and the squares' (optim/ademamix.py, init_state).
std::vector<StateTensor> ademamix_state(std::int64_t elements, bool in_8bit) {
  const DType dtype = in_8bit && elements >= 4096 ? DType::UInt8 : DType::Float32;
  const Bytes one = storage(Elements(elements), dtype);
  std::vector<StateTensor> state = {{one * 2, dtype, "exp_avg, fast and slow"}, {one, dtype, "exp_avg_sq"}};
  if (dtype != DType::UInt8) return state;
  const Bytes scales = storage(div_ceil(Elements(elements), 256), DType::Float32);
  state.insert(state.begin(),
               {{scales * 2, DType::Float32, "absmax of exp_avg"}, {scales, DType::Float32, "absmax of exp_avg_sq"}});
  return state;
}

// Codes, scales and, but for fp8, a map of each moment (torchao 0.18, optim/subclass_{8bit,4bit,fp8}.py). What is small
// or no whole number of blocks is kept in its own dtype (optim/adam.py, _new_buffer).
std::vector<StateTensor> torchao_state(OptimizerKind kind, std::int64_t elements, DType dtype) {
  const bool half = kind == OptimizerKind::AoAdamW4bit;
  if (!torchao_quantizes(kind, elements)) {
    const Bytes same = storage(Elements(elements), dtype);
    return {{same, dtype, "exp_avg"}, {same, dtype, "exp_avg_sq"}};
  }
  const Bytes codes = storage(Elements(half ? elements / 2 : elements), DType::UInt8);
  const Bytes scales = storage(Elements(elements / torchao_block(kind)), DType::Float32);
  const Bytes map = kind == OptimizerKind::AoAdamWFp8 ? Bytes(0) : Bytes(half ? 16 * 4 : 256 * 4);
  return {{codes, DType::UInt8, "codes of exp_avg"},        {scales, DType::Float32, "scales of exp_avg"},
          {map, DType::Float32, "map of exp_avg"},          {codes, DType::UInt8, "codes of exp_avg_sq"},
          {scales, DType::Float32, "scales of exp_avg_sq"}, {map, DType::Float32, "map of exp_avg_sq"}};
}

// What get_state_buffer makes goes to managed memory; scales do not (optim/optimizer.py).
void page(std::vector<StateTensor>& state, std::int64_t elements) {
  if (elements < 100'000) return;
  for (StateTensor& tensor : state) tensor.paged = !std::string_view(tensor.label).starts_with("absmax");
}

}  // namespace

std::int64_t torchao_block(OptimizerKind kind) { return kind == OptimizerKind::AoAdamW4bit ? 128 : 256; }

bool torchao_quantizes(OptimizerKind kind, std::int64_t elements) {
  return elements >= 4096 && elements % torchao_block(kind) == 0;
}

std::vector<StateTensor> optimizer_state(const Optimizer& optimizer, const Shape& shape, DType dtype,
                                         bool hidden_matrix) {
  const Bytes same = storage(shape.elements(), dtype);
  switch (optimizer.kind) {
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: return {{same, dtype, "exp_avg"}, {same, dtype, "exp_avg_sq"}};
    case OptimizerKind::Sgd:
      if (optimizer.momentum > 0) return {{same, dtype, "momentum_buffer"}};
      return {};
    case OptimizerKind::Lion: return {{same, dtype, "exp_avg"}};
    case OptimizerKind::Adagrad: return {{same, dtype, "sum"}};
    case OptimizerKind::RmsProp:
      if (optimizer.momentum > 0) return {{same, dtype, "square_avg"}, {same, dtype, "momentum_buffer"}};
      return {{same, dtype, "square_avg"}};
    case OptimizerKind::Adafactor: return adafactor_state(shape);
    case OptimizerKind::Adam8bit: return adam8bit_state(shape.elements().value());
    case OptimizerKind::Lion8bit: return lion8bit_state(shape.elements().value());
    case OptimizerKind::AdEmaMix: return ademamix_state(shape.elements().value(), false);
    case OptimizerKind::AdEmaMix8bit: return ademamix_state(shape.elements().value(), true);
    case OptimizerKind::AoAdamW8bit:
    case OptimizerKind::AoAdamW4bit:
    case OptimizerKind::AoAdamWFp8: return torchao_state(optimizer.kind, shape.elements().value(), dtype);
    case OptimizerKind::AdamW32bit: {
      const Bytes full = storage(shape.elements(), DType::Float32);
      return {{full, DType::Float32, "exp_avg"}, {full, DType::Float32, "exp_avg_sq"}};
    }
    case OptimizerKind::Muon:
      if (hidden_matrix) return {{same, dtype, "momentum_buffer"}};
      return {{same, dtype, "exp_avg"}, {same, dtype, "exp_avg_sq"}};
  }
  return {};
}

std::vector<StateTensor> separate_state(const Optimizer& optimizer, const Shape& shape, DType dtype, bool hidden_matrix,
                                        bool embedding) {
  const bool adam = optimizer.kind == OptimizerKind::Adam || optimizer.kind == OptimizerKind::AdamW;
  Optimizer own = optimizer;
  if (embedding && optimizer.embeddings_32bit && quantizes_states(optimizer.kind)) {
    own.kind = optimizer.kind == OptimizerKind::Lion8bit       ? OptimizerKind::Lion
               : optimizer.kind == OptimizerKind::AdEmaMix8bit ? OptimizerKind::AdEmaMix
                                                               : OptimizerKind::AdamW32bit;
  }
  // bitsandbytes' Lion, whose states are fp32 whatever the parameter is.
  const DType kept = own.kind == OptimizerKind::Lion ? DType::Float32 : dtype;
  std::vector<StateTensor> state = optimizer_state(own, shape, kept, hidden_matrix);
  if (optimizer.paged) page(state, shape.elements().value());
  if (adam && optimizer.implementation == Implementation::Fused) {
    state.insert(state.begin(), {Bytes(4), DType::Float32, "step"});
  }
  return state;
}

Source state_source(const Training& training) {
  if (training.runtime == Runtime::PyTorch) return "";
  const bool away = training.zero.offload_optimizer.device != OffloadDevice::None;
  if (!away) return "deepspeed/ops/adam/fused_adam.py, FusedAdam.step";
  const bool partial = training.zero.offload_optimizer.ratio < 1 && training.deepspeed >= Version{0, 13, 3};
  return partial ? "torch/optim/adam.py, AdamW.step" : "deepspeed/ops/adam/cpu_adam.py, DeepSpeedCPUAdam.step";
}

}  // namespace dsplan
