// torch.autocast as the graph builder writes it: casts of operands, and the cache of weights.
#include "model/graphs/builder.h"

namespace dsplan {
namespace {

bool is_float(DType type) {
  return type == DType::Float32 || type == DType::BFloat16 || type == DType::Float16 || type == DType::Float64;
}

}  // namespace

// cached_cast in ATen/autocast_mode.cpp: the copy of an fp32 leaf that requires a gradient is made once.
TensorId GraphBuilder::lowered(TensorId x) {
  if (x == kNone || !options_.autocast || !autocast_enabled_) return x == kNone ? x : keep(x);
  const DType to = *options_.autocast;
  const Tensor& tensor = graph_.tensor(x);
  if (!is_float(tensor.dtype) || tensor.dtype == DType::Float64 || tensor.dtype == to) return keep(x);
  const ParameterId parameter = graph_.storage_of(x).parameter;
  const bool leaf = parameter != kNone && tensor.producer == kNone && tensor.requires_grad;
  const bool cached = leaf && tensor.dtype == DType::Float32;
  if (!cached) return cast(x, to);
  TensorId& copy = autocast_cache_[static_cast<std::size_t>(parameter)];
  if (copy == kNone) copy = cast(x, to);
  return keep(copy);
}

TensorId GraphBuilder::widened(TensorId x) {
  if (x == kNone || !options_.autocast || !autocast_enabled_ || !is_float(dtype(x))) return x == kNone ? x : keep(x);
  return cast(x, DType::Float32);
}

void GraphBuilder::leave_autocast() {
  for (TensorId& copy : autocast_cache_) {
    if (copy != kNone) drop({copy});
    copy = kNone;
  }
}

}  // namespace dsplan
