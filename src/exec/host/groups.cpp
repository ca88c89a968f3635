// Products of groups of rows, each with the weight of its group, and products of complex numbers.
#include <cmath>

#include "exec/host/args.h"
#include "exec/host/gemm.h"

namespace dsplan::exec::host {
namespace {

Matrix matrix_of(const dsplan_tensor& tensor) {
  expect(tensor.rank == 2, "rows have two dimensions");
  return {static_cast<unsigned char*>(tensor.data),
          dtype_of(tensor),
          tensor.dims[0],
          tensor.dims[1],
          tensor.strides[0],
          tensor.strides[1]};
}

Matrix flipped(Matrix m) {
  std::swap(m.rows, m.columns);
  std::swap(m.row, m.column);
  return m;
}

Matrix some_rows(Matrix m, std::int64_t begin, std::int64_t end) {
  m.data += begin * m.row * bytes_per_element(m.dtype);
  m.rows = end - begin;
  return m;
}

// A group's weight as it multiplies from the right, [in, out]; or as it lies.
Matrix group_weight(const Args& args, const dsplan_tensor& weights, std::int64_t group) {
  expect(weights.rank == 3, "weights of groups have three dimensions");
  const Matrix own = matrix_of(selected(weights, 0, group));
  return args.number() == 1 ? own : flipped(own);
}

// f(group, first row, row behind the last); the offsets are where each group ends.
void each_group(const dsplan_tensor& offsets, std::int64_t rows, auto f) {
  const Strided ends = strided(offsets);
  std::int64_t begin = 0;
  for (std::int64_t group = 0; group < count_of(offsets); ++group) {
    std::int64_t end = 0;
    load(ends, group, 1, &end);
    expect(end >= begin && end <= rows, "groups end in another order");
    f(group, begin, end);
    begin = end;
  }
}

void multiplied(const Args& args) {
  const Matrix x = matrix_of(args.in(0));
  const Matrix out = matrix_of(args.output());
  each_group(args.in(2), x.rows, [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    multiply(some_rows(x, begin, end), group_weight(args, args.in(1), group), some_rows(out, begin, end));
  });
}

void weight_gradient(const Args& args, const dsplan_tensor& to) {
  const Matrix x = matrix_of(args.saved_in(0));
  const Matrix g = matrix_of(args.gradient_of());
  each_group(args.saved_in(2), x.rows, [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
    if (begin == end) return map<double, 0>(selected(to, 0, group), {}, [](std::int64_t) { return 0.0; });
    multiply(flipped(some_rows(x, begin, end)), some_rows(g, begin, end), group_weight(args, to, group));
  });
}

void row_gradient(const Args& args, const dsplan_tensor& to) {
  const Matrix g = matrix_of(args.gradient_of());
  each_group(args.saved_in(2), g.rows, [&](std::int64_t group, std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    multiply(some_rows(g, begin, end), flipped(group_weight(args, args.saved_in(1), group)),
             some_rows(matrix_of(to), begin, end));
  });
}

// Which gradient the kernel makes: that which was made last, beside what a GPU's kernel works in.
void grouped_backward(const Args& args) {
  for (std::size_t j = args.made_count(); j-- > 0;) {
    const std::int64_t slot = args.slot(j);
    if (slot / 256 != static_cast<std::int64_t>(SlotKind::Gradient)) continue;
    if (slot % 256 == 1) return weight_gradient(args, args.gradient(1));
    return row_gradient(args, args.gradient(0));
  }
}

// Pairs of the last dimension are numbers.
template <class C>
void multiply_pairs(const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) {
  const Strided x = broadcast(a, dims_of(out));
  const Strided y = broadcast(b, dims_of(out));
  const Strided to = strided(out);
  for (std::int64_t at = 0; at < count_of(out); at += 2) {
    std::array<C, 2> p{};
    std::array<C, 2> q{};
    load(x, at, 2, p.data());
    load(y, at, 2, q.data());
    const std::array<C, 2> product{p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]};
    store(to, at, 2, product.data());
  }
}

// Ones, then numbers of that size at the angles.
void polar(const Args& args) {
  if (args.part() == 0) return map<double, 0>(args.temporary(0), {}, [](std::int64_t) { return 1.0; });
  const Strided angles = strided(args.in(0));
  map<double, 0>(args.output(), {}, [&](std::int64_t at) {
    double angle = 0;
    load(angles, at / 2, 1, &angle);
    return at % 2 == 0 ? std::cos(angle) : std::sin(angle);
  });
}

void complex_backward(const Args& args) {
  const dsplan_tensor& conjugate = args.temporary(0);
  if (args.part() == 1) {
    return with_arithmetic(dtype_of(args.gradient(0)),
                           [&]<class C>(C) { multiply_pairs<C>(args.gradient_of(), conjugate, args.gradient(0)); });
  }
  const Strided other = strided(args.saved_in(1));
  map<double, 0>(conjugate, {}, [&](std::int64_t at) {
    double x = 0;
    load(other, at, 1, &x);
    return at % 2 == 0 ? x : -x;
  });
}

}  // namespace

bool run_groups(const Args& args) {
  switch (args.op()) {
    case Op::GroupedMatmul: args.backward() ? grouped_backward(args) : multiplied(args); return true;
    case Op::Polar:
      if (args.backward()) return false;
      polar(args);
      return true;
    case Op::ComplexMul:
      if (args.backward()) {
        complex_backward(args);
      } else {
        with_arithmetic(dtype_of(args.output()),
                        [&]<class C>(C) { multiply_pairs<C>(args.in(0), args.in(1), args.output()); });
      }
      return true;
    default: return false;
  }
}

}  // namespace dsplan::exec::host
