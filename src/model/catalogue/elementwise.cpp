// The catalogue: elementwise operators. Formulas are those of PyTorch's tools/autograd/derivatives.yaml and
// torch/csrc/autograd/FunctionsManual.cpp; the temporaries of a C++ expression live until the expression ends.
#include <array>

#include "model/catalogue/rules.h"

namespace dsplan::rules {

// No gradient: what comes from the batch, and integers.
void without_gradient(Writer& w) {
  w.output();
  w.kernel();
}

// One output, one kernel, a gradient of the input's size; the row's pattern says what is kept and made on the way.
void unary(Writer& w) {
  if (w.pattern().keeps == Keeps::Input) w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  if (w.pattern().keeps == Keeps::Result) w.save_output(0, "_saved_result");
  if (!w.needs(0)) return;
  for (int i = 0; i < w.pattern().temporaries; ++i) w.full_temporary();
  w.gradient(0);
}

// Over the last dimension, or one before it, where few outputs are made of many elements.
void mean(Writer& w) {
  const Shape& from = w.in(0).shape;
  const Shape& to = w.out().shape;
  const bool inside = to.rank > 0 && from.rank == to.rank + 1 && from.dims[from.rank - 1u] == to.dims[to.rank - 1u];
  if (!inside) return unary(w);
  w.output();
  forward_reduced_kernel(w, summed_to({from.dims.data(), from.rank}, {to.dims.data(), to.rank}));
  if (w.needs(0)) w.gradient(0);
}

namespace {

// A statement of Python: each step makes a tensor of the input's size, and what it read and nobody holds dies behind
// it. In forward and backward alike; steps are numbered by what they make.
class Expression {
 public:
  Expression(Writer& w, bool backward) : w_(w), backward_(backward) {}
  std::uint8_t make(std::initializer_list<std::uint8_t> then_dropped = {}) {
    const Bytes bytes = w_.bytes_in(0);
    const DType dtype = w_.in(0).dtype;
    std::uint8_t made = 0;
    if (backward_) {
      made = w_.temporary(bytes, dtype);
    } else {
      made = w_.forward_temporary(bytes, dtype);
      w_.kernel();
    }
    drop(then_dropped);
    return made;
  }
  void drop(std::initializer_list<std::uint8_t> made) {
    for (const std::uint8_t one : made) backward_ ? w_.drop(one) : w_.forward_drop(one);
  }
  // tanh(c * x * (1 + c' * x * x)).
  std::uint8_t tanh_of_inner() {
    const std::uint8_t scaled = make();
    const std::uint8_t small = make();
    const std::uint8_t squared = make({small});
    const std::uint8_t shifted = make({squared});
    const std::uint8_t inner = make({scaled, shifted});
    return make({inner});
  }

 private:
  Writer& w_;
  bool backward_;
};

// x * 0.5 * (1 + tanh(..)), under no_grad; x is saved when it has returned. Backward: ff * gradient, with
// ff = 0.5 * x * ((1 - tanh^2) * (c + c' * x * x)) + 0.5 * (1 + tanh).
void gelu_function(Writer& w) {
  Expression forward(w, false);
  const std::uint8_t halved = forward.make();
  const std::uint8_t open = forward.make({forward.tanh_of_inner()});
  w.output();
  w.kernel();
  forward.drop({halved, open});
  w.save_input(0, "_saved_tensors");
  w.saves_after_kernel();
  if (!w.needs(0)) return;
  Expression backward(w, true);
  [[maybe_unused]] const std::uint8_t tanh = backward.tanh_of_inner();  // It is there as long as the others.
  const std::uint8_t half = backward.make();
  const std::uint8_t slope = backward.make({backward.make()});
  const std::uint8_t cubic = backward.make({backward.make({backward.make()})});
  const std::uint8_t steep = backward.make({slope, cubic});
  const std::uint8_t left = backward.make({half, steep});
  const std::uint8_t right = backward.make({backward.make()});
  backward.make({left, right});
  w.gradient(0);
}

}  // namespace

void gelu(Writer& w) {
  if (w.node().number == kGeluFunction) return gelu_function(w);
  unary(w);
}

// leaky_relu, elu: what they overwrite they can do without.
void activation_in_place(Writer& w) {
  if (w.node().in_place) {
    w.output();
    w.kernel();
    w.save_output(0, "_saved_result");
  } else {
    w.save_input(0, "_saved_self");
    w.output();
    w.kernel();
  }
  w.gradient(0);
}

// The gradient is the incoming one itself, or a view of it: a copy, the sum with a constant.
void passing(Writer& w) {
  w.output();
  w.kernel();
  w.pass(0);
}

// Both operands receive the incoming gradient itself; one that was broadcast receives its sum.
void add(Writer& w) {
  w.output();
  w.kernel();
  for (std::size_t i : {0U, 1U}) {
    if (!w.is_broadcast(i)) w.pass(i);
  }
  w.sum_broadcast();
}

// As add; the second operand's is the negative.
void subtract(Writer& w) {
  w.output();
  w.kernel();
  if (!w.is_broadcast(0)) w.pass(0);
  w.gradient_at_output(1);
  w.sum_broadcast();
}

void multiply(Writer& w) {
  w.save_input(1, "_saved_other", w.needs(0));
  w.save_input(0, "_saved_self", w.needs(1));
  w.output();
  w.kernel();
  w.broadcast_gradients({1, 0});
}

// polar(ones_like(angle), angle).
void polar(Writer& w) {
  const std::uint8_t ones = w.forward_temporary(w.bytes_in(0), w.in(0).dtype);
  w.kernel();
  w.output();
  w.kernel();
  w.forward_drop(ones);
}

// The gradient times the other's conjugate, which becomes a tensor first; of pairs that are no part of autograd.
void complex_multiply(Writer& w) {
  w.save_input(1, "_saved_other", w.needs(0));
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  const std::uint8_t conjugate = w.temporary(w.bytes_in(1), w.in(1).dtype);
  w.gradient(0);
  w.drop(conjugate);
}

namespace {

// In place of a narrow tensor, by a wide one: what is computed is wide but for the gradient turned round, and the
// engine brings it to the narrow tensor's dtype.
void divide_narrow(Writer& w) {
  const DType wide = w.in(1).dtype;
  std::uint8_t other = 0;
  if (w.needs(1)) {
    const std::array<std::uint8_t, 3> steps{w.full_temporary(wide), w.full_temporary(wide), w.full_temporary()};
    other = w.full_temporary(wide);
    for (const std::uint8_t step : steps) w.drop(step);
  }
  const std::uint8_t self = w.needs(0) ? w.full_temporary(wide) : std::uint8_t{0};
  w.function_returns();
  w.gradient(0);
  if (w.needs(0)) w.drop(self);
  w.summed_gradient(1);
  if (w.needs(1)) w.drop(other);
}

}  // namespace

// grad / other; -grad * ((self / other) / other) (div_tensor_{self,other}_grad).
void divide(Writer& w) {
  w.save_input(1, "_saved_other");
  w.save_input(0, "_saved_self", w.needs(1));
  w.output();
  w.kernel();
  const bool wider = w.in(1).dtype == DType::Float32 && w.out().dtype != DType::Float32;
  if (wider && w.in(1).shape.rank > 0) return divide_narrow(w);
  if (w.needs(1)) {
    std::array<std::uint8_t, 3> steps{};
    for (std::uint8_t& step : steps) step = w.full_temporary();
    w.gradient_at_output(1);
    for (std::uint8_t step : steps) w.drop(step);
  }
  w.gradient_at_output(0);
  w.sum_broadcast();
}

// where(self == other, grad / 2, grad).masked_fill_(self < other, 0), likewise for the other.
void extremum(Writer& w) {
  w.save_input(1, "_saved_other");
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  for (std::size_t i : {1U, 0U}) {
    if (!w.needs(i)) continue;
    std::array<std::uint8_t, 3> steps{};
    steps[0] = w.full_temporary();
    steps[1] = w.full_temporary(DType::Bool);
    w.gradient_at_output(i);
    steps[2] = w.full_temporary(DType::Bool);
    for (std::uint8_t step : steps) w.drop(step);
  }
  w.sum_broadcast();
}

// where(condition, grad, 0): the condition decides which of both choices the gradient goes to. The number becomes a
// tensor on the device.
void choose(Writer& w) {
  w.save_input(0, "_saved_condition");
  w.output();
  w.kernel();
  for (std::size_t i : {2U, 1U}) {
    if (!w.needs(i)) continue;
    const std::uint8_t zero = w.scalar_temporary();
    w.gradient_at_output(i);
    w.drop(zero);
  }
  w.sum_broadcast();
}

void masked_fill(Writer& w) {
  w.save_input(1, "_saved_mask");
  w.output();
  w.kernel();
  w.gradient(0);
}

void masked_fill_in_place(Writer& w) {
  w.in_place();
  w.kernel();
  w.save_input(1, "_saved_mask");
  w.gradient(0);
}

// One kernel makes both gradients, the weight's at the input's size (_prelu_kernel_backward).
void prelu(Writer& w) {
  w.save_input(0, "_saved_self");
  w.save_input(1, "_saved_weight");
  w.output();
  w.kernel();
  std::uint8_t unused = 0;
  if (w.needs(0)) {
    w.allocate_gradient(0);
  } else {
    unused = w.allocate_temporary(w.bytes_out(), w.out().dtype, Visibility::Dispatch);
  }
  w.allocate_temporary(w.bytes_out(), w.out().dtype, Visibility::Dispatch);
  w.backward_kernel();
  w.function_returns();
  if (!w.needs(0)) w.drop(unused);
  w.gradient(1);
}

// grad * (the other factor * value), for each factor.
void multiply_and_add(Writer& w) {
  w.save_input(1, "_saved_tensor1", w.needs(2));
  w.save_input(2, "_saved_tensor2", w.needs(1));
  w.output();
  w.kernel();
  if (!w.is_broadcast(0)) w.pass(0);
  for (std::size_t i : {1U, 2U}) {
    if (!w.needs(i)) continue;
    const std::size_t other = 3 - i;
    const std::uint8_t scaled = w.temporary(w.bytes_in(other), w.in(other).dtype);
    w.gradient_at_output(i);
    w.drop(scaled);
  }
  w.sum_broadcast();
}

// exponent * self.pow(exponent - 1), then the product (pow_backward).
void power(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  w.full_temporary();
  w.full_temporary();
  w.gradient(0);
}

// where(mask, grad, 0): a mask for each bound, joined in place; the number becomes a tensor on the device
// (clamp_backward).
void clamp(Writer& w) {
  w.save_input(0, "_saved_self");
  w.output();
  w.kernel();
  if (!w.needs(0)) return;
  w.scalar_temporary();
  for (int i = w.node().bounds == Node::kBothBounds ? 2 : 1; i > 0; --i) w.full_temporary(DType::Bool);
  w.gradient(0);
}

// A bool mask, one byte per element, made before the output (Dropout.cu, dropout_cuda). In place: noise in the input's
// dtype, which multiplies it (Dropout.cpp, _dropout_impl).
void dropout(Writer& w) {
  const DType dtype = w.node().in_place ? w.in(0).dtype : DType::Bool;
  w.extra(0, storage(w.out().shape.elements(), dtype), dtype, Visibility::Dispatch);
  w.output();
  w.kernel();
  w.save_extra(0, w.node().in_place ? "_saved_other" : "_saved_result1");
  w.gradient(0);
}

}  // namespace dsplan::rules
