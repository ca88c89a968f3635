// Elementwise kernels, backward. One tensor is written by each kernel; those before it are there to be read.
#include <cmath>

#include "exec/bodies/elementwise.h"
#include "exec/host/args.h"
#include "exec/host/gradient_slots.h"

namespace dsplan::exec::host {
namespace {

// One factor away from the gradient: grad * slope(x), with x what was kept.
template <class C, class F>
void sloped(const Args& args, const dsplan_tensor& kept, F slope) {
  map<C, 2>(args.gradient(0), {&args.gradient_of(), &kept}, [=](C g, C x) { return g * slope(x); });
}

template <class C>
void simple(const Args& args) {
  const C number = static_cast<C>(args.number());
  const auto scaled = [&](auto f) { map<C, 1>(args.gradient(0), {&args.gradient_of()}, f); };
  switch (args.op()) {
    case Op::MulScalar: return scaled([=](C g) { return g * number; });
    case Op::DivScalar: return scaled([=](C g) { return g / number; });
    case Op::Neg: return scaled([](C g) { return -g; });
    case Op::Cast: return scaled([](C g) { return g; });
    case Op::Exp: return sloped<C>(args, args.saved_out(0), [](C y) { return y; });
    case Op::Log: return sloped<C>(args, args.saved_in(0), [](C x) { return C(1) / x; });
    case Op::Tanh: return sloped<C>(args, args.saved_out(0), [](C y) { return C(1) - y * y; });
    case Op::Sigmoid: return sloped<C>(args, args.saved_out(0), [](C y) { return y * (C(1) - y); });
    case Op::Relu: return sloped<C>(args, args.saved_out(0), [](C y) { return y > C(0) ? C(1) : C(0); });
    case Op::Silu: return sloped<C>(args, args.saved_in(0), [](C x) { return bodies::silu_slope(x); });
    case Op::Gelu:
      if (number == C(1)) return sloped<C>(args, args.saved_in(0), [](C x) { return bodies::gelu_tanh_slope(x); });
      return sloped<C>(args, args.saved_in(0), [](C x) { return bodies::gelu_slope(x); });
    case Op::Dropout: {
      const C scale = static_cast<C>(args.number() < 1 ? 1 / (1 - args.number()) : 0);
      return map<C, 2>(args.gradient(0), {&args.gradient_of(), &args.saved_extra(0)},
                       [=](C g, C flag) { return g * flag * scale; });
    }
    default: throw Fault{"no such gradient"};
  }
}

bool is_simple(Op op) {
  switch (op) {
    case Op::MulScalar:
    case Op::DivScalar:
    case Op::Neg:
    case Op::Cast:
    case Op::Exp:
    case Op::Log:
    case Op::Tanh:
    case Op::Sigmoid:
    case Op::Relu:
    case Op::Silu:
    case Op::Gelu:
    case Op::Dropout: return true;
    default: return false;
  }
}

// Runs the kernel whose turn it is.
template <class... Kernels>
void run_one_of(std::uint32_t part, Kernels&&... kernels) {
  std::uint32_t at = 0;
  (void)((at++ == part && (kernels(), true)) || ...);
}

// Those that take steps: the tensors between are PyTorch's own.
template <class C>
bool stepwise(const Args& args) {
  const std::uint32_t part = args.part();
  const C number = static_cast<C>(args.number());
  const auto step = [&](const dsplan_tensor& from, auto f) { map<C, 1>(args.latest(), {&from}, f); };
  const auto product = [&](const dsplan_tensor& a, const dsplan_tensor& b) {
    map<C, 2>(args.gradient(0), {&a, &b}, [](C x, C y) { return x * y; });
  };
  const auto times_gradient = [&](std::size_t temporary) {
    return [&, temporary] { product(args.gradient_of(), args.temporary(temporary)); };
  };
  const auto temporaries = [&] { product(args.temporary(0), args.temporary(1)); };
  switch (args.op()) {
    case Op::PowScalar:
      run_one_of(
          part, [&] { step(args.saved_in(0), [=](C x) { return bodies::power(x, number - C(1)); }); },
          [&] { step(args.temporary(0), [=](C x) { return number * x; }); }, times_gradient(1));
      return true;
    case Op::Abs:
      run_one_of(
          part, [&] { step(args.saved_in(0), [](C x) { return x > C(0)   ? C(1)
                                                              : x < C(0) ? C(-1)
                                                                         : C(0); }); },
          times_gradient(0));
      return true;
    case Op::Sqrt:
      run_one_of(
          part, [&] { step(args.saved_out(0), [](C y) { return C(2) * y; }); },
          [&] {
            map<C, 2>(args.gradient(0), {&args.gradient_of(), &args.temporary(0)}, [](C g, C x) { return g / x; });
          });
      return true;
    case Op::Rsqrt:
      run_one_of(
          part, [&] { step(args.gradient_of(), [](C g) { return C(-0.5) * g; }); },
          [&] { step(args.saved_out(0), [](C y) { return y * y * y; }); }, temporaries);
      return true;
    case Op::Reciprocal:
      run_one_of(
          part, [&] { step(args.gradient_of(), [](C g) { return -g; }); },
          [&] { step(args.saved_out(0), [](C y) { return y * y; }); }, temporaries);
      return true;
    case Op::Sin:
      run_one_of(
          part, [&] { step(args.saved_in(0), [](C x) { return std::cos(x); }); }, times_gradient(0));
      return true;
    case Op::Cos:
      run_one_of(
          part, [&] { step(args.saved_in(0), [](C x) { return std::sin(x); }); },
          [&] { step(args.temporary(0), [](C x) { return -x; }); }, times_gradient(1));
      return true;
    default: return false;
  }
}

template <class C>
void division_step(const Args& args) {
  const dsplan_tensor& to = args.latest();
  if (args.part() == 0) {
    map<C, 2>(to, {&saved_first(args), &args.saved_in(1)}, [](C a, C b) { return a / b; });
  } else if (args.part() == 1) {
    map<C, 2>(to, {&args.temporary(0), &args.saved_in(1)}, [](C a, C b) { return a / b; });
  } else {
    map<C, 1>(to, {&args.gradient_of()}, [](C g) { return -g; });
  }
}

template <class C>
void at_output(const Args& args, std::size_t input) {
  const dsplan_tensor& to = args.latest();
  const dsplan_tensor& grad = args.gradient_of();
  if (args.op() == Op::Sub) {
    map<C, 1>(to, {&grad}, [](C g) { return -g; });
  } else if (args.op() == Op::Mul) {
    map<C, 2>(to, {&grad, &args.saved_in(1 - input)}, [](C g, C other) { return g * other; });
  } else if (input == 0) {
    map<C, 2>(to, {&grad, &args.saved_in(1)}, [](C g, C other) { return g / other; });
  } else {
    map<C, 2>(to, {&args.temporary(2), &args.temporary(1)}, [](C g, C ratio) { return g * ratio; });
  }
}

template <class C>
void binary_backward(const Args& args) {
  const GradientSlots slots = gradient_slots(args);
  const std::int64_t now = args.slot(args.made_count() - 1);
  if (args.made_count() <= slots.steps) return division_step<C>(args);
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) {
    if (now == slots.code[input]) return at_output<C>(args, input);
  }
  const SumStep step = sum_step(args, slots);
  sum_to(step.from, step.to);
}

}  // namespace

bool run_elementwise_backward(const Args& args) {
  if (!args.backward()) return false;
  const Op op = args.op();
  const bool two = op == Op::Add || op == Op::Sub || op == Op::Mul || op == Op::Div;
  bool done = true;
  const DType wide = dtype_of(args.gradient_of()) == DType::Float64 ? DType::Float64 : DType::Float32;
  with_arithmetic(wide, [&]<class C>(C) {
    if (two) {
      binary_backward<C>(args);
    } else if (is_simple(op)) {
      simple<C>(args);
    } else {
      done = stepwise<C>(args);
    }
  });
  return done;
}

}  // namespace dsplan::exec::host
