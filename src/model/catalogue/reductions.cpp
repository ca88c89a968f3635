// The catalogue: reductions and scans. Formulas are those of PyTorch's tools/autograd/derivatives.yaml and
// torch/csrc/autograd/FunctionsManual.cpp.
#include <algorithm>

#include "model/catalogue/rules.h"

namespace dsplan::rules {
namespace {

// A tensor of the input's shape.
std::uint8_t wide(Writer& w, DType dtype) { return w.temporary(storage(w.in(0).shape.elements(), dtype), dtype); }
std::uint8_t wide(Writer& w) { return wide(w, w.in(0).dtype); }
// A tensor of the output's shape.
std::uint8_t narrow(Writer& w, DType dtype) { return w.full_temporary(dtype); }
std::uint8_t narrow(Writer& w) { return w.full_temporary(); }

void saving_both(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  w.save_output(0, "_saved_result");
}

// 2 / (n - 1) * grad * (self - mean) (var_backward).
void through_variance(Writer& w) {
  narrow(w);
  wide(w);
  narrow(w);
  w.gradient(0);
}

// The kernel reads grad * output, which it makes first (SoftMax.cu, softmax_backward_cuda_out); that of the logarithm
// does not. `widened`: the gradient is made in the result's dtype and cast.
void through_softmax(Writer& w, bool widened) {
  if (!w.needs(0)) return;
  if (widened) {
    w.allocate_temporary(w.bytes_out(), w.out().dtype, Visibility::Dispatch);
  } else {
    w.allocate_gradient(0);
  }
  if (w.node().op == Op::LogSoftmax) {
    w.backward_kernel();
  } else {
    w.drop(w.temporary(w.bytes_out(), w.out().dtype, Visibility::Kernel));
  }
  if (widened) w.gradient(0);
}

}  // namespace

// The gradient is an expanded view of the incoming one, which the engine copies where the sum is wider than what it
// adds (validate_outputs). What is counted is copied to whole numbers first (ReduceOps.cpp, make_reduction).
void sum_dim(Writer& w) {
  w.output();
  const bool counts = w.in(0).dtype == DType::Bool || (w.in(0).dtype == DType::Int32 && w.out().dtype == DType::Int64);
  if (counts) w.forward_temporary(storage(w.in(0).shape.elements(), w.out().dtype), w.out().dtype, Visibility::Kernel);
  const Shape& from = w.in(0).shape;
  const Shape& to = w.out().shape;
  // Of all tokens' marks, side by side (the loop over experts that are hit).
  const bool by_column = !counts && w.in(0).dtype == DType::Int64 && from.rank == 3 && to.rank == 1;
  if (by_column && from.dims[2] == to.dims[0]) {
    forward_reduced_kernel(w, summed_to({from.dims.data(), from.rank}, {to.dims.data(), to.rank}), Bytes(8));
  } else {
    w.kernel();
  }
  if (is_floating(w.in(0).dtype) && w.in(0).dtype != w.out().dtype) {
    if (w.needs(0)) w.gradient(0);
    return;
  }
  w.pass(0);
  w.passes_part();
}

// (grad / mask.sum()) * mask with mask = (result == self) (scale_grad_by_count).
void extreme_value(Writer& w) {
  saving_both(w);
  if (!w.needs(0)) return;
  wide(w, DType::Bool);
  narrow(w, DType::Int64);
  narrow(w);
  w.gradient(0);
}

// Over all: mask * (grad / mask.sum()), the mask chosen by whether the result is a NaN (evenly_distribute_backward).
// Over a dimension: values and indices.
void largest(Writer& w) {
  if (w.node().output_count == 2) {
    selection(w);
    return;
  }
  saving_both(w);
  if (!w.needs(0)) return;
  wide(w, DType::Bool);
  narrow(w, DType::Bool);
  wide(w, DType::Bool);
  wide(w, DType::Bool);
  narrow(w, DType::Int64);
  narrow(w);
  w.gradient(0);
}

// Order 1: grad * sgn; 2: grad * (self / norm), 0 where the norm is; others: powers of self and of the norm
// (linalg_vector_norm_backward).
void norm(Writer& w) {
  saving_both(w);
  if (!w.needs(0)) return;
  const double order = w.node().number;
  const std::uint8_t scaled = wide(w);
  if (order == 2) narrow(w, DType::Bool);
  if (order != 1 && order != 2) {
    wide(w);
    w.drop(scaled);
    const std::uint8_t power = narrow(w);
    narrow(w);
    w.drop(power);
    w.drop(narrow(w, DType::Bool));
  }
  w.gradient(0);
}

// (grad / (2 * result)).masked_fill_(result == 0, 0), then as the variance (std_backward).
void deviation(Writer& w) {
  saving_both(w);
  if (!w.needs(0)) return;
  const std::uint8_t doubled = narrow(w);
  narrow(w);
  w.drop(narrow(w, DType::Bool));
  w.drop(doubled);
  through_variance(w);
}

void variance(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  if (w.needs(0)) through_variance(w);
}

// grad * (result / input) where no element is zero, which the host asks the device (prod_backward).
void product(Writer& w) {
  saving_both(w);
  if (!w.needs(0)) return;
  w.drop(wide(w, DType::Bool));
  wide(w);
  w.gradient(0);
}

// ReduceOps.cpp, logsumexp_out_impl: the largest, and where it is infinite; exponentials of all that is left.
void log_sum_exp(Writer& w) {
  w.save_input(0, "_saved_self");
  const DType dtype = w.out().dtype;
  const std::uint8_t largest = w.forward_temporary(w.bytes_out(), dtype, Visibility::Kernel);
  const std::uint8_t absolute = w.forward_temporary(w.bytes_out(), dtype, Visibility::Kernel);
  const std::uint8_t infinite =
      w.forward_temporary(storage(w.out().shape.elements(), DType::Bool), DType::Bool, Visibility::Kernel);
  w.forward_drop(infinite);
  w.forward_drop(absolute);
  const std::uint8_t exponentials =
      w.forward_temporary(storage(w.in(0).shape.elements(), dtype), dtype, Visibility::Kernel);
  w.output();
  w.kernel();
  w.forward_drop(exponentials);
  w.forward_drop(largest);
  w.save_output(0, "_saved_result");
  if (!w.needs(0)) return;
  wide(w);
  wide(w);
  w.gradient(0);
}

// Integers are cast to the result's dtype first (ReduceOps.cpp, impl_func_cum_ops). Backward flips, sums and flips
// (cumsum_backward).
void cumulative_sum(Writer& w) {
  w.output();
  if (w.in(0).dtype != w.out().dtype) {
    w.extra(0, w.bytes_out(), w.out().dtype, Visibility::Kernel);
  }
  const Shape& sums = w.out().shape;
  const bool one_row = sums.rank > 0 && sums.elements().value() == sums.dims[sums.rank - 1U];
  const bool alone = one_row && w.options().device.capability > 0;
  const std::uint8_t cubs =
      alone
          ? w.forward_temporary(row_scan_scratch(w.out().shape.elements().value(), storage(Elements(1), w.out().dtype)),
                                DType::UInt8, Visibility::Kernel)
          : std::uint8_t{0};
  w.kernel();
  if (alone) w.forward_drop(cubs);
  if (!w.needs(0)) return;
  w.full_temporary();
  w.full_temporary();
  w.gradient(0);
}

// Where no element is zero: the reversed cumulative sum of result * grad, divided by the input (cumprod_backward).
void cumulative_product(Writer& w) {
  saving_both(w);
  if (!w.needs(0)) return;
  wide(w);
  w.drop(wide(w, DType::Bool));
  wide(w);
  wide(w);
  w.gradient(0);
}

// A plain softmax, flags of what is minus infinity, their conjunction by row, and zeros written where it holds, all
// below the dispatcher (aten/src/ATen/native/transformers/attention.cpp). The zero is filled on the device, for a
// moment.
void safe_softmax(Writer& w) {
  const Shape& shape = w.in(0).shape;
  const std::int64_t rows = shape.elements().value() / std::max<std::int64_t>(1, shape.dims[shape.rank - 1U]);
  w.output();
  w.kernel();
  const std::uint8_t flags =
      w.forward_temporary(storage(shape.elements(), DType::Bool), DType::Bool, Visibility::Kernel);
  w.kernel();
  const std::uint8_t by_row =
      w.forward_temporary(storage(Elements(rows), DType::Bool), DType::Bool, Visibility::Kernel);
  w.kernel();
  const std::uint8_t zero = w.forward_temporary(storage(Elements(1), w.out().dtype), w.out().dtype, Visibility::Kernel);
  w.kernel();
  for (const std::uint8_t one : {zero, by_row, flags}) w.forward_drop(one);
  w.save_output(0, "_saved_result");
  through_softmax(w, false);
}

// The result may be wider than the input: float32 of bfloat16 is computed on a copy, float32 of float16 in the kernel
// (SoftMax.cpp, softmax: only half is converted while it is read). What does not lie row by row is copied first
// (SoftMax.cu, host_softmax).
void softmax(Writer& w) {
  if (w.node().safe) return safe_softmax(w);
  const bool copies = w.in(0).dtype != w.out().dtype && w.in(0).dtype != DType::Float16;
  if (copies) {
    w.forward_temporary(w.bytes_out(), w.out().dtype);
    w.kernel();
  }
  const bool strided = w.node().op == Op::LogSoftmax && w.node().number == 1;
  const std::uint8_t rows =
      strided ? w.forward_temporary(w.bytes_in(0), w.in(0).dtype, Visibility::Kernel) : std::uint8_t{0};
  w.output();
  w.kernel();
  if (strided) w.forward_drop(rows);
  w.save_output(0, "_saved_result");
  through_softmax(w, copies);
}

}  // namespace dsplan::rules
