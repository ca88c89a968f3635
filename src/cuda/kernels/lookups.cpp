// Rows looked up in a table, and the table's gradient: sums in the order of the places, whatever their number.
#include <limits>

#include "cuda/element.h"
#include "cuda/grid.h"
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

// A column at a time: of a table of any float.
struct LookupKernel {
  Strided table;
  Strided ids;
  Strided out;
  std::int64_t rows;
  std::int64_t columns;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const auto id = load<std::int64_t>(ids, i / columns);
    const bool known = id >= 0 && id < rows;
    store(out, i, known ? load<double>(table, id * columns + i % columns) : std::numeric_limits<double>::quiet_NaN());
  }
};

// Where each index belongs, by counting those that come before it: n comparisons for each of n, none of which waits for
// another.
struct RankKernel {
  Strided ids;
  Strided sorted;
  Strided origins;
  std::int64_t count;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t at) const {
    const auto own = load<std::int64_t>(ids, at);
    std::int64_t before = 0;
    for (std::int64_t other = team.lane(); other < count; other += Team::kLanes) {
      const auto id = load<std::int64_t>(ids, other);
      before += id < own || (id == own && other < at) ? 1 : 0;
    }
    before = team.sum(before);
    if (team.lane() != 0) return;
    store(sorted, before, own);
    store(origins, before, at);
  }
};

// Of sorted indices: where one begins, its whole stretch is summed.
struct SortedSumKernel {
  Strided gradient;
  Strided sorted;
  Strided origins;
  Strided to;
  std::int64_t count;
  std::int64_t rows;
  std::int64_t columns;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t at) const {
    const auto id = load<std::int64_t>(sorted, at);
    if (id < 0 || id >= rows) return;
    if (at > 0 && load<std::int64_t>(sorted, at - 1) == id) return;
    for (std::int64_t c = team.lane(); c < columns; c += Team::kLanes) {
      double sum = 0;
      for (std::int64_t k = at; k < count && load<std::int64_t>(sorted, k) == id; ++k) {
        sum += load<double>(gradient, load<std::int64_t>(origins, k) * columns + c);
      }
      store(to, id * columns + c, sum);
    }
  }
};

// Few indices: each is looked for among all that follow its first appearance.
struct FewSumKernel {
  Strided gradient;
  Strided ids;
  Strided to;
  std::int64_t count;
  std::int64_t rows;
  std::int64_t columns;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t at) const {
    const auto id = load<std::int64_t>(ids, at);
    if (id < 0 || id >= rows) return;
    bool first = true;
    for (std::int64_t before = team.lane(); before < at; before += Team::kLanes) {
      first = first && load<std::int64_t>(ids, before) != id;
    }
    if (!team.all(first)) return;
    for (std::int64_t c = team.lane(); c < columns; c += Team::kLanes) {
      double sum = 0;
      for (std::int64_t place = at; place < count; ++place) {
        if (load<std::int64_t>(ids, place) == id) sum += load<double>(gradient, place * columns + c);
      }
      store(to, id * columns + c, sum);
    }
  }
};

}  // namespace

void embedding(const Queue& queue, const dsplan_tensor& table, const dsplan_tensor& ids, const dsplan_tensor& out) {
  const std::int64_t columns = last_of(table);
  expect_count(out, count_of(ids) * columns, "the rows");
  each(queue, count_of(out), LookupKernel{strided(table), strided(ids), strided(out), table.dims[0], columns});
}

void sort_indices(const Queue& queue, const dsplan_tensor& ids, const dsplan_tensor& sorted,
                  const dsplan_tensor& origins) {
  const std::int64_t count = count_of(ids);
  expect_count(sorted, count, "the sorted indices");
  expect_count(origins, count, "the places of indices");
  teams(queue, count, RankKernel{strided(ids), strided(sorted), strided(origins), count});
}

void embedding_backward(const Queue& queue, const dsplan_tensor& gradient, const dsplan_tensor& ids,
                        const dsplan_tensor* sorted, const dsplan_tensor* origins, const dsplan_tensor& to) {
  const std::int64_t columns = last_of(to);
  const std::int64_t count = count_of(ids);
  expect_count(gradient, count * columns, "the gradient of rows");
  fill(queue, to, 0);
  if (sorted == nullptr) {
    teams(queue, count, FewSumKernel{strided(gradient), strided(ids), strided(to), count, to.dims[0], columns});
    return;
  }
  teams(
      queue, count,
      SortedSumKernel{strided(gradient), strided(*sorted), strided(*origins), strided(to), count, to.dims[0], columns});
}

}  // namespace dsplan::cuda
