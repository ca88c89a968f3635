// Copies, joins and reductions over whole dimensions.
#include <algorithm>

#include "cuda/kernels.h"
#include "exec/host/args.h"

namespace dsplan::cuda {
namespace {

using dsplan::ViewStep;
using exec::Layout;
using exec::OffsetLayout;
using exec::host::corner;
using exec::host::layout_of;
using exec::host::narrowed;
using exec::host::steps_of;
using exec::host::with_layout;

// Adds up what stands for repeated elements: dimensions of `to` whose stride is 0 go, `from` has them all.
void sum_repeated(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  dsplan_tensor once = to;
  for (std::int32_t d = 0; d < once.rank; ++d) {
    if (once.strides[d] == 0) once.dims[d] = 1;
  }
  sum_to(queue, from, once);
}

// The gradient comes back through the view: it is written where the view would show it.
void view_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.gradient(0);
  const dsplan_tensor& from = args.gradient_of();
  const std::vector<ViewStep> steps = steps_of(args);
  const std::optional<OffsetLayout> seen = exec::apply_steps(layout_of(to), steps);
  expect(seen.has_value(), "the view of the gradient is none");
  const bool repeats = std::ranges::any_of(
      steps, [](const ViewStep& step) { return step.kind == ViewStep::Kind::Repeat && step.length > 1; });
  const dsplan_tensor target = with_layout(to, seen->layout, seen->offset);
  if (!repeats) return copy_in_order(queue, from, target);
  const std::optional<Layout> apart = exec::reshaped(layout_of(from), seen->layout.extents());
  expect(apart.has_value(), "a gradient of repeated elements does not come apart");
  sum_repeated(queue, with_layout(from, *apart, 0), target);
}

void slice_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.gradient(0);
  fill(queue, to, 0);
  const std::optional<OffsetLayout> seen = exec::apply_steps(layout_of(to), steps_of(args));
  expect(seen.has_value(), "a slice is none");
  copy_in_order(queue, args.gradient_of(), with_layout(to, seen->layout, seen->offset));
}

// Zeros, one after another, for the outputs of which no gradient comes; then the parts side by side.
void split_backward(const Args& args, const Queue& queue) {
  const std::int64_t slot = args.slot(args.made_count() - 1);
  if (slot / 256 == static_cast<std::int64_t>(SlotKind::Temporary)) return fill(queue, args.latest(), 0);
  const dsplan_tensor& to = args.gradient(0);
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  std::int64_t start = 0;
  std::size_t undefined = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.integer(DSPLAN_OUTPUTS)); ++i) {
    const dsplan_tensor& part = args.has_gradient(i) ? args.gradient_of(i) : args.temporary(undefined++);
    const std::int64_t length = count_of(part) * to.dims[axis] / count_of(to);  // It may come in other dimensions.
    copy_in_order(queue, part, narrowed(to, axis, start, length));
    start += length;
  }
  expect(start == to.dims[axis], "parts do not fill the whole");
}

// A copy in logical order; with a number, of what stands behind the first column.
void contiguous(const Args& args, const Queue& queue) {
  dsplan_tensor from = args.in(0);
  if (args.number() != 0) {
    const auto last = static_cast<std::size_t>(from.rank - 1);
    from = narrowed(from, last, 1, from.dims[last] - 1);
  }
  copy_in_order(queue, from, args.output());
}

void cat(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.output();
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  std::int64_t start = 0;
  for (std::size_t i = 0; i < args.call().input_count; ++i) {
    const dsplan_tensor& from = args.in(i);
    const dsplan_tensor part = narrowed(to, axis, start, from.dims[axis]);
    start += from.dims[axis];
    map(queue, any_arithmetic_of(dtype_of(to)), part, {Function::Copy, {&from}});
  }
  expect(start == to.dims[axis], "parts do not fill the whole");
}

// At the end of each dimension.
void pad(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.output();
  fill(queue, to, args.number());
  copy_in_order(queue, args.in(0), corner(to, args.in(0)));
}

void tril(const Args& args, const Queue& queue) {
  const dsplan_tensor& from = args.backward() ? args.gradient_of() : args.in(0);
  const dsplan_tensor& to = args.backward() ? args.gradient(0) : args.output();
  expect(to.rank >= 2, "a triangle needs two dimensions");
  expect_dims(to, dims_of(from), "the triangle");
  map(queue, Arithmetic::Double, to,
      {Function::Triangle, {&from}, static_cast<double>(last_of(to)), static_cast<double>(to.dims[to.rank - 2])});
}

void mean(const Args& args, const Queue& queue) {
  const dsplan_tensor& from = args.in(0);
  const dsplan_tensor& to = args.output();
  sum_to(queue, from, to, static_cast<double>(count_of(to)) / static_cast<double>(count_of(from)));
}

void mean_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.gradient(0);
  const double of = static_cast<double>(count_of(to)) / static_cast<double>(count_of(args.gradient_of()));
  map(queue, arithmetic_of(dtype_of(to)), to, {Function::DivNumber, {&args.gradient_of()}, of});
}

// Along the last dimension. Integers are brought to int64 in a tensor of their own.
void cumulative_sum(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.output();
  expect_dims(to, dims_of(args.in(0)), "the sums");
  const dsplan_tensor* wide = args.find(SlotKind::Extra, 0);
  if (wide != nullptr) copy_in_order(queue, args.in(0), *wide);
  cumulative(queue, wide != nullptr ? *wide : args.in(0), to);
}

bool forward(const Args& args, const Queue& queue) {
  switch (args.op()) {
    case Op::Contiguous: contiguous(args, queue); return true;
    case Op::Cat: cat(args, queue); return true;
    case Op::Pad: pad(args, queue); return true;
    case Op::Tril: tril(args, queue); return true;
    case Op::SumDim: sum_to(queue, args.in(0), exec::host::summed_beside(args)); return true;
    case Op::MeanLast: mean(args, queue); return true;
    case Op::CumSum: cumulative_sum(args, queue); return true;
    default: return false;
  }
}

}  // namespace

bool run_moves(const Args& args, const Queue& queue) {
  if (!args.backward()) return forward(args, queue);
  switch (args.op()) {
    case Op::View: view_backward(args, queue); return true;
    case Op::Slice: slice_backward(args, queue); return true;
    case Op::Split: split_backward(args, queue); return true;
    case Op::Pad: copy_in_order(queue, corner(args.gradient_of(), args.gradient(0)), args.gradient(0)); return true;
    case Op::Tril: tril(args, queue); return true;
    case Op::MeanLast: mean_backward(args, queue); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
