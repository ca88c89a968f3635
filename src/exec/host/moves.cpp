// Copies, joins and reductions over whole dimensions.
#include <algorithm>

#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

void zero(const dsplan_tensor& tensor) {
  map<std::int64_t, 0>(tensor, {}, [](std::int64_t) { return std::int64_t{0}; });
}

// Adds up what stands for repeated elements: dimensions of `to` whose stride is 0 go, `from` has them all.
void sum_repeated(const dsplan_tensor& from, const dsplan_tensor& to) {
  dsplan_tensor once = to;
  for (std::int32_t d = 0; d < once.rank; ++d) {
    if (once.strides[d] == 0) once.dims[d] = 1;
  }
  sum_to(from, once);
}

// The gradient comes back through the view: it is written where the view would show it.
void view_backward(const Args& args) {
  const dsplan_tensor& to = args.gradient(0);
  const dsplan_tensor& from = args.gradient_of();
  expect_dims(to, dims_of(to), "the gradient");
  const std::optional<OffsetLayout> seen = apply_steps(layout_of(to), steps_of(args));
  expect(seen.has_value(), "the view of the gradient is none");
  const bool repeats = std::ranges::any_of(
      steps_of(args), [](const ViewStep& step) { return step.kind == ViewStep::Kind::Repeat && step.length > 1; });
  const dsplan_tensor target = with_layout(to, seen->layout, seen->offset);
  if (!repeats) return copy_in_order(from, target);
  const std::optional<Layout> apart = reshaped(layout_of(from), seen->layout.extents());
  expect(apart.has_value(), "a gradient of repeated elements does not come apart");
  sum_repeated(with_layout(from, *apart, 0), target);
}

void slice_backward(const Args& args) {
  const dsplan_tensor& to = args.gradient(0);
  zero(to);
  const std::optional<OffsetLayout> seen = apply_steps(layout_of(to), steps_of(args));
  expect(seen.has_value(), "a slice is none");
  copy_in_order(args.gradient_of(), with_layout(to, seen->layout, seen->offset));
}

// Zeros, one after another, for the outputs of which no gradient comes; then the parts side by side.
void split_backward(const Args& args) {
  const std::int64_t slot = args.slot(args.made_count() - 1);
  if (slot / 256 == static_cast<std::int64_t>(SlotKind::Temporary)) return zero(args.latest());
  const dsplan_tensor& to = args.gradient(0);
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  std::int64_t start = 0;
  std::size_t undefined = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.integer(DSPLAN_OUTPUTS)); ++i) {
    const dsplan_tensor& part = args.has_gradient(i) ? args.gradient_of(i) : args.temporary(undefined++);
    const std::int64_t length = count_of(part) * to.dims[axis] / count_of(to);  // It may come in other dimensions.
    copy_in_order(part, narrowed(to, axis, start, length));
    start += length;
  }
  expect(start == to.dims[axis], "parts do not fill the whole");
}

// A copy in logical order; with a number, of what stands behind the first column.
void contiguous(const Args& args) {
  dsplan_tensor from = args.in(0);
  if (args.number() != 0) {
    const auto last = static_cast<std::size_t>(from.rank - 1);
    from = narrowed(from, last, 1, from.dims[last] - 1);
  }
  copy_in_order(from, args.output());
}

void cat(const Args& args) {
  const dsplan_tensor& to = args.output();
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  std::int64_t start = 0;
  for (std::size_t i = 0; i < args.call().input_count; ++i) {
    const dsplan_tensor& from = args.in(i);
    const dsplan_tensor part = narrowed(to, axis, start, from.dims[axis]);
    start += from.dims[axis];
    if (is_floating(dtype_of(to))) {
      with_arithmetic(dtype_of(to), [&]<class C>(C) { map<C, 1>(part, {&from}, [](C x) { return x; }); });
    } else {
      map<std::int64_t, 1>(part, {&from}, [](std::int64_t x) { return x; });
    }
  }
  expect(start == to.dims[axis], "parts do not fill the whole");
}

// At the end of each dimension.
void pad(const Args& args) {
  const dsplan_tensor& to = args.output();
  const double number = args.number();
  map<double, 0>(to, {}, [=](std::int64_t) { return number; });
  copy_in_order(args.in(0), corner(to, args.in(0)));
}

void tril(const Args& args) {
  const dsplan_tensor& from = args.backward() ? args.gradient_of() : args.in(0);
  const dsplan_tensor& to = args.backward() ? args.gradient(0) : args.output();
  expect(to.rank >= 2, "a triangle needs two dimensions");
  expect_dims(to, dims_of(from), "the triangle");
  const std::int64_t columns = last_of(to);
  const std::int64_t rows = to.dims[to.rank - 2];
  const Strided source = strided(from);
  map<double, 0>(to, {}, [&](std::int64_t element) {
    double x = 0;
    if (element % columns > element / columns % rows) return x;
    load(source, element, 1, &x);
    return x;
  });
}

void mean(const Args& args) {
  const dsplan_tensor& from = args.in(0);
  const dsplan_tensor& to = args.output();
  sum_to(from, to, static_cast<double>(count_of(to)) / static_cast<double>(count_of(from)));
}

void mean_backward(const Args& args) {
  const dsplan_tensor& to = args.gradient(0);
  const double of = static_cast<double>(count_of(to)) / static_cast<double>(count_of(args.gradient_of()));
  with_arithmetic(dtype_of(to), [&]<class C>(C) {
    const C count = static_cast<C>(of);
    map<C, 1>(to, {&args.gradient_of()}, [=](C g) { return g / count; });
  });
}

// Along the last dimension. Integers are brought to int64 in a tensor of their own.
template <class C>
void cumulative(const Args& args) {
  const dsplan_tensor& to = args.output();
  expect_dims(to, dims_of(args.in(0)), "the sums");
  const dsplan_tensor* wide = args.find(SlotKind::Extra, 0);
  if (wide != nullptr) map<C, 1>(*wide, {&args.in(0)}, [](C x) { return x; });
  const Strided source = strided(wide != nullptr ? *wide : args.in(0));
  const std::int64_t columns = last_of(to);
  C sum{};
  map<C, 0>(to, {}, [&](std::int64_t element) {
    C x{};
    load(source, element, 1, &x);
    return sum = element % columns == 0 ? x : sum + x;
  });
}

bool move_forward(const Args& args) {
  switch (args.op()) {
    case Op::Contiguous: contiguous(args); return true;
    case Op::Cat: cat(args); return true;
    case Op::Pad: pad(args); return true;
    case Op::Tril: tril(args); return true;
    case Op::SumDim: sum_to(args.in(0), summed_beside(args)); return true;
    case Op::MeanLast: mean(args); return true;
    case Op::CumSum:
      if (!is_floating(dtype_of(args.output()))) {
        cumulative<std::int64_t>(args);
      } else {
        cumulative<double>(args);
      }
      return true;
    default: return false;
  }
}

}  // namespace

void copy_in_order(const dsplan_tensor& from, const dsplan_tensor& to) {
  expect_count(to, count_of(from), "a copy");
  const Strided source = strided(from);
  const Strided target = strided(to);
  const auto copy = [&]<class C>(C) {
    std::array<C, kChunk> part;
    const std::int64_t count = count_of(to);
    for (std::int64_t begin = 0; begin < count; begin += kChunk) {
      const std::int64_t n = std::min(kChunk, count - begin);
      load(source, begin, n, part.data());
      store(target, begin, n, part.data());
    }
  };
  if (is_floating(source.dtype) || is_floating(target.dtype)) {
    const bool wide = source.dtype == DType::Float64 || target.dtype == DType::Float64;
    with_arithmetic(wide ? DType::Float64 : DType::Float32, copy);
  } else {
    copy(std::int64_t{});
  }
}

namespace {

// What `from` has more than `to`, innermost dimensions first: for each element of `to` its summands in a fixed order.
struct Reduction {
  Strided kept;    // `from` at the elements of `to`.
  Strided summed;  // The summands of one of them.
  std::int64_t summands = 1;
};

Reduction reduction_of(const dsplan_tensor& from, const dsplan_tensor& to) {
  expect(to.rank <= from.rank, "a sum has no more dimensions than its summands");
  dsplan_tensor kept = from;
  dsplan_tensor summed = from;
  const std::int32_t missing = from.rank - to.rank;
  Reduction reduction;
  for (std::int32_t d = 0; d < from.rank; ++d) {
    const std::int64_t own = d < missing ? 1 : to.dims[d - missing];
    expect(own == from.dims[d] || own == 1, "a sum has dimensions that its summands lack");
    if (own == from.dims[d]) {
      summed.dims[d] = 1;
    } else {
      kept.dims[d] = 1;
      reduction.summands *= from.dims[d];
    }
  }
  reduction.kept = strided(kept);
  reduction.summed = strided(summed);
  return reduction;
}

// Summands one after another, for many sums at once: runs along the kept dimension stay together.
template <class C>
void sum_kept_runs(const Reduction& r, const Strided& to, std::int64_t count, double scale) {
  const std::int64_t width = bytes_per_element(r.kept.dtype);
  std::array<C, kChunk> part;
  std::array<double, kChunk> sums;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, count - begin);
    std::fill_n(sums.begin(), n, 0.0);
    // The offset of each summand, by its number.
    for (std::int64_t k = 0; k < r.summands; ++k) {
      std::int64_t offset = 0;
      std::int64_t rest = k;
      for (std::size_t d = r.summed.rank; d-- > 0;) {
        offset += rest % r.summed.dims[d] * r.summed.strides[d];
        rest /= r.summed.dims[d];
      }
      Strided at = r.kept;
      at.data += offset * width;
      load(at, begin, n, part.data());
      for (std::int64_t i = 0; i < n; ++i)
        sums[static_cast<std::size_t>(i)] += static_cast<double>(part[static_cast<std::size_t>(i)]);
    }
    for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] *= scale;
    store(to, begin, n, sums.data());
  }
}

// One sum after another, its summands in runs.
template <class C>
void sum_summed_runs(const Reduction& r, const Strided& to, std::int64_t count, double scale) {
  const std::int64_t width = bytes_per_element(r.kept.dtype);
  std::array<C, kChunk> part;
  for (std::int64_t element = 0; element < count; ++element) {
    std::int64_t offset = 0;
    std::int64_t rest = element;
    for (std::size_t d = r.kept.rank; d-- > 0;) {
      offset += rest % r.kept.dims[d] * r.kept.strides[d];
      rest /= r.kept.dims[d];
    }
    Strided at = r.summed;
    at.data += offset * width;
    double sum = 0;
    for (std::int64_t begin = 0; begin < r.summands; begin += kChunk) {
      const std::int64_t n = std::min(kChunk, r.summands - begin);
      load(at, begin, n, part.data());
      for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(part[static_cast<std::size_t>(i)]);
    }
    sum *= scale;
    store(to, element, 1, &sum);
  }
}

}  // namespace

void sum_to(const dsplan_tensor& from, const dsplan_tensor& to, double scale) {
  dsplan_tensor aligned = to;
  // As many elements in other dimensions are brought over as they stand.
  if (count_of(from) == count_of(to) && scale == 1) return copy_in_order(from, to);
  const Reduction reduction = reduction_of(from, aligned);
  const Strided target = strided(to);
  const std::int64_t count = count_of(to);
  if (!is_floating(dtype_of(to))) {
    expect(scale == 1, "a mean of integers");
    sum_kept_runs<std::int64_t>(reduction, target, count, 1);
    return;
  }
  const bool rows = reduction.summed.strides[reduction.summed.rank - 1] == 1 && reduction.summands > 1;
  with_arithmetic(dtype_of(from), [&]<class C>(C) {
    if (rows) {
      sum_summed_runs<C>(reduction, target, count, scale);
    } else {
      sum_kept_runs<C>(reduction, target, count, scale);
    }
  });
}

bool run_moves(const Args& args) {
  if (!args.backward()) return move_forward(args);
  switch (args.op()) {
    case Op::View: view_backward(args); return true;
    case Op::Slice: slice_backward(args); return true;
    case Op::Split: split_backward(args); return true;
    case Op::Pad: copy_in_order(corner(args.gradient_of(), args.gradient(0)), args.gradient(0)); return true;
    case Op::Tril: tril(args); return true;
    case Op::MeanLast: mean_backward(args); return true;
    default: return false;
  }
}

}  // namespace dsplan::exec::host
