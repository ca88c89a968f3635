// Elementwise operators that choose: by a condition, a mask or bounds.
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

using exec::host::Bounds;
using exec::host::bounds_of;

Arithmetic arithmetic(const Args& args) {
  return any_arithmetic_of(dtype_of(args.backward() ? args.gradient_of() : args.output()));
}

// A zero; for each bound what lies within it, the second with the first; what of the gradient stays.
void clamp_backward(const Args& args, const Queue& queue) {
  const Bounds bounds = bounds_of(args);
  const dsplan_tensor& x = args.saved_in(0);
  const Arithmetic in = arithmetic(args);
  if (args.part() == 0) return fill(queue, args.temporary(0), 0);
  if (args.part() == 1) {
    const bool lower = bounds.both || bounds.lower_alone;
    return map(
        queue, in, args.temporary(1),
        {lower ? Function::GreaterEqualNumber : Function::LessEqualNumber, {&x}, lower ? bounds.low : bounds.high});
  }
  if (bounds.both && args.part() == 2) {
    const dsplan_tensor& to = args.temporary(2);
    map(queue, in, to, {Function::LessEqualNumber, {&x}, bounds.high});
    return map(queue, in, to, {Function::Both, {&to, &args.temporary(1)}});
  }
  const dsplan_tensor& within = args.temporary(bounds.both ? 2 : 1);
  map(queue, in, args.gradient(0), {Function::Choose, {&args.gradient_of(), &within, &args.temporary(0)}});
}

void clamp(const Args& args, const Queue& queue) {
  if (args.backward()) return clamp_backward(args, queue);
  const Bounds bounds = bounds_of(args);
  map(queue, arithmetic(args), args.output(), {Function::Clamp, {&args.in(0)}, bounds.low, bounds.high});
}

// Backward: by turns a zero and a gradient.
void where(const Args& args, const Queue& queue) {
  if (!args.backward()) {
    return map(queue, arithmetic(args), args.output(), {Function::Choose, {&args.in(1), &args.in(0), &args.in(2)}});
  }
  const std::int64_t now = args.slot(args.made_count() - 1);
  if (now / 256 == static_cast<std::int64_t>(SlotKind::Temporary)) return fill(queue, args.latest(), 0);
  const std::int64_t before = args.slot(args.made_count() - 2);
  const dsplan_tensor* zero = &args.temporary(static_cast<std::size_t>(before % 256));
  const dsplan_tensor* grad = &args.gradient_of();
  const bool first = now % 256 == 1;
  map(queue, arithmetic(args), args.latest(),
      {Function::Choose, {first ? grad : zero, &args.saved_in(0), first ? zero : grad}});
}

void masked_fill(const Args& args, const Queue& queue) {
  if (args.backward()) {
    return map(queue, arithmetic(args), args.gradient(0),
               {Function::Masked, {&args.gradient_of(), &args.saved_in(1)}, 0});
  }
  map(queue, arithmetic(args), args.output(), {Function::Masked, {&args.in(0), &args.in(1)}, args.number()});
}

}  // namespace

bool run_choices(const Args& args, const Queue& queue) {
  switch (args.op()) {
    case Op::Clamp: clamp(args, queue); return true;
    case Op::Where: where(args, queue); return true;
    case Op::Minimum:
      if (args.backward()) return false;
      map(queue, arithmetic(args), args.output(), {Function::Minimum, {&args.in(0), &args.in(1)}});
      return true;
    case Op::MaskedFill:
      if (!exec::host::fills_masked(args)) return false;
      masked_fill(args, queue);
      return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
