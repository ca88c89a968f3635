// Products of groups of rows, a team for each element, as where groups end is known to the device alone; and products
// of complex numbers.
#include <cmath>

#include "cuda/element.h"
#include "cuda/grid.h"
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

// Rows [R, in] and [R, out], weights [G, in, out] or [G, out, in].
struct GroupShape {
  Strided x;
  Strided weights;
  Strided offsets;
  Strided out;
  std::int64_t rows;
  std::int64_t in;
  std::int64_t features;
  std::int64_t groups;
  bool direct;

  [[nodiscard]] DSPLAN_KERNEL std::int64_t end(std::int64_t group) const {
    return group < 0 ? 0 : load<std::int64_t>(offsets, group);
  }
  [[nodiscard]] DSPLAN_KERNEL std::int64_t group_of(std::int64_t row) const {
    std::int64_t group = 0;
    while (group < groups && row >= end(group)) ++group;
    return group;
  }
  [[nodiscard]] DSPLAN_KERNEL std::int64_t weight(std::int64_t group, std::int64_t from, std::int64_t to) const {
    return group * in * features + (direct ? from * features + to : to * in + from);
  }
};

// Rows times their group's weight, [R, in] into [R, out]; or, of gradients, back.
template <class C, bool kBack>
struct GroupKernelOf {
  GroupShape s;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t made = kBack ? s.in : s.features;
    const std::int64_t summed = kBack ? s.features : s.in;
    const Strided& from = kBack ? s.out : s.x;
    const std::int64_t row = item / made;
    const std::int64_t own = item % made;
    const std::int64_t group = s.group_of(row);
    if (group == s.groups) return;
    C sum = 0;
    for (std::int64_t k = team.lane(); k < summed; k += Team::kLanes) {
      sum += load<C>(from, row * summed + k) *
             load<C>(s.weights, kBack ? s.weight(group, own, k) : s.weight(group, k, own));
    }
    sum = team.sum(sum);
    if (team.lane() == 0) store(kBack ? s.x : s.out, item, sum);
  }
};
template <class C>
using GroupKernel = GroupKernelOf<C, false>;
template <class C>
using GroupRowsKernel = GroupKernelOf<C, true>;

template <class C>
struct GroupWeightsKernel {
  GroupShape s;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t item) const {
    const std::int64_t group = item / (s.in * s.features);
    const std::int64_t from = item / s.features % s.in;
    const std::int64_t to = item % s.features;
    C sum = 0;
    for (std::int64_t row = s.end(group - 1) + team.lane(); row < s.end(group); row += Team::kLanes) {
      sum += load<C>(s.x, row * s.in + from) * load<C>(s.out, row * s.features + to);
    }
    sum = team.sum(sum);
    if (team.lane() == 0) store(s.weights, s.weight(group, from, to), sum);
  }
};

GroupShape shape_of(const Groups& g) {
  expect(g.x.rank == 2 && g.weights.rank == 3 && g.out.rank == 2, "groups of other dimensions");
  const std::int64_t in = g.x.dims[1];
  const std::int64_t features = g.out.dims[1];
  expect(g.weights.dims[g.direct ? 1 : 2] == in && g.weights.dims[g.direct ? 2 : 1] == features,
         "the weights of groups do not fit");
  return {strided(g.x), strided(g.weights), strided(g.offsets),  strided(g.out), g.x.dims[0],
          in,           features,           count_of(g.offsets), g.direct};
}

template <template <class> class Kernel>
void run(const Queue& queue, const Groups& groups, std::int64_t items) {
  const GroupShape shape = shape_of(groups);
  if (dtype_of(groups.x) == DType::Float64) return teams(queue, items, Kernel<double>{shape});
  teams(queue, items, Kernel<float>{shape});
}

template <class C>
struct PairsKernel {
  Strided a;
  Strided b;
  Strided out;

  DSPLAN_KERNEL void operator()(std::int64_t pair) const {
    const C x = load<C>(a, 2 * pair);
    const C y = load<C>(a, 2 * pair + 1);
    const C u = load<C>(b, 2 * pair);
    const C v = load<C>(b, 2 * pair + 1);
    store(out, 2 * pair, x * u - y * v);
    store(out, 2 * pair + 1, x * v + y * u);
  }
};

struct ConjugateKernel {
  Strided from;
  Strided to;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const auto x = load<double>(from, i);
    store(to, i, i % 2 == 0 ? x : -x);
  }
};

struct PolarKernel {
  Strided angles;
  Strided to;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const auto angle = load<double>(angles, i / 2);
    store(to, i, i % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
};

}  // namespace

void multiply_groups(const Queue& queue, const Groups& groups) {
  run<GroupKernel>(queue, groups, count_of(groups.out));
}
void group_weights_gradient(const Queue& queue, const Groups& groups) {
  run<GroupWeightsKernel>(queue, groups, count_of(groups.weights));
}
void group_rows_gradient(const Queue& queue, const Groups& groups) {
  run<GroupRowsKernel>(queue, groups, count_of(groups.x));
}

void multiply_pairs(const Queue& queue, const dsplan_tensor& a, const dsplan_tensor& b, const dsplan_tensor& out) {
  const Strided x = exec::host::broadcast(a, dims_of(out));
  const Strided y = exec::host::broadcast(b, dims_of(out));
  const std::int64_t pairs = count_of(out) / 2;
  if (dtype_of(out) == DType::Float64) return each(queue, pairs, PairsKernel<double>{x, y, strided(out)});
  each(queue, pairs, PairsKernel<float>{x, y, strided(out)});
}

void conjugate_pairs(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  each(queue, count_of(to), ConjugateKernel{strided(from), strided(to)});
}

void polar_pairs(const Queue& queue, const dsplan_tensor& angles, const dsplan_tensor& to) {
  each(queue, count_of(to), PolarKernel{strided(angles), strided(to)});
}

}  // namespace dsplan::cuda
