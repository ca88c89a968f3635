// What both directions of attention share. For src/cuda/kernels only.
#pragma once

#include <cmath>
#include <limits>

#include "cuda/attention.h"
#include "cuda/element.h"
#include "cuda/grid.h"
#include "exec/bodies/philox.h"

#ifdef __CUDACC__
#define DSPLAN_UNROLL _Pragma("unroll")
#else
#define DSPLAN_UNROLL
#endif

namespace dsplan::cuda {

// One head's row, dealt over the lanes of a team: lane l has columns l, l + kLanes, ... Zero beyond the width.
template <class Team, class C, int kWidth>
struct Row {
  static constexpr int kOwn = kWidth / Team::kLanes;
  C at[static_cast<unsigned>(kOwn)];

  DSPLAN_KERNEL void clear() {
    DSPLAN_UNROLL
    for (int n = 0; n < kOwn; ++n) at[n] = C(0);
  }
  DSPLAN_KERNEL void load(const Team& team, const Heads& from, std::int64_t offset, std::int64_t width) {
    DSPLAN_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      const std::int64_t d = team.lane() + n * Team::kLanes;
      at[n] = d < width ? load_at<C>(from.data, from.dtype, offset + d * from.column) : C(0);
    }
  }
  DSPLAN_KERNEL void store(const Team& team, const Heads& to, std::int64_t offset, std::int64_t width) const {
    DSPLAN_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      const std::int64_t d = team.lane() + n * Team::kLanes;
      if (d < width) store_at(to.data, to.dtype, offset + d * to.column, at[n]);
    }
  }
  // This lane's part of the product.
  [[nodiscard]] DSPLAN_KERNEL C times(const Row& other) const {
    C sum = 0;
    DSPLAN_UNROLL
    for (int n = 0; n < kOwn; ++n) sum += at[n] * other.at[n];
    return sum;
  }
  // The same, for a sum that is taken off what is about as large.
  [[nodiscard]] DSPLAN_KERNEL double times_in_double(const Row& other) const {
    double sum = 0;
    DSPLAN_UNROLL
    for (int n = 0; n < kOwn; ++n) sum += static_cast<double>(at[n]) * static_cast<double>(other.at[n]);
    return sum;
  }
  // at = at * factor + other * weight
  DSPLAN_KERNEL void add(C factor, const Row& other, C weight) {
    DSPLAN_UNROLL
    for (int n = 0; n < kOwn; ++n) at[n] = at[n] * factor + other.at[n] * weight;
  }
};

[[nodiscard]] DSPLAN_KERNEL inline std::int64_t row_of(const Heads& heads, std::int64_t b, std::int64_t h,
                                                       std::int64_t token) {
  return b * heads.batch + h * heads.head + token * heads.token;
}

// The score of query i and key j, from the product of their rows.
template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C score(const Attention& a, std::int64_t head, std::int64_t i, std::int64_t j,
                                           C product) {
  C x = product * static_cast<C>(a.scale);
  if (a.bias.data != nullptr) x += load<C>(a.bias, (head * a.queries + i) * a.bias_columns + j);
  return x;
}

// What dropout makes of a weight: 0, or 1 / (1 - p).
template <class C>
[[nodiscard]] DSPLAN_KERNEL inline C dropped(const Attention& a, std::int64_t head, std::int64_t i, std::int64_t j) {
  if (a.p <= 0) return C(1);
  const std::int64_t element = (head * a.queries + i) * a.keys + j;
  const bool given = a.kept_random == nullptr;
  const std::uint64_t key = given ? a.random.key : static_cast<std::uint64_t>(a.kept_random[0]);
  const std::int64_t first = given ? a.random.first_sample : a.kept_random[1];
  const auto sample = static_cast<std::uint64_t>(first + element / a.of_sample);
  const bool kept = exec::bodies::kept(key, sample, static_cast<std::uint64_t>(element % a.of_sample), a.p);
  return kept ? static_cast<C>(1 / (1 - a.p)) : C(0);
}

// f(C{}, width) with the arithmetic type and the narrowest of few widths.
template <class F>
void with_width(const Attention& a, const F& f) {
  if (a.q.dtype == DType::Float64) return f.template operator()<double, 256>();
  const std::int64_t widest = a.width > a.values ? a.width : a.values;
  if (widest <= 64) return f.template operator()<float, 64>();
  if (widest <= 128) return f.template operator()<float, 128>();
  f.template operator()<float, 256>();
}

}  // namespace dsplan::cuda
