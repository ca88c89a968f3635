// What picks, places, orders and counts elements: sums in the order of the places, whatever their number.
#include <limits>

#include "cuda/element.h"
#include "cuda/grid.h"
#include "cuda/kernels.h"

namespace dsplan::cuda {
namespace {

using exec::host::PickedRows;

// The row that a place picks; -1 where an index lies outside its dimension.
[[nodiscard]] DSPLAN_KERNEL inline std::int64_t row_of(const PickedRows& rows, std::int64_t at) {
  std::int64_t row = 0;
  for (std::size_t i = 0; i < rows.indexed; ++i) {
    const auto index = load<std::int64_t>(rows.indices[i], at);
    if (index < 0 || index >= rows.dims[i]) return -1;
    row = row * rows.dims[i] + index;
  }
  return row;
}

struct IndexKernel {
  Strided from;
  Strided out;
  PickedRows rows;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const std::int64_t row = row_of(rows, i / rows.columns);
    store(
        out, i,
        row < 0 ? std::numeric_limits<double>::quiet_NaN() : load<double>(from, row * rows.columns + i % rows.columns));
  }
};

// The first place of each row sums what comes to all of its places.
struct IndexSumKernel {
  Strided gradient;
  Strided to;
  PickedRows rows;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t at) const {
    const std::int64_t row = row_of(rows, at);
    if (row < 0) return;
    bool first = true;
    for (std::int64_t before = team.lane(); before < at; before += Team::kLanes) {
      first = first && row_of(rows, before) != row;
    }
    if (!team.all(first)) return;
    for (std::int64_t c = team.lane(); c < rows.columns; c += Team::kLanes) {
      double sum = 0;
      for (std::int64_t place = at; place < rows.count; ++place) {
        if (row_of(rows, place) == row) sum += load<double>(gradient, place * rows.columns + c);
      }
      store(to, row * rows.columns + c, sum);
    }
  }
};

// Along one dimension, by a line of indices, which may count from its end.
struct Along {
  Strided indices;
  std::int64_t count;
  std::int64_t extent;
  std::int64_t inner;  // Elements that follow each other there.

  [[nodiscard]] DSPLAN_KERNEL std::int64_t place(std::int64_t i) const {
    const auto index = load<std::int64_t>(indices, i);
    return index < 0 ? index + extent : index;
  }
};

struct AlongKernel {
  Strided from;
  Strided out;
  Along along;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const std::int64_t row = i / along.inner;
    const std::int64_t place = along.place(row % along.count);
    const bool known = place >= 0 && place < along.extent;
    const std::int64_t source = (row / along.count * along.extent + place) * along.inner + i % along.inner;
    store(out, i, known ? load<double>(from, source) : std::numeric_limits<double>::quiet_NaN());
  }
};

struct AlongSumKernel {
  Strided gradient;
  Strided to;
  Along along;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const std::int64_t row = i / along.inner;
    double sum = 0;
    for (std::int64_t k = 0; k < along.count; ++k) {
      if (along.place(k) != row % along.extent) continue;
      sum += load<double>(gradient, (row / along.extent * along.count + k) * along.inner + i % along.inner);
    }
    store(to, i, sum);
  }
};

Along along_of(const Args& args, const dsplan_tensor& whole) {
  const auto axis = static_cast<std::int32_t>(args.integer(DSPLAN_AXIS));
  const dsplan_tensor& indices = args.backward() ? args.saved_in(1) : args.in(1);
  std::int64_t inner = 1;
  for (std::int32_t d = axis + 1; d < whole.rank; ++d) inner *= whole.dims[d];
  return {strided(indices), count_of(indices), whole.dims[axis], inner};
}

// Elements by their places in the last dimension of `whole`, `per_row` of `columns`.
struct Places {
  Strided places;
  std::int64_t per_row;
  std::int64_t columns;

  [[nodiscard]] DSPLAN_KERNEL std::int64_t operator()(std::int64_t i) const {
    const auto place = load<std::int64_t>(places, i);
    return place < 0 || place >= columns ? -1 : i / per_row * columns + place;
  }
};

Places places_in(const dsplan_tensor& places, const dsplan_tensor& whole) {
  const std::int64_t columns = last_of(whole) > 0 ? last_of(whole) : 1;
  const std::int64_t rows = count_of(whole) > 0 ? count_of(whole) / columns : 1;
  expect(count_of(places) % rows == 0, "indices have other rows than what they pick from");
  const std::int64_t per_row = count_of(places) / rows;
  return {strided(places), per_row, columns};
}

struct GatherKernel {
  Strided whole;
  Places places;
  Strided to;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const std::int64_t at = places(i);
    store(to, i, at < 0 ? std::numeric_limits<double>::quiet_NaN() : load<double>(whole, at));
  }
};

// A row's places one after another: what comes to the same place adds up in a fixed order, or the last stays.
template <class C>
struct PutKernel {
  Strided from;
  Places places;
  Strided whole;
  bool add;
  bool fills;
  C number;

  DSPLAN_KERNEL void operator()(std::int64_t row) const {
    for (std::int64_t i = row * places.per_row; i < (row + 1) * places.per_row; ++i) {
      const std::int64_t at = places(i);
      if (at < 0) continue;
      const C x = fills ? number : load<C>(from, i);
      store(whole, at, add ? load<C>(whole, at) + x : x);
    }
  }
};

// Of one line, whose places differ: each for itself.
struct PutLineKernel {
  Strided from;
  Places places;
  Strided whole;

  DSPLAN_KERNEL void operator()(std::int64_t i) const {
    const std::int64_t at = places(i);
    if (at >= 0) store(whole, at, load<std::int64_t>(from, i));
  }
};

// The largest of a row one after another; of equal ones the first.
struct LargestKernel {
  Strided from;
  Strided values;
  Strided places;
  std::int64_t columns;
  std::int64_t most;

  DSPLAN_KERNEL void operator()(std::int64_t row) const {
    double before = std::numeric_limits<double>::infinity();
    std::int64_t place = -1;
    for (std::int64_t k = 0; k < most; ++k) {
      double best = -std::numeric_limits<double>::infinity();
      std::int64_t at = -1;
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto x = load<double>(from, row * columns + c);
        const bool behind = x < before || (x == before && c > place);
        if (behind && (at < 0 || x > best)) {
          best = x;
          at = c;
        }
      }
      store(values, row * most + k, best);
      store(places, row * most + k, at);
      before = best;
      place = at;
    }
  }
};

struct HistogramKernel {
  Strided from;
  Strided counts;
  std::int64_t count;

  template <class Team>
  DSPLAN_KERNEL void operator()(const Team& team, std::int64_t bin) const {
    std::int64_t sum = 0;
    for (std::int64_t i = team.lane(); i < count; i += Team::kLanes) {
      sum += load<std::int64_t>(from, i) == bin ? 1 : 0;
    }
    sum = team.sum(sum);
    if (team.lane() == 0) store(counts, bin, sum);
  }
};

struct RepeatKernel {
  Strided from;
  Strided to;
  std::int64_t times;

  DSPLAN_KERNEL void operator()(std::int64_t i) const { store(to, i, load<double>(from, i / times)); }
};

template <class C>
void put_as(const Queue& queue, const dsplan_tensor* from, const Places& places, const dsplan_tensor& whole, bool add,
            double number) {
  const Strided source = from != nullptr ? strided(*from) : Strided{};
  each(queue, count_of(whole) / places.columns,
       PutKernel<C>{source, places, strided(whole), add, from == nullptr, static_cast<C>(number)});
}

}  // namespace

void index_rows(const Queue& queue, const dsplan_tensor& from, const PickedRows& rows, const dsplan_tensor& out) {
  each(queue, count_of(out), IndexKernel{strided(from), strided(out), rows});
}

void index_backward(const Queue& queue, const dsplan_tensor& gradient, const PickedRows& rows,
                    const dsplan_tensor& to) {
  fill(queue, to, 0);
  teams(queue, rows.count, IndexSumKernel{strided(gradient), strided(to), rows});
}

void index_along(const Queue& queue, const Args& args) {
  if (args.backward()) {
    const dsplan_tensor& to = args.gradient(0);
    return each(queue, count_of(to), AlongSumKernel{strided(args.gradient_of()), strided(to), along_of(args, to)});
  }
  const dsplan_tensor& out = args.output();
  each(queue, count_of(out), AlongKernel{strided(args.in(0)), strided(out), along_of(args, args.in(0))});
}

void gather(const Queue& queue, const dsplan_tensor& whole, const dsplan_tensor& places, const dsplan_tensor& to) {
  expect_count(to, count_of(places), "what indices pick");
  each(queue, count_of(places), GatherKernel{strided(whole), places_in(places, whole), strided(to)});
}

void put(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& places, const dsplan_tensor& whole,
         bool add) {
  expect_count(from, count_of(places), "what is put at indices");
  const Places at = places_in(places, whole);
  if (!is_floating(dtype_of(whole))) {
    expect(!add, "integers that add up");
    return each(queue, count_of(places), PutLineKernel{strided(from), at, strided(whole)});
  }
  if (dtype_of(whole) == DType::Float64) return put_as<double>(queue, &from, at, whole, add, 0);
  put_as<float>(queue, &from, at, whole, add, 0);
}

void put_number(const Queue& queue, double number, const dsplan_tensor& places, const dsplan_tensor& whole) {
  const Places at = places_in(places, whole);
  if (dtype_of(whole) == DType::Float64) return put_as<double>(queue, nullptr, at, whole, false, number);
  put_as<float>(queue, nullptr, at, whole, false, number);
}

void largest(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& values, const dsplan_tensor& places) {
  const std::int64_t columns = last_of(from);
  const std::int64_t rows = count_of(from) / (columns > 0 ? columns : 1);
  const std::int64_t most = count_of(values) / (rows > 0 ? rows : 1);
  expect_count(places, rows * most, "the places of the largest");
  expect(most <= columns, "more elements are asked for than there are");
  each(queue, rows, LargestKernel{strided(from), strided(values), strided(places), columns, most});
}

void histogram(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& counts) {
  teams(queue, count_of(counts), HistogramKernel{strided(from), strided(counts), count_of(from)});
}

void repeat_interleave(const Queue& queue, const dsplan_tensor& from, const dsplan_tensor& to) {
  each(queue, count_of(to), RepeatKernel{strided(from), strided(to), count_of(to) / count_of(from)});
}

}  // namespace dsplan::cuda
