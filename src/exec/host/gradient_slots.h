// Elementwise operators of two tensors, backward: in which slot of what a kernel makes each gradient is whole, before
// it is summed to its input's shape. For the host's kernels and the device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/graph.h"
#include "exec/host/args.h"

namespace dsplan::exec::host {

struct GradientSlots {
  std::int64_t code[2] = {-1, -1};  // Of the gradient at the output's shape, by input; -1: the incoming one.
  std::size_t steps = 0;            // Slots before them.
};

// Which there are depends on which gradients are needed; sums come last.
[[nodiscard]] inline GradientSlots gradient_slots(const Args& args) {
  GradientSlots slots;
  std::size_t next = 0;
  if (args.op() == Op::Mul || args.op() == Op::Div) {
    if (args.op() == Op::Div && args.needs(1)) next = slots.steps = 3;
    if (args.needs(1)) slots.code[1] = args.slot(next++);
    if (args.needs(0)) slots.code[0] = args.slot(next++);
  } else if (args.op() == Op::Sub && args.needs(1)) {
    slots.code[1] = args.slot(0);
  }
  return slots;
}

// What a kernel behind them sums, or brings to another dtype, and where to.
struct SumStep {
  const dsplan_tensor& from;
  const dsplan_tensor& to;
};

// A gradient may have a sum of its own before it, in the incoming dtype; behind it may stand what a GPU's kernel works
// in, bytes and integers.
[[nodiscard]] inline SumStep sum_step(const Args& args, const GradientSlots& slots) {
  const auto is_gradient = [&](std::size_t j) {
    return args.slot(j) / 256 == static_cast<std::int64_t>(SlotKind::Gradient);
  };
  const auto at = [&](std::int64_t code) -> const dsplan_tensor& {
    return args.made(static_cast<SlotKind>(code / 256), static_cast<std::size_t>(code % 256));
  };
  const auto whole = [&](std::int64_t input) -> const dsplan_tensor& {
    return slots.code[input] < 0 ? args.gradient_of() : at(slots.code[input]);
  };
  std::size_t last = args.made_count() - 1;
  if (!is_gradient(last) && is_floating(dtype_of(args.latest()))) {
    return {whole(args.slot(last + 1) % 256), args.latest()};
  }
  while (!is_gradient(last)) {
    expect(last > slots.steps, "an operator of two tensors makes something else");
    --last;
  }
  const std::int64_t input = args.slot(last) % 256;
  const std::int64_t before = last > slots.steps ? args.slot(last - 1) : -1;
  const bool own_sum = before >= 0 && before != slots.code[0] && before != slots.code[1] && !is_gradient(last - 1) &&
                       is_floating(dtype_of(at(before)));
  return {own_sum ? at(before) : whole(input), at(args.slot(last))};
}

}  // namespace dsplan::exec::host
