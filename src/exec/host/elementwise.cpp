// Elementwise kernels, forward.
#include <algorithm>
#include <cmath>

#include "exec/bodies/elementwise.h"
#include "exec/bodies/gelu_steps.h"
#include "exec/bodies/philox.h"
#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

template <class C>
void unary(const Args& args) {
  const dsplan_tensor& out = args.output();
  expect_dims(out, dims_of(args.in(0)), "the output");
  const C number = static_cast<C>(args.number());
  const auto each = [&](auto f) { map<C, 1>(out, {&args.in(0)}, f); };
  switch (args.op()) {
    case Op::MulScalar: return each([=](C x) { return x * number; });
    case Op::DivScalar: return each([=](C x) { return x / number; });
    case Op::SubScalar: return each([=](C x) { return x - number; });
    case Op::PowScalar: return each([=](C x) { return bodies::power(x, number); });
    case Op::Neg: return each([](C x) { return -x; });
    case Op::Abs: return each([](C x) { return std::abs(x); });
    case Op::Exp: return each([](C x) { return std::exp(x); });
    case Op::Log: return each([](C x) { return std::log(x); });
    case Op::Sqrt: return each([](C x) { return std::sqrt(x); });
    case Op::Rsqrt: return each([](C x) { return C(1) / std::sqrt(x); });
    case Op::Reciprocal: return each([](C x) { return C(1) / x; });
    case Op::Sin: return each([](C x) { return std::sin(x); });
    case Op::Cos: return each([](C x) { return std::cos(x); });
    case Op::Tanh: return each([](C x) { return std::tanh(x); });
    case Op::Sigmoid: return each([](C x) { return bodies::sigmoid(x); });
    case Op::Relu: return each([](C x) { return std::max(x, C(0)); });
    case Op::Silu: return each([](C x) { return bodies::silu(x); });
    case Op::Gelu:
      if (number == C(1)) return each([](C x) { return bodies::gelu_tanh(x); });
      return each([](C x) { return bodies::gelu(x); });
    default: throw Fault{"no such operator of one tensor"};
  }
}

// What a step of gelu reads: an input, the gradient, or what an earlier step made.
const dsplan_tensor& read_by_step(const Args& args, std::int8_t what) {
  if (what == bodies::kGeluInput) return args.backward() ? args.saved_in(0) : args.in(0);
  return what == bodies::kGeluGradient ? args.gradient_of() : args.temporary(static_cast<std::size_t>(what));
}

template <class C>
void gelu_step(const Args& args) {
  using Does = bodies::GeluStep::Does;
  const bodies::GeluStep& step =
      args.backward() ? bodies::kGeluBackward.at(args.part()) : bodies::kGeluForward.at(args.part());
  const dsplan_tensor& a = read_by_step(args, step.a);
  const C number = static_cast<C>(step.number);
  const auto each = [&](auto f) { map<C, 1>(args.latest(), {&a}, f); };
  const auto both = [&](auto f) { map<C, 2>(args.latest(), {&a, &read_by_step(args, step.b)}, f); };
  switch (step.does) {
    case Does::Scale: return each([=](C x) { return x * number; });
    case Does::Shift: return each([=](C x) { return x + number; });
    case Does::OneLess: return each([](C x) { return C(1) - x; });
    case Does::Tanh: return each([](C x) { return std::tanh(x); });
    case Does::Product: return both([](C x, C y) { return x * y; });
    case Does::Sum: return both([](C x, C y) { return x + y; });
  }
}

bool is_unary(Op op) {
  switch (op) {
    case Op::MulScalar:
    case Op::DivScalar:
    case Op::SubScalar:
    case Op::PowScalar:
    case Op::Neg:
    case Op::Abs:
    case Op::Exp:
    case Op::Log:
    case Op::Sqrt:
    case Op::Rsqrt:
    case Op::Reciprocal:
    case Op::Sin:
    case Op::Cos:
    case Op::Tanh:
    case Op::Sigmoid:
    case Op::Relu:
    case Op::Silu:
    case Op::Gelu: return true;
    default: return false;
  }
}

// In place: the first input is the result.
template <class C>
void binary(const Args& args) {
  const dsplan_tensor& out = args.flag(DSPLAN_FLAG_IN_PLACE) ? args.in(0) : args.output();
  const auto each = [&](auto f) { map<C, 2>(out, {&args.in(0), &args.in(1)}, f); };
  switch (args.op()) {
    case Op::Add: return each([](C a, C b) { return a + b; });
    case Op::Sub: return each([](C a, C b) { return a - b; });
    case Op::Mul: return each([](C a, C b) { return a * b; });
    case Op::Div: return each([](C a, C b) { return a / b; });
    default: throw Fault{"no such operator of two tensors"};
  }
}

// x + number; where the result has one column and x more, of the first column, for each row.
template <class C>
void add_number(const Args& args) {
  const dsplan_tensor& out = args.output();
  const C number = static_cast<C>(args.number());
  dsplan_tensor in = args.in(0);
  const auto last = static_cast<std::size_t>(in.rank - 1);
  if (in.rank > 0 && in.dims[last] > 1 && last_of(out) == 1) in = narrowed(in, last, 0, 1);
  map<C, 1>(out, {&in}, [=](C x) { return x + number; });
}

// In place, where backward will ask for what is divided: a clone of it comes first.
bool clones_first(const Args& args) {
  return args.flag(DSPLAN_FLAG_IN_PLACE) && args.find(SlotKind::Extra, kClone) != nullptr && args.part() == 0;
}

// By arithmetic type: integers are integers, fp64 is fp64, all else is fp32.
void by_type(const dsplan_tensor& of, auto f) {
  if (!is_floating(dtype_of(of))) return f(std::int64_t{});
  with_arithmetic(dtype_of(of), f);
}

template <class C>
void dropout(const Args& args) {
  const dsplan_tensor& out = args.output();
  const dsplan_tensor& mask = args.extra(0);
  expect_dims(out, dims_of(args.in(0)), "the output");
  expect_dims(mask, dims_of(args.in(0)), "the mask");
  const dsplan_random& random = args.random();
  const double p = args.number();
  const std::int64_t of_sample = count_of(mask) / std::max<std::int64_t>(1, random.samples);
  expect(of_sample > 0, "more samples than elements");
  const auto at = [&](std::int64_t element) {
    const auto sample = static_cast<std::uint64_t>(random.first_sample + element / of_sample);
    return bodies::kept(random.key, sample, static_cast<std::uint64_t>(element % of_sample), p);
  };
  map<std::int64_t, 0>(mask, {}, [&](std::int64_t element) { return std::int64_t{at(element) ? 1 : 0}; });
  const C scale = static_cast<C>(p < 1 ? 1 / (1 - p) : 0);
  map<C, 2>(out, {&args.in(0), &mask}, [=](C x, C flag) { return x * flag * scale; });
}

}  // namespace

bool run_elementwise(const Args& args) {
  const Op op = args.op();
  if (op == Op::Gelu && args.number() == bodies::kGeluFunction) {
    with_arithmetic(dtype_of(args.latest()), [&]<class C>(C) { gelu_step<C>(args); });
    return true;
  }
  if (args.backward()) return false;
  if (op == Op::PowScalar && args.has_in(1)) {
    map<double, 2>(args.output(), {&args.in(0), &args.in(1)}, [](double a, double b) { return std::pow(a, b); });
    return true;
  }
  if (op == Op::SubScalar && !is_floating(dtype_of(args.in(0)))) {
    const auto number = static_cast<std::int64_t>(args.number());
    map<std::int64_t, 1>(args.output(), {&args.in(0)}, [=](std::int64_t x) { return x - number; });
    return true;
  }
  if (is_unary(op)) {
    with_arithmetic(dtype_of(args.in(0)), [&]<class C>(C) { unary<C>(args); });
    return true;
  }
  if (op == Op::Div && clones_first(args)) {
    copy_in_order(args.in(0), args.extra(kClone));
    return true;
  }
  if (op == Op::Add || op == Op::Mul || op == Op::Div || (op == Op::Sub && args.has_in(1))) {
    const dsplan_tensor& out = args.flag(DSPLAN_FLAG_IN_PLACE) ? args.in(0) : args.output();
    by_type(out, [&]<class C>(C) { binary<C>(args); });
    return true;
  }
  if (op == Op::AddScalar) {
    by_type(args.output(), [&]<class C>(C) { add_number<C>(args); });
    return true;
  }
  if (op == Op::Dropout) {
    with_arithmetic(dtype_of(args.in(0)), [&]<class C>(C) { dropout<C>(args); });
    return true;
  }
  if (op == Op::Cast) {
    copy_in_order(args.in(0), args.output());
    return true;
  }
  return false;
}

}  // namespace dsplan::exec::host
