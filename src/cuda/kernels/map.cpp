// Elementwise kernels, and sums over what was broadcast.
#include "exec/bodies/philox.h"

#include "cuda/element.h"
#include "cuda/grid.h"
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

template <class C>
struct MapKernel {
  Strided out;
  Strided in[3];
  int operands;
  Function function;
  C n;
  C m;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const C a = operands > 0 ? load<C>(in[0], i) : C(0);
    const C b = operands > 1 ? load<C>(in[1], i) : C(0);
    const C c = operands > 2 ? load<C>(in[2], i) : C(0);
    store(out, i, apply<C>(function, a, b, c, i, n, m));
  }
};

template <class C>
void map_as(const Queue& queue, const dsplan_tensor& out, const Elementwise& what) {
  MapKernel<C> kernel{strided(out), {}, 0, what.function, static_cast<C>(what.n), static_cast<C>(what.m)};
  for (const dsplan_tensor* in : what.in) {
    if (in == nullptr) break;
    if (what.in_order) expect_count(*in, count_of(out), "an operand");
    kernel.in[kernel.operands++] = what.in_order ? strided(*in) : exec::host::broadcast(*in, dims_of(out));
  }
  each(queue, count_of(out), kernel);
}

struct MaskKernel {
  Strided out;
  std::uint64_t key;
  std::int64_t first_sample;
  std::int64_t of_sample;
  double p;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const auto sample = static_cast<std::uint64_t>(first_sample + i / of_sample);
    const bool kept = exec::bodies::kept(key, sample, static_cast<std::uint64_t>(i % of_sample), p);
    store(out, i, std::int64_t{kept ? 1 : 0});
  }
};

// What `from` has more than `to`, innermost dimensions first: for each element of `to` its summands in a fixed order.
struct SumKernel {
  Strided kept;    // `from` at the elements of `to`.
  Strided summed;  // The summands of one of them.
  Strided to;
  std::int64_t summands;
  double scale;

  [[nodiscard]] DSPLAN_KERNEL double sum(std::int64_t element, std::int64_t first, std::int64_t step) const {
    const std::int64_t base = place(kept, element);
    double total = 0;
    for (std::int64_t k = first; k < summands; k += step) {
      total += load_at<double>(kept.data, kept.dtype, base + place(summed, k));
    }
    return total;
  }
  DSPLAN_KERNEL void operator()(std::int64_t element) const { store(to, element, sum(element, 0, 1) * scale); }
  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t element) const {
    const double total = team.sum(sum(element, team.lane(), Team::kLanes));
    if (team.lane() == 0) store(to, element, total * scale);
  }
};

SumKernel sum_kernel(const dsplan_tensor& from, const dsplan_tensor& to, double scale) {
  expect(to.rank <= from.rank, "a sum has no more dimensions than its summands");
  dsplan_tensor kept = from;
  dsplan_tensor summed = from;
  const std::int32_t missing = from.rank - to.rank;
  std::int64_t summands = 1;
  for (std::int32_t d = 0; d < from.rank; ++d) {
    const std::int64_t own = d < missing ? 1 : to.dims[d - missing];
    expect(own == from.dims[d] || own == 1, "a sum has dimensions that its summands lack");
    if (own == from.dims[d]) {
      summed.dims[d] = 1;
    } else {
      kept.dims[d] = 1;
      summands *= from.dims[d];
    }
  }
  return {strided(kept), strided(summed), strided(to), summands, scale};
}

struct AllKernel {
  Strided from;
  Strided to;
  std::int64_t columns;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t row) const {
    bool all = true;
    for (std::int64_t c = team.lane(); c < columns; c += Team::kLanes) {
      all = all && load<double>(from, row * columns + c) != 0;
    }
    all = team.all(all);
    if (team.lane() == 0) store(to, row, std::int64_t{all ? 1 : 0});
  }
};

template <class C>
struct CumulativeKernel {
  Strided from;
  Strided to;
  std::int64_t columns;

  DSPLAN_KERNEL void operator()(std::int64_t row) const {
    C sum{};
    for (std::int64_t c = 0; c < columns; ++c) {
      sum += load<C>(from, row * columns + c);
      store(to, row * columns + c, sum);
    }
  }
};

template <class C>
void cumulative_as(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  const std::int64_t columns = last_of(to);
  each(queue, count_of(to) / (columns > 0 ? columns : 1), CumulativeKernel<C>{strided(from), strided(to), columns});
}

}  // namespace

void map(const Queue& queue, Arithmetic in, const dsplan_tensor& out, const Elementwise& what) {
  switch (in) {
    case Arithmetic::Single: return map_as<float>(queue, out, what);
    case Arithmetic::Double: return map_as<double>(queue, out, what);
    case Arithmetic::Integer: return map_as<std::int64_t>(queue, out, what);
  }
}

void copy_in_order(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  expect_count(to, count_of(from), "a copy");
  const DType a = dtype_of(from);
  const DType b = dtype_of(to);
  const bool wide = a == DType::Float64 || b == DType::Float64;
  const bool floats = is_floating(a) || is_floating(b);
  const Arithmetic in = !floats ? Arithmetic::Integer : wide ? Arithmetic::Double : Arithmetic::Single;
  map(queue, in, to, {Function::Copy, {&from}, 0, 0, true});
}

void fill(const Queue& queue, const dsplan_tensor& to, double number) {
  map(queue, is_floating(dtype_of(to)) ? Arithmetic::Double : Arithmetic::Integer, to, {Function::Fill, {}, number});
}

void dropout_mask(const Queue& queue, const dsplan_tensor& mask, const dsplan_random& random, double p) {
  const std::int64_t count = count_of(mask);
  const std::int64_t of_sample = count / (random.samples > 1 ? random.samples : 1);
  expect(of_sample > 0, "more samples than elements");
  each(queue, count, MaskKernel{strided(mask), random.key, random.first_sample, of_sample, p});
}

void sum_to(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to, double scale) {
  // As many elements in other dimensions are brought over as they stand.
  if (count_of(from) == count_of(to) && scale == 1) return copy_in_order(queue, from, to);
  const SumKernel kernel = sum_kernel(from, to, scale);
  const std::int64_t count = count_of(to);
  const bool along = kernel.summed.strides[kernel.summed.rank - 1] == 1;
  constexpr std::int64_t kManySummands = 64;
  constexpr std::int64_t kFewSums = 1024;
  if (kernel.summands >= kManySummands && (along || count < kFewSums)) return teams(queue, count, kernel);
  each(queue, count, kernel);
}

void all_of_rows(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  const std::int64_t rows = count_of(to);
  expect(rows > 0 && count_of(from) % rows == 0, "the flags of rows");
  teams(queue, rows, AllKernel{strided(from), strided(to), count_of(from) / rows});
}

void cumulative(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  is_floating(dtype_of(to)) ? cumulative_as<double>(queue, from, to) : cumulative_as<std::int64_t>(queue, from, to);
}

}  // namespace dsplan::cuda
