// Kernels on ranges: sums of squares, scans, initial values, optimizer steps, and pieces of several ranks.
#include <cmath>

#include "cuda/element.h"
#include "cuda/grid.h"
#include "cuda/kernels.h"
#include "exec/bodies/optimizer.h"
#include "exec/bodies/philox.h"

namespace dsplan::cuda {
namespace {

// In two steps, each in a fixed order: partial sums of equal stretches, then their sum. How a range is cut depends on
// its length alone.
struct SquaresKernel {
  Strided from;
  std::int64_t count;
  std::int64_t length;
  double* partial;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t at) const {
    const std::int64_t end = (at + 1) * length < count ? (at + 1) * length : count;
    double sum = 0;
    for (std::int64_t i = at * length + team.lane(); i < end; i += Team::kLanes) {
      const auto x = load<double>(from, i);
      sum += x * x;
    }
    sum = team.sum(sum);
    if (team.lane() == 0) partial[at] = sum;
  }
};

struct SumPartsKernel {
  const double* partial;
  std::int64_t parts;
  Strided to;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t) const {
    double sum = 0;
    for (std::int64_t i = team.lane(); i < parts; i += Team::kLanes) sum += partial[i];
    sum = team.sum(sum);
    if (team.lane() == 0) store(to, 0, load<double>(to, 0) + sum);
  }
};

// Whoever finds something writes the same.
struct ScanKernel {
  Strided from;
  Strided verdict;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    if (!std::isfinite(load<double>(from, i))) store(verdict, 0, std::int64_t{1});
  }
};

struct NormalKernel {
  Strided to;
  double deviation;
  std::uint64_t key;
  std::int64_t first;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    store(to, i, deviation * exec::bodies::normal(key, 0, static_cast<std::uint64_t>(first + i)));
  }
};

template <class C>
struct AdamKernel {
  Strided weight;
  Strided first;
  Strided second;
  Strided gradient;
  exec::bodies::AdamNumbers numbers;
  C correction1;
  C correction2;
  C factor;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    C w = load<C>(weight, i);
    C m = load<C>(first, i);
    C v = load<C>(second, i);
    exec::bodies::adam(w, m, v, load<C>(gradient, i) * factor, numbers, correction1, correction2);
    store(weight, i, w);
    store(first, i, m);
    store(second, i, v);
  }
};

template <class C>
struct SgdKernel {
  Strided weight;
  Strided momentum;  // data == nullptr: there is none.
  Strided gradient;
  C rate;
  C remembered;
  C decay;
  C factor;
  bool first_step;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    C w = load<C>(weight, i);
    const bool remembers = momentum.data != nullptr;
    C m = remembers ? load<C>(momentum, i) : C(0);
    exec::bodies::sgd(w, remembers ? &m : nullptr, load<C>(gradient, i) * factor, rate, remembered, decay, first_step);
    store(weight, i, w);
    if (remembers) store(momentum, i, m);
  }
};

template <class C>
void update_as(const Queue& queue, const dsplan_launch& call) {
  const std::int64_t kind = call.integers[0];
  const auto step = static_cast<double>(call.integers[1]);
  const double* number = call.numbers;
  const Strided weight = strided(call.made[0]);
  const Strided gradient = strided(call.inputs[0]);
  const std::int64_t count = count_of(call.made[0]);
  const C factor = static_cast<C>(number[6]);
  if (kind == 2) {
    const bool remembers = call.made_count > 1 && call.made[1].data != nullptr;
    each(queue, count,
         SgdKernel<C>{weight, remembers ? strided(call.made[1]) : Strided{}, gradient, static_cast<C>(number[0]),
                      static_cast<C>(number[5]), static_cast<C>(number[4]), factor, step == 1});
    return;
  }
  const exec::bodies::AdamNumbers numbers{number[0], number[1], number[2], number[3], number[4], step, kind == 1};
  const C correction1 = static_cast<C>(1 - std::pow(numbers.beta1, step));
  const C correction2 = static_cast<C>(1 - std::pow(numbers.beta2, step));
  each(queue, count,
       AdamKernel<C>{weight, strided(call.made[1]), strided(call.made[2]), gradient, numbers, correction1, correction2,
                     factor});
}

// Elements of the ranks' pieces, added up in their order: 16-bit floats in fp32, the others in fp64, integers as such.
struct Pieces {
  const unsigned char* at[kMostPieces];
};

template <class Sum>
struct CombineKernel {
  Pieces pieces;
  std::uint32_t count;
  unsigned char* target;
  DType dtype;
  bool largest;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    Sum total = load_at<Sum>(pieces.at[0], dtype, i);
    for (std::uint32_t k = 1; k < count; ++k) {
      const Sum next = load_at<Sum>(pieces.at[k], dtype, i);
      if (!largest && std::is_integral_v<Sum>) {  // Wraps around.
        total = static_cast<Sum>(static_cast<std::uint64_t>(total) + static_cast<std::uint64_t>(next));
      } else if (!largest) {
        total += next;
      } else if (!(total != total) && (next > total || next != next)) {
        total = next;
      }
    }
    store_at<Sum>(target, dtype, i, total);
  }
};

}  // namespace

void square_sum(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  expect(dtype_of(to) == DType::Float64 && count_of(to) == 1, "a sum of squares is one fp64");
  const std::int64_t count = count_of(from);
  const std::int64_t length = (count + kScratch - 1) / kScratch;
  if (count == 0) return;
  const std::int64_t parts = (count + length - 1) / length;
  teams(queue, parts, SquaresKernel{strided(from), count, length, queue.scratch});
  teams(queue, 1, SumPartsKernel{queue.scratch, parts, strided(to)});
}

void overflow_scan(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& verdict) {
  expect(dtype_of(verdict) == DType::Int64 && count_of(verdict) == 1, "a verdict is one int64");
  each(queue, count_of(from), ScanKernel{strided(from), strided(verdict)});
}

void normal_values(const Queue& queue, const dsplan_tensor& to, double deviation, const dsplan_random& random) {
  each(queue, count_of(to), NormalKernel{strided(to), deviation, random.key, random.first_sample});
}

void update(const Queue& queue, const dsplan_launch& call) {
  expect(call.integer_count >= 2 && call.number_count >= 7 && call.input_count > 0 && call.made_count > 0,
         "an update misses its numbers");
  const std::int64_t kind = call.integers[0];
  const auto has_state = [&](std::uint32_t k) { return k < call.made_count && call.made[k].data != nullptr; };
  expect(kind >= 0 && kind <= 2, "no such optimizer");
  expect(kind == 2 || (has_state(1) && has_state(2)), "Adam misses a moment");
  expect_count(call.inputs[0], count_of(call.made[0]), "the gradient of an update");
  for (std::uint32_t k = 1; k < call.made_count && has_state(k); ++k) {
    expect_count(call.made[k], count_of(call.made[0]), "a state of the optimizer");
  }
  dtype_of(call.made[0]) == DType::Float64 ? update_as<double>(queue, call) : update_as<float>(queue, call);
}

bool combine(const Queue& queue, dsplan_reduction how, DType dtype, void* target, const void* const* pieces,
             std::uint32_t piece_count, std::int64_t elements) {
  if ((how != DSPLAN_SUM && how != DSPLAN_MAX) || piece_count == 0 || piece_count > kMostPieces) return false;
  Pieces seen{};
  for (std::uint32_t k = 0; k < piece_count; ++k) seen.at[k] = static_cast<const unsigned char*>(pieces[k]);
  auto* to = static_cast<unsigned char*>(target);
  const bool largest = how == DSPLAN_MAX || dtype == DType::Bool;  // A sum of booleans is true where one is.
  if (dtype == DType::BFloat16 || dtype == DType::Float16) {
    each(queue, elements, CombineKernel<float>{seen, piece_count, to, dtype, largest});
  } else if (is_floating(dtype)) {
    each(queue, elements, CombineKernel<double>{seen, piece_count, to, dtype, largest});
  } else {
    each(queue, elements, CombineKernel<std::int64_t>{seen, piece_count, to, dtype, largest});
  }
  return true;
}

}  // namespace dsplan::cuda
