// Kernels that work row by row: softmax, layer norm, losses.
#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/host/args.h"

namespace dsplan::exec::host {
namespace {

// The rows of the last dimension.
std::int64_t rows_of(const dsplan_tensor& tensor) {
  return count_of(tensor) / std::max<std::int64_t>(1, last_of(tensor));
}

// f(first column, columns, values) for each piece of one row.
template <class C, class F>
void each_piece(const Strided& tensor, std::int64_t row, std::int64_t columns, F f) {
  std::array<C, kChunk> part;
  for (std::int64_t begin = 0; begin < columns; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, columns - begin);
    load(tensor, row * columns + begin, n, part.data());
    f(begin, static_cast<std::size_t>(n), part.data());
  }
}

template <class C>
void softmax_row(const Strided& from, const Strided& to, std::int64_t row, std::int64_t columns, bool log) {
  C largest = -std::numeric_limits<C>::infinity();
  each_piece<C>(from, row, columns, [&](std::int64_t, std::size_t n, const C* x) {
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, x[i]);
  });
  double sum = 0;
  each_piece<C>(from, row, columns, [&](std::int64_t, std::size_t n, const C* x) {
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(std::exp(x[i] - largest));
  });
  const C total = static_cast<C>(sum);
  // Rounded once: the gradient takes the exponential of what is stored here.
  const double shift = static_cast<double>(largest) + std::log(sum);
  each_piece<C>(from, row, columns, [&](std::int64_t begin, std::size_t n, C* x) {
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = log ? static_cast<C>(static_cast<double>(x[i]) - shift) : std::exp(x[i] - largest) / total;
    }
    store(to, row * columns + begin, static_cast<std::int64_t>(n), x);
  });
}

void softmax(const dsplan_tensor& from, const dsplan_tensor& to, bool log) {
  expect_dims(to, dims_of(from), "the result of softmax");
  const Strided source = strided(from);
  const Strided target = strided(to);
  with_arithmetic(dtype_of(to), [&]<class C>(C) {
    for (std::int64_t row = 0; row < rows_of(to); ++row) softmax_row<C>(source, target, row, last_of(to), log);
  });
}

// What PyTorch composes: a plain softmax, where the scores are minus infinity, which rows are that throughout, and
// zeros there.
void safe_softmax(const Args& args) {
  const double lowest = -std::numeric_limits<double>::infinity();
  switch (args.part()) {
    case 0: return softmax(args.in(0), args.output(), false);
    case 1: return map<double, 1>(args.temporary(0), {&args.in(0)}, [=](double x) { return x == lowest ? 1.0 : 0.0; });
    case 2: {
      const Strided flags = strided(args.temporary(0));
      const std::int64_t columns = last_of(args.temporary(0));
      expect_count(args.temporary(1), rows_of(args.temporary(0)), "the flags of rows");
      return map<double, 0>(args.temporary(1), {}, [&](std::int64_t row) {
        bool all = true;
        each_piece<float>(flags, row, columns, [&](std::int64_t, std::size_t n, const float* x) {
          for (std::size_t i = 0; i < n; ++i) all = all && x[i] != 0;
        });
        return all ? 1.0 : 0.0;
      });
    }
    default:
      map<double, 0>(args.temporary(2), {}, [](std::int64_t) { return 0.0; });
      return map<double, 3>(args.output(), {&args.temporary(1), &args.temporary(2), &args.output()},
                            [](double masked, double zero, double x) { return masked != 0 ? zero : x; });
  }
}

void softmax_forward(const Args& args) {
  if (args.flag(DSPLAN_FLAG_SAFE)) return safe_softmax(args);
  const dsplan_tensor* copy = args.find(SlotKind::Temporary, 0);
  if (copy != nullptr && args.part() == 0) return copy_in_order(args.in(0), *copy);
  softmax(copy != nullptr ? *copy : args.in(0), args.output(), args.op() == Op::LogSoftmax);
}

// y (g - sum(g y)), or g - exp(y) sum(g).
template <class C>
void softmax_backward_rows(const dsplan_tensor& grad, const dsplan_tensor& result, const dsplan_tensor& to, bool log) {
  expect_dims(to, dims_of(result), "the gradient of softmax");
  const Strided g = strided(grad);
  const Strided y = strided(result);
  const Strided target = strided(to);
  const std::int64_t columns = last_of(to);
  std::array<C, kChunk> other;
  for (std::int64_t row = 0; row < rows_of(to); ++row) {
    double sum = 0;
    each_piece<C>(g, row, columns, [&](std::int64_t begin, std::size_t n, const C* x) {
      load(y, row * columns + begin, static_cast<std::int64_t>(n), other.data());
      for (std::size_t i = 0; i < n; ++i) {
        sum += log ? static_cast<double>(x[i]) : static_cast<double>(x[i]) * static_cast<double>(other[i]);
      }
    });
    each_piece<C>(g, row, columns, [&](std::int64_t begin, std::size_t n, C* x) {
      load(y, row * columns + begin, static_cast<std::int64_t>(n), other.data());
      for (std::size_t i = 0; i < n; ++i) {
        const auto of = static_cast<double>(x[i]);
        x[i] = static_cast<C>(log ? of - static_cast<double>(std::exp(other[i])) * sum
                                  : static_cast<double>(other[i]) * (of - sum));
      }
      store(target, row * columns + begin, static_cast<std::int64_t>(n), x);
    });
  }
}

void softmax_backward(const Args& args) {
  const dsplan_tensor* wide = widened(args);
  if (wide != nullptr && args.part() == 1) return copy_in_order(*wide, args.gradient(0));
  const dsplan_tensor& to = wide != nullptr ? *wide : args.gradient(0);
  with_arithmetic(dtype_of(args.saved_out(0)), [&]<class C>(C) {
    softmax_backward_rows<C>(args.gradient_of(), args.saved_out(0), to, args.op() == Op::LogSoftmax);
  });
}

template <class C>
void layer_norm(const Args& args) {
  const dsplan_tensor& out = args.output();
  const std::int64_t columns = last_of(out);
  const std::int64_t rows = rows_of(out);
  expect_dims(out, dims_of(args.in(0)), "the output");
  expect_count(args.extra(0), rows, "the means");
  expect_count(args.extra(1), rows, "the deviations");
  const Strided x = strided(args.in(0));
  const Strided weight = args.has_in(1) ? strided(args.in(1)) : Strided{};
  const Strided bias = args.has_in(2) ? strided(args.in(2)) : Strided{};
  const Strided target = strided(out);
  std::array<C, kChunk> factor;
  std::array<C, kChunk> shift;
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    each_piece<C>(x, row, columns, [&](std::int64_t, std::size_t n, const C* v) {
      for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(v[i]);
    });
    const double mean = sum / static_cast<double>(columns);
    double squares = 0;
    each_piece<C>(x, row, columns, [&](std::int64_t, std::size_t n, const C* v) {
      for (std::size_t i = 0; i < n; ++i)
        squares += (static_cast<double>(v[i]) - mean) * (static_cast<double>(v[i]) - mean);
    });
    const C m = static_cast<C>(mean);
    const C scale = static_cast<C>(1 / std::sqrt(squares / static_cast<double>(columns) + args.number()));
    store(strided(args.extra(0)), row, 1, &m);
    store(strided(args.extra(1)), row, 1, &scale);
    factor.fill(C(1));
    shift.fill(C(0));
    each_piece<C>(x, row, columns, [&](std::int64_t begin, std::size_t n, C* v) {
      const auto length = static_cast<std::int64_t>(n);
      if (weight.data != nullptr) load(weight, begin, length, factor.data());
      if (bias.data != nullptr) load(bias, begin, length, shift.data());
      for (std::size_t i = 0; i < n; ++i) v[i] = (v[i] - m) * scale * factor[i] + shift[i];
      store(target, row * columns + begin, length, v);
    });
  }
}

// dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = grad * weight: what is left of differences, so that it is taken
// in double whatever is stored.
void layer_norm_input(const Args& args, const dsplan_tensor& to) {
  const std::int64_t columns = last_of(to);
  const Strided x = strided(args.saved_in(0));
  const Strided g = strided(args.gradient_of());
  const Strided weight = args.keeps_in(1) ? strided(args.saved_in(1)) : Strided{};
  const Strided target = strided(to);
  std::array<double, kChunk> h;
  std::array<double, kChunk> factor;
  factor.fill(1);
  for (std::int64_t row = 0; row < rows_of(to); ++row) {
    double mean = 0;
    double scale = 0;
    load(strided(args.saved_extra(0)), row, 1, &mean);
    load(strided(args.saved_extra(1)), row, 1, &scale);
    const auto gradient_at = [&](std::int64_t begin, std::size_t n) {
      load(g, row * columns + begin, static_cast<std::int64_t>(n), h.data());
      if (weight.data != nullptr) load(weight, begin, static_cast<std::int64_t>(n), factor.data());
      for (std::size_t i = 0; i < n; ++i) h[i] *= factor[i];
    };
    double sum = 0;
    double product = 0;
    each_piece<double>(x, row, columns, [&](std::int64_t begin, std::size_t n, const double* v) {
      gradient_at(begin, n);
      for (std::size_t i = 0; i < n; ++i) {
        sum += h[i];
        product += h[i] * (v[i] - mean) * scale;
      }
    });
    const double average = sum / static_cast<double>(columns);
    const double slope = product / static_cast<double>(columns);
    each_piece<double>(x, row, columns, [&](std::int64_t begin, std::size_t n, double* v) {
      gradient_at(begin, n);
      for (std::size_t i = 0; i < n; ++i) v[i] = scale * (h[i] - average - (v[i] - mean) * scale * slope);
      store(target, row * columns + begin, static_cast<std::int64_t>(n), v);
    });
  }
}

// Sums over rows of grad * xhat (the weight's) or of grad (the bias's).
void layer_norm_columns(const Args& args, const dsplan_tensor& to, bool weighted) {
  const std::int64_t columns = last_of(args.saved_in(0));
  const std::int64_t rows = rows_of(args.saved_in(0));
  expect_count(to, columns, "the gradient of a norm's weight");
  const Strided x = strided(args.saved_in(0));
  const Strided g = strided(args.gradient_of());
  const Strided means = strided(args.saved_extra(0));
  const Strided scales = strided(args.saved_extra(1));
  std::array<double, kChunk> grad;
  std::array<double, kChunk> value;
  std::array<double, kChunk> sums;
  for (std::int64_t begin = 0; begin < columns; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, columns - begin);
    sums.fill(0);
    for (std::int64_t row = 0; row < rows; ++row) {
      double mean = 0;
      double scale = 0;
      load(means, row, 1, &mean);
      load(scales, row, 1, &scale);
      load(g, row * columns + begin, n, grad.data());
      if (weighted) load(x, row * columns + begin, n, value.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        sums[i] += weighted ? grad[i] * (value[i] - mean) * scale : grad[i];
      }
    }
    store(strided(to), begin, n, sums.data());
  }
}

void layer_norm_backward(const Args& args) {
  if (const dsplan_tensor* to = args.find(SlotKind::Gradient, 0)) {
    expect_dims(*to, dims_of(args.saved_in(0)), "the gradient of a norm");
    layer_norm_input(args, *to);
  }
  if (const dsplan_tensor* to = args.find(SlotKind::Gradient, 1)) layer_norm_columns(args, *to, true);
  if (const dsplan_tensor* to = args.find(SlotKind::Gradient, 2)) layer_norm_columns(args, *to, false);
}

constexpr std::int64_t kIgnored = -100;

std::int64_t label_at(const Strided& labels, std::int64_t row, std::int64_t classes) {
  std::int64_t label = 0;
  load(labels, row, 1, &label);
  expect(label == kIgnored || (label >= 0 && label < classes), "a label lies outside the classes");
  return label;
}

void nll_loss(const Args& args) {
  const Strided x = strided(args.in(0));
  const Strided labels = strided(args.in(1));
  const std::int64_t classes = last_of(args.in(0));
  const std::int64_t rows = rows_of(args.in(0));
  expect_count(args.in(1), rows, "the labels");
  expect_count(args.output(), 1, "the loss");
  double sum = 0;
  double counted = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t label = label_at(labels, row, classes);
    if (label == kIgnored) continue;
    double value = 0;
    load(x, row * classes + label, 1, &value);
    sum -= value;
    counted += 1;
  }
  if (static_cast<dsplan::Reduction>(args.integer(DSPLAN_REDUCTION)) == dsplan::Reduction::Mean) sum /= counted;
  store(strided(args.output()), 0, 1, &sum);
  store(strided(args.extra(0)), 0, 1, &counted);
}

void nll_loss_backward(const Args& args) {
  const dsplan_tensor& to = args.gradient(0);
  expect_dims(to, dims_of(args.saved_in(0)), "the gradient of the loss");
  map<double, 0>(to, {}, [](std::int64_t) { return 0.0; });
  const Strided target = strided(to);
  const Strided labels = strided(args.saved_in(1));
  const std::int64_t classes = last_of(to);
  double each = 0;
  double counted = 0;
  load(strided(args.gradient_of()), 0, 1, &each);
  load(strided(args.saved_extra(0)), 0, 1, &counted);
  if (static_cast<dsplan::Reduction>(args.integer(DSPLAN_REDUCTION)) == dsplan::Reduction::Mean) each /= counted;
  const double slope = -each;
  for (std::int64_t row = 0; row < rows_of(to); ++row) {
    const std::int64_t label = label_at(labels, row, classes);
    if (label != kIgnored) store(target, row * classes + label, 1, &slope);
  }
}

bool backward(const Args& args) {
  switch (args.op()) {
    case Op::Softmax:
    case Op::LogSoftmax: softmax_backward(args); return true;
    case Op::LayerNorm: layer_norm_backward(args); return true;
    case Op::NllLoss: nll_loss_backward(args); return true;
    default: return false;
  }
}

}  // namespace

bool run_rows(const Args& args) {
  if (args.backward()) return backward(args);
  switch (args.op()) {
    case Op::Softmax:
    case Op::LogSoftmax: softmax_forward(args); return true;
    case Op::LayerNorm: with_arithmetic(dtype_of(args.in(0)), [&]<class C>(C) { layer_norm<C>(args); }); return true;
    case Op::NllLoss: nll_loss(args); return true;
    default: return false;
  }
}

}  // namespace dsplan::exec::host
