// The catalogue: elementwise operators, and reductions that are as simple.
#include <array>

#include "model/catalogue_rules.h"

namespace dsplan::rules {

// No gradient: what comes from the batch, and integers.
void without_gradient(Writer& w) {
  w.output();
  w.kernel();
}

// One output, one kernel, gradient of the same size: the shape of most elementwise operators.
void unary(Writer& w) {
  w.output();
  w.kernel();
  w.gradient(0);
}

void unary_saving_input(Writer& w) {
  unary(w);
  w.save_input(0, "_saved_self");
}

// tanh, softmax and log_softmax (derivatives.yaml).
void unary_saving_result(Writer& w) {
  unary(w);
  w.save_output(0, "_saved_result");
}

// The gradient is the incoming one itself, or a view of it: a copy, the sum with a constant, a sum over a dimension.
void passing(Writer& w) {
  w.output();
  w.kernel();
  w.pass(0);
}

// The gradient is an expanded view of the incoming one.
void sum_dim(Writer& w) {
  passing(w);
  w.passes_part();
}

// Both operands receive the incoming gradient itself; one that was broadcast receives its sum.
void add(Writer& w) {
  w.output();
  w.kernel();
  for (std::size_t i : {0U, 1U}) {
    if (w.is_broadcast(i)) {
      w.gradient(i);
    } else {
      w.pass(i);
    }
  }
}

void multiply(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_other", w.needs(0));
  w.save_input(0, "_saved_self", w.needs(1));
  w.broadcast_gradients({0, 1});
}

// First -grad * ((self / other) / other), then grad / other (FunctionsManual.cpp, div_tensor_{self,other}_grad; the
// order is that of the generated DivBackward0).
void divide(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(1, "_saved_other");
  w.save_input(0, "_saved_self", w.needs(1));
  const Bytes full = storage(w.out().shape.elements(), w.out().dtype);
  const auto gradient_at_full_size = [&](std::size_t i) {
    if (w.is_broadcast(i)) return w.temporary(full, w.out().dtype);
    w.gradient(i);
    return std::uint8_t{0};
  };
  std::array<std::uint8_t, 2> summed{};
  if (w.needs(1)) {
    const std::array inside = {w.temporary(full, w.out().dtype), w.temporary(full, w.out().dtype),
                               w.temporary(full, w.out().dtype)};
    summed[1] = gradient_at_full_size(1);
    for (const std::uint8_t made : inside) w.drop(made);
  }
  if (w.needs(0)) summed[0] = gradient_at_full_size(0);
  w.function_returns();
  for (const std::size_t i : {0U, 1U}) {
    if (!w.needs(i) || !w.is_broadcast(i)) continue;
    w.gradient(i);
    w.drop(summed[i]);
  }
}

// exponent * self.pow(exponent - 1), then the product: three tensors at once (FunctionsManual.cpp, pow_backward).
void power(Writer& w) {
  w.output();
  w.kernel();
  w.save_input(0, "_saved_self");
  if (!w.needs(0)) return;
  const Bytes full = storage(w.in(0).shape.elements(), w.in(0).dtype);
  w.temporary(full, w.in(0).dtype);
  w.temporary(full, w.in(0).dtype);
  w.gradient(0);
}

// -0.5 * grad * result.pow(3) (derivatives.yaml: rsqrt).
void reciprocal_root(Writer& w) {
  w.output();
  w.kernel();
  w.save_output(0, "_saved_result");
  if (!w.needs(0)) return;
  const Bytes full = storage(w.out().shape.elements(), w.out().dtype);
  w.temporary(full, w.out().dtype);
  w.temporary(full, w.out().dtype);
  w.gradient(0);
}

void masked_fill(Writer& w) {
  unary(w);
  w.save_input(1, "_saved_mask");
}

void masked_fill_in_place(Writer& w) {
  w.in_place();
  w.kernel();
  w.save_input(1, "_saved_mask");
  w.gradient(0);
}

// A bool mask, one byte per element, made before the output (Dropout.cu, dropout_cuda).
void dropout(Writer& w) {
  w.extra(0, storage(w.out().shape.elements(), DType::Bool), DType::Bool, Visibility::Dispatch);
  w.output();
  w.kernel();
  w.save_extra(0, "_saved_result1");
  w.gradient(0);
}

}  // namespace dsplan::rules
