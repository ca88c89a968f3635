// Kernels of integers and flags: what is computed to learn how attention is masked, and which labels count.
#include <algorithm>

#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

// Row r, column c of a tensor seen as a matrix of its last dimension.
double element(const Strided& tensor, std::int64_t at) {
  double x = 0;
  load(tensor, at, 1, &x);
  return x;
}

// Flags [1, 1, Q, K]: whether query i comes no earlier than key j; of four inputs the last two count. Of two inputs the
// first is compared with the second as they broadcast, a single one with the node's number.
void greater_equal(const Args& args) {
  const dsplan_tensor& to = args.output();
  if (args.call().input_count == 2) {
    return map<std::int64_t, 2>(to, {&args.in(0), &args.in(1)},
                                [](std::int64_t a, std::int64_t b) { return std::int64_t{a >= b ? 1 : 0}; });
  }
  if (args.call().input_count == 1) {
    const auto limit = static_cast<std::int64_t>(args.number());
    return map<std::int64_t, 1>(to, {&args.in(0)}, [=](std::int64_t x) { return std::int64_t{x >= limit ? 1 : 0}; });
  }
  const dsplan_tensor& queries = args.in(2);
  const dsplan_tensor& keys = args.in(3);
  expect_count(to, count_of(queries) * count_of(keys), "the flags");
  const Strided q = strided(queries);
  const Strided k = strided(keys);
  const std::int64_t columns = count_of(keys);
  map<std::int64_t, 0>(to, {}, [&](std::int64_t at) {
    return std::int64_t{element(q, at / columns) >= element(k, at % columns) ? 1 : 0};
  });
}

// Of one tensor: with the node's number.
void not_equal(const Args& args) {
  const double number = args.number();
  expect_dims(args.output(), dims_of(args.in(0)), "the flags");
  map<double, 1>(args.output(), {&args.in(0)}, [=](double x) { return x != number ? 1.0 : 0.0; });
}

// The last column against the node's number, or as many elements as there are.
void equal(const Args& args) {
  const dsplan_tensor& from = args.in(0);
  const double number = args.number();
  if (count_of(from) == count_of(args.output())) {
    return map<double, 1>(args.output(), {&from}, [=](double x) { return x == number ? 1.0 : 0.0; });
  }
  const dsplan_tensor last = selected(from, static_cast<std::size_t>(from.rank - 1), last_of(from) - 1);
  expect_dims(args.output(), dims_of(last), "the flags");
  map<double, 1>(args.output(), {&last}, [=](double x) { return x == number ? 1.0 : 0.0; });
}

void all(const Args& args) {
  expect_count(args.output(), 1, "the verdict");
  const Strided from = strided(args.in(0));
  const std::int64_t count = count_of(args.in(0));
  std::int64_t verdict = 1;
  for (std::int64_t at = 0; at < count && verdict != 0; ++at) verdict = element(from, at) != 0 ? 1 : 0;
  store(strided(args.output()), 0, 1, &verdict);
}

// where(flags, first, third); of two: their conjunction.
void masked_fill(const Args& args) {
  const dsplan_tensor& to = args.output();
  if (args.call().input_count == 2) {
    return map<double, 2>(to, {&args.in(0), &args.in(1)},
                          [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; });
  }
  map<double, 3>(to, {&args.in(0), &args.in(1), &args.in(2)},
                 [](double set, double flag, double unset) { return flag != 0 ? set : unset; });
}

void arange(const Args& args) {
  const bool filled = args.flag(DSPLAN_FLAG_FILLED);
  const double number = args.number();
  const double step = filled ? 0 : step_of_range(args);
  map<double, 0>(args.output(), {}, [=](std::int64_t at) { return number + static_cast<double>(at) * step; });
}

// Differences of neighbours along the last dimension; of as many elements: less the node's number.
void difference(const Args& args) {
  const dsplan_tensor& from = args.in(0);
  const dsplan_tensor& to = args.output();
  if (count_of(from) == count_of(to)) {
    const double number = args.number();
    const Strided source = strided(from);
    return map<double, 0>(to, {}, [&](std::int64_t at) { return element(source, at) - number; });
  }
  const auto last = static_cast<std::size_t>(from.rank - 1);
  const std::int64_t columns = from.dims[last] - 1;
  const dsplan_tensor left = narrowed(from, last, 0, columns);
  const dsplan_tensor right = narrowed(from, last, 1, columns);
  map<double, 2>(to, {&left, &right}, [](double a, double b) { return b - a; });
}

}  // namespace

bool run_flags(const Args& args) {
  if (args.backward()) return false;
  switch (args.op()) {
    case Op::GreaterEqual: greater_equal(args); return true;
    case Op::NotEqual: not_equal(args); return true;
    case Op::Equal: equal(args); return true;
    case Op::All: all(args); return true;
    case Op::MaskedFill: masked_fill(args); return true;
    case Op::Arange: arange(args); return true;
    case Op::Sub: difference(args); return true;
    default: return false;
  }
}

}  // namespace dsplan::exec::host
