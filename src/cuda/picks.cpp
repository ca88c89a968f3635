// What picks, places, orders and counts elements, and products of groups: which kernels each operator takes.
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

using exec::host::narrowed;
using exec::host::PickedRows;
using exec::host::selected;

void scatter_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.latest();
  if (args.slot(args.made_count() - 1) % 256 != 0) {
    return gather(queue, args.gradient_of(), args.saved_in(1), to);
  }
  copy_in_order(queue, args.gradient_of(), to);
  put_number(queue, 0, args.saved_in(1), to);
}

void stack(const Args& args, const Queue& queue) {
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  for (std::size_t i = 0; i < args.call().input_count; ++i) {
    copy_in_order(queue, args.in(i), selected(args.output(), axis, static_cast<std::int64_t>(i)));
  }
}

dsplan_tensor part_of(const Args& args, const dsplan_tensor& whole, const dsplan_tensor& part) {
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  return narrowed(whole, axis, static_cast<std::int64_t>(args.number()), part.dims[axis]);
}

// A copy of the whole, then of the part; zeros, which take the part's place.
void copy_into_backward(const Args& args, const Queue& queue) {
  const dsplan_tensor* own = args.find(SlotKind::Gradient, 0);
  const dsplan_tensor& whole = own != nullptr ? *own : args.temporary(0);
  if (args.part() == 0) return copy_in_order(queue, args.gradient_of(), whole);
  const dsplan_tensor& now = args.latest();
  const dsplan_tensor part = part_of(args, whole, now);
  const bool last = args.made_count() == static_cast<std::size_t>(args.integer(DSPLAN_BACKWARD_MADE));
  if (own == nullptr || !last) return copy_in_order(queue, part, now);
  fill(queue, now, 0);
  copy_in_order(queue, now, part);
}

Groups groups_of(const Args& args) {
  Groups groups;
  groups.direct = args.number() == 1;
  if (args.backward()) {
    groups.offsets = args.saved_in(2);
    groups.out = args.gradient_of();
  } else {
    groups.x = args.in(0);
    groups.weights = args.in(1);
    groups.offsets = args.in(2);
    groups.out = args.output();
  }
  return groups;
}

// The gradient that was made last, beside what a library's kernel would work in.
void grouped(const Args& args, const Queue& queue) {
  Groups groups = groups_of(args);
  if (!args.backward()) return multiply_groups(queue, groups);
  std::size_t j = args.made_count() - 1;
  while (args.slot(j) / 256 != static_cast<std::int64_t>(SlotKind::Gradient)) --j;
  if (args.slot(j) % 256 == 1) {
    groups.x = args.saved_in(0);
    groups.weights = args.gradient(1);
    return group_weights_gradient(queue, groups);
  }
  groups.weights = args.saved_in(1);
  groups.x = args.gradient(0);
  group_rows_gradient(queue, groups);
}

void polar(const Args& args, const Queue& queue) {
  if (args.part() == 0) return fill(queue, args.temporary(0), 1);
  polar_pairs(queue, args.in(0), args.output());
}

void complex_multiply(const Args& args, const Queue& queue) {
  if (!args.backward()) return multiply_pairs(queue, args.in(0), args.in(1), args.output());
  if (args.part() == 0) return conjugate_pairs(queue, args.saved_in(1), args.temporary(0));
  multiply_pairs(queue, args.gradient_of(), args.temporary(0), args.gradient(0));
}

void sorted(const Args& args, const Queue& queue) {
  expect(last_of(args.in(0)) == count_of(args.in(0)), "what is sorted is no line");
  sort_indices(queue, args.in(0), args.output(0), args.output(1));
}

bool forward(const Args& args, const Queue& queue) {
  switch (args.op()) {
    case Op::Conv2d:
      convolution(queue, args.in(0), args.in(1), args.has_in(2) ? &args.in(2) : nullptr, args.output());
      return true;
    case Op::Index:
      if (exec::host::picks_along(args)) {
        index_along(queue, args);
        return true;
      }
      index_rows(queue, args.in(0), PickedRows(args, 1, args.in(0), args.output()), args.output());
      return true;
    case Op::Gather: gather(queue, args.in(0), args.in(1), args.output()); return true;
    case Op::Scatter:
      if (args.has_in(2)) {
        put(queue, args.in(2), args.in(1), args.in(0), false);
      } else {
        put_number(queue, args.number(), args.in(1), args.in(0));
      }
      return true;
    case Op::TopK:
    case Op::Max: largest(queue, args.in(0), args.output(0), args.output(1)); return true;
    case Op::Sort: sorted(args, queue); return true;
    case Op::Stack: stack(args, queue); return true;
    case Op::RepeatInterleave: repeat_interleave(queue, args.in(0), args.output()); return true;
    case Op::Histogram: histogram(queue, args.in(0), args.output()); return true;
    case Op::IndexPut: put(queue, args.in(1), args.in(0), args.output(), false); return true;
    case Op::FloorDivScalar:
      map(queue, Arithmetic::Integer, args.output(), {Function::FloorDivNumber, {&args.in(0)}, args.number()});
      return true;
    case Op::CopyInto: copy_in_order(queue, args.in(1), part_of(args, args.in(0), args.in(1))); return true;
    case Op::GroupedMatmul: grouped(args, queue); return true;
    case Op::Polar: polar(args, queue); return true;
    case Op::ComplexMul: complex_multiply(args, queue); return true;
    default: return false;
  }
}

// Into zeros.
void put_back(const Args& args, const Queue& queue, const dsplan_tensor& places, bool add) {
  fill(queue, args.gradient(0), 0);
  put(queue, args.gradient_of(), places, args.gradient(0), add);
}

}  // namespace

bool run_picks(const Args& args, const Queue& queue) {
  if (!args.backward()) return forward(args, queue);
  switch (args.op()) {
    case Op::Conv2d:
      convolution_backward(queue, args.saved_in(0), args.saved_in(1), args.gradient_of(),
                           args.find(SlotKind::Gradient, 1), args.find(SlotKind::Gradient, 2));
      return true;
    case Op::Index:
      if (exec::host::picks_along(args)) {
        index_along(queue, args);
        return true;
      }
      index_backward(queue, args.gradient_of(), PickedRows(args, 1, args.gradient(0), args.gradient_of()),
                     args.gradient(0));
      return true;
    case Op::Gather: put_back(args, queue, args.saved_in(1), true); return true;
    case Op::TopK:
    case Op::Max: put_back(args, queue, args.saved_out(1), false); return true;
    case Op::Scatter: scatter_backward(args, queue); return true;
    case Op::Expand: sum_to(queue, args.gradient_of(), args.gradient(0)); return true;
    case Op::CopyInto: copy_into_backward(args, queue); return true;
    case Op::GroupedMatmul: grouped(args, queue); return true;
    case Op::ComplexMul: complex_multiply(args, queue); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
