// Elementwise operators, forward: which function each of them is.
#include <algorithm>
#include <optional>

#include "cuda/kernels.h"
#include "exec/bodies/gelu_steps.h"

namespace dsplan::cuda {
namespace {

std::optional<Function> of_one(const Args& args) {
  switch (args.op()) {
    case Op::MulScalar: return Function::MulNumber;
    case Op::DivScalar: return Function::DivNumber;
    case Op::SubScalar: return Function::SubNumber;
    case Op::PowScalar: return Function::Power;
    case Op::Neg: return Function::Neg;
    case Op::Abs: return Function::Abs;
    case Op::Exp: return Function::Exp;
    case Op::Log: return Function::Log;
    case Op::Sqrt: return Function::Sqrt;
    case Op::Rsqrt: return Function::Rsqrt;
    case Op::Reciprocal: return Function::Reciprocal;
    case Op::Sin: return Function::Sin;
    case Op::Cos: return Function::Cos;
    case Op::Tanh: return Function::Tanh;
    case Op::Sigmoid: return Function::Sigmoid;
    case Op::Relu: return Function::Relu;
    case Op::Silu: return Function::Silu;
    case Op::Gelu: return args.number() == 1 ? Function::GeluTanh : Function::Gelu;
    default: return std::nullopt;
  }
}

std::optional<Function> of_two(const Args& args) {
  switch (args.op()) {
    case Op::Add: return Function::Add;
    case Op::Sub: return args.has_in(1) ? std::optional(Function::Sub) : std::nullopt;
    case Op::Mul: return Function::Mul;
    case Op::Div: return Function::Div;
    default: return std::nullopt;
  }
}

// x + number; where the result has one column and x more, of the first column, for each row.
void add_number(const Args& args, const Queue& queue) {
  const dsplan_tensor& out = args.output();
  dsplan_tensor in = args.in(0);
  const auto last = static_cast<std::size_t>(in.rank - 1);
  if (in.rank > 0 && in.dims[last] > 1 && last_of(out) == 1) in = exec::host::narrowed(in, last, 0, 1);
  map(queue, any_arithmetic_of(dtype_of(out)), out, {Function::AddNumber, {&in}, args.number()});
}

// What a step of gelu reads: an input, the gradient, or what an earlier step made.
const dsplan_tensor* read_by_step(const Args& args, std::int8_t what) {
  using namespace exec::bodies;
  if (what == kGeluInput) return args.backward() ? &args.saved_in(0) : &args.in(0);
  return what == kGeluGradient ? &args.gradient_of() : &args.temporary(static_cast<std::size_t>(what));
}

void gelu_step(const Args& args, const Queue& queue) {
  using exec::bodies::GeluStep;
  const GeluStep& step =
      args.backward() ? exec::bodies::kGeluBackward.at(args.part()) : exec::bodies::kGeluForward.at(args.part());
  const auto function = [&] {
    switch (step.does) {
      case GeluStep::Does::Scale: return Function::MulNumber;
      case GeluStep::Does::Shift: return Function::AddNumber;
      case GeluStep::Does::OneLess: return Function::OneLess;
      case GeluStep::Does::Tanh: return Function::Tanh;
      case GeluStep::Does::Product: return Function::Mul;
      default: return Function::Add;
    }
  }();
  const bool two = function == Function::Mul || function == Function::Add;
  Elementwise what{function, {read_by_step(args, step.a)}, step.number};
  if (two) what.in[1] = read_by_step(args, step.b);
  map(queue, arithmetic_of(dtype_of(args.latest())), args.latest(), what);
}

void dropout(const Args& args, const Queue& queue) {
  const dsplan_tensor& out = args.output();
  const dsplan_tensor& mask = args.extra(0);
  expect_dims(out, dims_of(args.in(0)), "the output");
  expect_dims(mask, dims_of(args.in(0)), "the mask");
  dropout_mask(queue, mask, args.random(), args.number());
  const double scale = args.number() < 1 ? 1 / (1 - args.number()) : 0;
  map(queue, arithmetic_of(dtype_of(args.in(0))), out, {Function::MulMul, {&args.in(0), &mask}, scale});
}

}  // namespace

bool run_elementwise(const Args& args, const Queue& queue) {
  if (args.op() == Op::Gelu && args.number() == exec::bodies::kGeluFunction) {
    gelu_step(args, queue);
    return true;
  }
  if (args.backward()) return false;
  if (args.op() == Op::PowScalar && args.has_in(1)) {
    map(queue, Arithmetic::Double, args.output(), {Function::PowerOfTwo, {&args.in(0), &args.in(1)}});
    return true;
  }
  if (const std::optional<Function> function = of_one(args)) {
    expect_dims(args.output(), dims_of(args.in(0)), "the output");
    const bool of_integers = args.op() == Op::SubScalar;
    const DType dtype = dtype_of(args.in(0));
    map(queue, of_integers ? any_arithmetic_of(dtype) : arithmetic_of(dtype), args.output(),
        {*function, {&args.in(0)}, args.number()});
    return true;
  }
  const bool clones = args.op() == Op::Div && args.flag(DSPLAN_FLAG_IN_PLACE) && args.part() == 0 &&
                      args.find(SlotKind::Extra, exec::host::kClone) != nullptr;
  if (clones) {
    copy_in_order(queue, args.in(0), args.extra(exec::host::kClone));
    return true;
  }
  if (const std::optional<Function> function = of_two(args)) {
    // In place: the first input is the result.
    const dsplan_tensor& out = args.flag(DSPLAN_FLAG_IN_PLACE) ? args.in(0) : args.output();
    map(queue, any_arithmetic_of(dtype_of(out)), out, {*function, {&args.in(0), &args.in(1)}});
    return true;
  }
  switch (args.op()) {
    case Op::AddScalar: add_number(args, queue); return true;
    case Op::Dropout: dropout(args, queue); return true;
    case Op::Cast: copy_in_order(queue, args.in(0), args.output()); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
