// Kernels of integers and flags: what is computed to learn how attention is masked, and which labels count.
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

// As a matrix of one column, or of one row, whatever its dimensions: flags are asked of lines of numbers.
dsplan_tensor line(const dsplan_tensor& tensor, bool column) {
  const Strided seen = strided(tensor);
  expect(seen.rank == 1, "numbers that do not lie as one line");
  dsplan_tensor result = tensor;
  result.rank = 2;
  result.dims[column ? 0 : 1] = seen.dims[0];
  result.strides[column ? 0 : 1] = seen.strides[0];
  result.dims[column ? 1 : 0] = 1;
  result.strides[column ? 1 : 0] = 0;
  return result;
}

// Flags [1, 1, Q, K]: whether query i comes no earlier than key j; of four inputs the last two count. Of two inputs the
// first is compared with the second as they broadcast, a single one with the node's number.
void greater_equal(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.output();
  if (args.call().input_count == 2) {
    return map(queue, Arithmetic::Integer, to, {Function::GreaterEqual, {&args.in(0), &args.in(1)}});
  }
  if (args.call().input_count == 1) {
    return map(queue, Arithmetic::Integer, to, {Function::GreaterEqualNumber, {&args.in(0)}, args.number()});
  }
  const dsplan_tensor queries = line(args.in(2), true);
  const dsplan_tensor keys = line(args.in(3), false);
  expect_count(to, queries.dims[0] * keys.dims[1], "the flags");
  dsplan_tensor flags = line(to, false);
  flags.dims[0] = queries.dims[0];
  flags.dims[1] = keys.dims[1];
  flags.strides[0] = keys.dims[1] * flags.strides[1];
  map(queue, Arithmetic::Double, flags, {Function::GreaterEqual, {&queries, &keys}});
}

// The last column against the node's number, or as many elements as there are.
void equal(const Args& args, const Queue& queue) {
  const dsplan_tensor& from = args.in(0);
  if (count_of(from) == count_of(args.output())) {
    return map(queue, Arithmetic::Double, args.output(), {Function::EqualNumber, {&from}, args.number()});
  }
  const dsplan_tensor last = exec::host::selected(from, static_cast<std::size_t>(from.rank - 1), last_of(from) - 1);
  expect_dims(args.output(), dims_of(last), "the flags");
  map(queue, Arithmetic::Double, args.output(), {Function::EqualNumber, {&last}, args.number()});
}

// where(flags, first, third); of two: their conjunction.
void masked_fill(const Args& args, const Queue& queue) {
  const dsplan_tensor& to = args.output();
  if (args.call().input_count == 2) {
    return map(queue, Arithmetic::Double, to, {Function::Both, {&args.in(0), &args.in(1)}});
  }
  map(queue, Arithmetic::Double, to, {Function::Choose, {&args.in(0), &args.in(1), &args.in(2)}});
}

// Differences of neighbours along the last dimension; of as many elements: less the node's number.
void difference(const Args& args, const Queue& queue) {
  const dsplan_tensor& from = args.in(0);
  const dsplan_tensor& to = args.output();
  if (count_of(from) == count_of(to)) {
    return map(queue, Arithmetic::Double, to, {Function::SubNumber, {&from}, args.number(), 0, true});
  }
  const auto last = static_cast<std::size_t>(from.rank - 1);
  const std::int64_t columns = from.dims[last] - 1;
  const dsplan_tensor left = exec::host::narrowed(from, last, 0, columns);
  const dsplan_tensor right = exec::host::narrowed(from, last, 1, columns);
  map(queue, Arithmetic::Double, to, {Function::ReversedSub, {&left, &right}});
}

}  // namespace

bool run_flags(const Args& args, const Queue& queue) {
  if (args.backward()) return false;
  switch (args.op()) {
    case Op::GreaterEqual: greater_equal(args, queue); return true;
    case Op::NotEqual:
      expect_dims(args.output(), dims_of(args.in(0)), "the flags");
      map(queue, Arithmetic::Double, args.output(), {Function::NotEqualNumber, {&args.in(0)}, args.number()});
      return true;
    case Op::Equal: equal(args, queue); return true;
    case Op::All:
      expect_count(args.output(), 1, "the verdict");
      all_of_rows(queue, args.in(0), args.output());
      return true;
    case Op::MaskedFill: masked_fill(args, queue); return true;
    case Op::Arange:
      map(queue, Arithmetic::Double, args.output(),
          {args.flag(DSPLAN_FLAG_FILLED) ? Function::Fill : Function::Count,
           {},
           args.number(),
           exec::host::step_of_range(args)});
      return true;
    case Op::Sub: difference(args, queue); return true;
    default: return false;
  }
}

}  // namespace dsplan::cuda
