// Elementwise operators, backward. One tensor is written by each kernel; those before it are there to be read. The
// steps are the host's (exec/host/elementwise_backward.cpp), which are PyTorch's.
#include <optional>

#include "cuda/kernels.h"
#include "exec/host/gradient_slots.h"

namespace dsplan::cuda {
namespace {

Arithmetic wide_of(const Args& args) { return arithmetic_of(dtype_of(args.gradient_of())); }

// Of the gradient alone, or of it and what was kept.
std::optional<Elementwise> in_one_step(const Args& args) {
  const dsplan_tensor* grad = &args.gradient_of();
  switch (args.op()) {
    case Op::MulScalar: return Elementwise{Function::MulNumber, {grad}, args.number()};
    case Op::DivScalar: return Elementwise{Function::DivNumber, {grad}, args.number()};
    case Op::Neg: return Elementwise{Function::Neg, {grad}};
    case Op::Cast: return Elementwise{Function::Copy, {grad}};
    case Op::Exp: return Elementwise{Function::Mul, {grad, &args.saved_out(0)}};
    case Op::Log: return Elementwise{Function::OverKept, {grad, &args.saved_in(0)}};
    case Op::Tanh: return Elementwise{Function::TanhSlope, {grad, &args.saved_out(0)}};
    case Op::Sigmoid: return Elementwise{Function::SigmoidSlope, {grad, &args.saved_out(0)}};
    case Op::Relu: return Elementwise{Function::ReluSlope, {grad, &args.saved_out(0)}};
    case Op::Silu: return Elementwise{Function::SiluSlope, {grad, &args.saved_in(0)}};
    case Op::Gelu:
      return Elementwise{args.number() == 1 ? Function::GeluTanhSlope : Function::GeluSlope, {grad, &args.saved_in(0)}};
    case Op::Dropout:
      return Elementwise{
          Function::MulMul, {grad, &args.saved_extra(0)}, args.number() < 1 ? 1 / (1 - args.number()) : 0};
    default: return std::nullopt;
  }
}

// Those that take steps: the tensors between are PyTorch's own.
std::optional<Elementwise> step(const Args& args) {
  const std::uint32_t part = args.part();
  const dsplan_tensor* grad = &args.gradient_of();
  const auto product_with = [&](std::size_t i) { return Elementwise{Function::Mul, {grad, &args.temporary(i)}}; };
  const auto product = [&] { return Elementwise{Function::Mul, {&args.temporary(0), &args.temporary(1)}}; };
  switch (args.op()) {
    case Op::PowScalar:
      if (part == 0) return Elementwise{Function::PowerSlope, {&args.saved_in(0)}, args.number()};
      if (part == 1) return Elementwise{Function::MulNumber, {&args.temporary(0)}, args.number()};
      return product_with(1);
    case Op::Abs:
      if (part == 0) return Elementwise{Function::Sign, {&args.saved_in(0)}};
      return product_with(0);
    case Op::Sqrt:
      if (part == 0) return Elementwise{Function::MulNumber, {&args.saved_out(0)}, 2};
      return Elementwise{Function::Div, {grad, &args.temporary(0)}};
    case Op::Rsqrt:
      if (part == 0) return Elementwise{Function::MulNumber, {grad}, -0.5};
      if (part == 1) return Elementwise{Function::Cube, {&args.saved_out(0)}};
      return product();
    case Op::Reciprocal:
      if (part == 0) return Elementwise{Function::Neg, {grad}};
      if (part == 1) return Elementwise{Function::Square, {&args.saved_out(0)}};
      return product();
    case Op::Sin:
      if (part == 0) return Elementwise{Function::Cos, {&args.saved_in(0)}};
      return product_with(0);
    case Op::Cos:
      if (part == 0) return Elementwise{Function::Sin, {&args.saved_in(0)}};
      if (part == 1) return Elementwise{Function::Neg, {&args.temporary(0)}};
      return product_with(1);
    default: return std::nullopt;
  }
}

Elementwise division_step(const Args& args) {
  if (args.part() == 0) return {Function::Div, {&exec::host::saved_first(args), &args.saved_in(1)}};
  if (args.part() == 1) return {Function::Div, {&args.temporary(0), &args.saved_in(1)}};
  return {Function::Neg, {&args.gradient_of()}};
}

Elementwise at_output(const Args& args, std::size_t input) {
  const dsplan_tensor* grad = &args.gradient_of();
  if (args.op() == Op::Sub) return {Function::Neg, {grad}};
  if (args.op() == Op::Mul) return {Function::Mul, {grad, &args.saved_in(1 - input)}};
  if (input == 0) return {Function::Div, {grad, &args.saved_in(1)}};
  return {Function::Mul, {&args.temporary(2), &args.temporary(1)}};
}

void binary(const Args& args, const Queue& queue) {
  const exec::host::GradientSlots slots = exec::host::gradient_slots(args);
  const std::int64_t now = args.slot(args.made_count() - 1);
  if (args.made_count() <= slots.steps) return map(queue, wide_of(args), args.latest(), division_step(args));
  for (const std::size_t input : {std::size_t{0}, std::size_t{1}}) {
    if (now == slots.code[input]) return map(queue, wide_of(args), args.latest(), at_output(args, input));
  }
  const exec::host::SumStep step = exec::host::sum_step(args, slots);
  sum_to(queue, step.from, step.to);
}

}  // namespace

bool run_elementwise_backward(const Args& args, const Queue& queue) {
  if (!args.backward()) return false;
  const Op op = args.op();
  if (op == Op::Add || op == Op::Sub || op == Op::Mul || op == Op::Div) {
    binary(args, queue);
    return true;
  }
  if (const std::optional<Elementwise> only = in_one_step(args)) {
    map(queue, wide_of(args), args.gradient(0), *only);
    return true;
  }
  const std::optional<Elementwise> next = step(args);
  if (next) map(queue, wide_of(args), args.latest(), *next);
  return next.has_value();
}

}  // namespace dsplan::cuda
