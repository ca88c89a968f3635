// The catalogue: normalisation.
#include <algorithm>

#include "model/catalogue/rules.h"

namespace dsplan::rules {
namespace {

// Statistics are kept in the accumulate type.
DType accumulate_type(DType dtype) { return dtype == DType::Float64 ? DType::Float64 : DType::Float32; }

// One call makes every gradient that is needed.
void gradients_at_once(Writer& w, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (w.has_in(i) && w.needs(i)) w.allocate_gradient(i);
  }
  w.backward_kernel();
}

Elements rows_of(const Writer& w) {
  const Shape& shape = w.in(0).shape;
  return Elements(shape.elements().value() / std::max<std::int64_t>(1, shape.dims[shape.rank - 1U]));
}

// Mean and reciprocal deviation of `count` groups.
void with_statistics(Writer& w, Elements count, DType dtype) {
  w.save_input(0, "_saved_input");
  if (w.has_in(1)) w.save_input(1, "_saved_weight");
  w.output();
  w.extra(0, storage(count, dtype), dtype, Visibility::Dispatch);
  w.extra(1, storage(count, dtype), dtype, Visibility::Dispatch);
  w.kernel();
  w.save_extra(0, "_saved_result1");
  w.save_extra(1, "_saved_result2");
}

}  // namespace

// Input, weight, and per row mean and rstd (layer_norm_kernel.cu). An input that does not lie row by row is copied,
// forward and backward.
void layer_norm(Writer& w) {
  const bool copied = w.node().by_head;
  if (copied) w.forward_temporary(w.bytes_in(0), w.in(0).dtype, Visibility::Kernel);
  with_statistics(w, rows_of(w), accumulate_type(w.in(0).dtype));
  if (w.has_in(2)) w.save_input(2, "_saved_bias");
  if (copied && w.node().requires_grad) w.allocate_temporary(w.bytes_in(0), w.in(0).dtype, Visibility::Kernel);
  gradients_at_once(w, 3);
}

// Per row of the batch and group; in the input's dtype unless the weight's is wider (group_norm.cpp,
// native_group_norm).
void group_norm(Writer& w) {
  const auto groups = static_cast<std::int64_t>(w.node().number);
  with_statistics(w, Elements(checked_mul(w.in(0).shape.dims[0], groups)), w.in(w.has_in(1) ? 1 : 0).dtype);
  gradients_at_once(w, 3);
}

// Per channel. The running statistics are kept by reference. The input's gradient is made whether it is needed or not,
// and cuDNN, which takes images unless they are bfloat16, makes all three and adds a reserve (Normalization.cpp,
// _batch_norm_impl_index).
void batch_norm(Writer& w) {
  with_statistics(w, Elements(w.in(0).shape.dims[1]), accumulate_type(w.in(0).dtype));
  if (w.has_in(3)) w.save_input(3, "_saved_running_mean");
  if (w.has_in(4)) w.save_input(4, "_saved_running_var");
  const bool cudnn = w.in(0).shape.rank > 2 && w.in(0).dtype != DType::BFloat16;
  if (cudnn) w.unknown("cuDNN's reserve and workspace of batch_norm");
  if (!w.node().requires_grad) return;
  for (std::size_t i = 0; i < 3 && w.has_in(i); ++i) {
    if (w.needs(i)) {
      w.allocate_gradient(i);
    } else if (i == 0 || cudnn) {
      w.allocate_temporary(w.bytes_in(i), w.in(i).dtype, Visibility::Dispatch);
    }
  }
  w.backward_kernel();
}

// Input, weight and rstd per row (layer_norm_kernel.cu, _fused_rms_norm_cuda).
void rms_norm(Writer& w) {
  const DType accumulate = accumulate_type(w.in(0).dtype);
  w.save_input(0, "_saved_input");
  if (w.has_in(1)) w.save_input(1, "_saved_weight");
  w.output();
  w.extra(0, storage(rows_of(w), accumulate), accumulate, Visibility::Dispatch);
  w.kernel();
  w.save_extra(0, "_saved_result1");
  gradients_at_once(w, 2);
}

}  // namespace dsplan::rules
