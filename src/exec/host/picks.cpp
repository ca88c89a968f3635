// What picks, places, orders and counts elements. Rows are those of a last dimension, or of what an index leaves.
#include <algorithm>
#include <limits>

#include "exec/host/picked_rows.h"

namespace dsplan::exec::host {
namespace {

std::int64_t integer_at(const Strided& tensor, std::int64_t at) {
  std::int64_t value = 0;
  load(tensor, at, 1, &value);
  return value;
}

std::int64_t lines_of(const dsplan_tensor& tensor) {
  return count_of(tensor) / std::max<std::int64_t>(1, last_of(tensor));
}

void clear_all(const dsplan_tensor& tensor) {
  map<std::int64_t, 0>(tensor, {}, [](std::int64_t) { return std::int64_t{0}; });
}

// One row in pieces: `add` to what stands there.
template <class C>
void move_row(const Strided& from, std::int64_t source, const Strided& to, std::int64_t target, std::int64_t columns,
              bool add) {
  std::array<C, kChunk> part;
  std::array<C, kChunk> there;
  for (std::int64_t begin = 0; begin < columns; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, columns - begin);
    load(from, source + begin, n, part.data());
    if (add) {
      load(to, target + begin, n, there.data());
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) part[i] += there[i];
    }
    store(to, target + begin, n, part.data());
  }
}

void in_its_type(const dsplan_tensor& of, auto f) {
  if (!is_floating(dtype_of(of))) return f(std::int64_t{});
  with_arithmetic(dtype_of(of), f);
}

void index_rows(const Args& args) {
  const dsplan_tensor& from = args.in(0);
  const dsplan_tensor& out = args.output();
  const PickedRows rows(args, 1, from, out);
  in_its_type(out, [&]<class C>(C) {
    for (std::int64_t at = 0; at < rows.count; ++at) {
      move_row<C>(strided(from), rows.row(at) * rows.columns, strided(out), at * rows.columns, rows.columns, false);
    }
  });
}

// Into zeros, in the order of the places.
void index_backward(const Args& args) {
  const dsplan_tensor& to = args.gradient(0);
  const PickedRows rows(args, 1, to, args.gradient_of());
  clear_all(to);
  in_its_type(to, [&]<class C>(C) {
    for (std::int64_t at = 0; at < rows.count; ++at) {
      move_row<C>(strided(args.gradient_of()), at * rows.columns, strided(to), rows.row(at) * rows.columns,
                  rows.columns, true);
    }
  });
}

// Along one dimension, by a line of indices, which may count from its end: f(element of `whole`, element of `picked`,
// how many follow each other there).
void each_along(const Args& args, const dsplan_tensor& whole, const dsplan_tensor& picked, auto f) {
  const auto axis = static_cast<std::int32_t>(args.integer(DSPLAN_AXIS));
  const dsplan_tensor& indices = args.backward() ? args.saved_in(1) : args.in(1);
  const std::int64_t extent = whole.dims[axis];
  const std::int64_t count = count_of(indices);
  std::int64_t inner = 1;
  for (std::int32_t d = axis + 1; d < whole.rank; ++d) inner *= whole.dims[d];
  const std::int64_t outer = count_of(whole) / (extent * inner);
  expect_count(picked, outer * count * inner, "what an index picks");
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t index = integer_at(strided(indices), i);
    const std::int64_t place = index < 0 ? index + extent : index;
    expect(place >= 0 && place < extent, "an index lies outside its dimension");
    for (std::int64_t o = 0; o < outer; ++o) f((o * extent + place) * inner, (o * count + i) * inner, inner);
  }
}

void index_along(const Args& args) {
  in_its_type(args.output(), [&]<class C>(C) {
    each_along(args, args.in(0), args.output(), [&](std::int64_t source, std::int64_t target, std::int64_t n) {
      move_row<C>(strided(args.in(0)), source, strided(args.output()), target, n, false);
    });
  });
}

void index_along_backward(const Args& args) {
  const dsplan_tensor& to = args.gradient(0);
  clear_all(to);
  in_its_type(to, [&]<class C>(C) {
    each_along(args, to, args.gradient_of(), [&](std::int64_t target, std::int64_t source, std::int64_t n) {
      move_row<C>(strided(args.gradient_of()), source, strided(to), target, n, true);
    });
  });
}

// f(row's element in `whole`, the place's own element) of indices along the last dimension.
void each_place(const dsplan_tensor& places, const dsplan_tensor& whole, auto f) {
  const std::int64_t columns = last_of(whole);
  const std::int64_t rows = std::max<std::int64_t>(1, lines_of(whole));
  expect(count_of(places) % rows == 0, "indices have other rows than what they pick from");
  const std::int64_t per_row = count_of(places) / rows;
  const Strided at = strided(places);
  for (std::int64_t i = 0; i < count_of(places); ++i) {
    const std::int64_t place = integer_at(at, i);
    expect(place >= 0 && place < columns, "an index lies outside its dimension");
    f(i / per_row * columns + place, i);
  }
}

void gather(const dsplan_tensor& from, const dsplan_tensor& places, const dsplan_tensor& to) {
  in_its_type(to, [&]<class C>(C) {
    each_place(places, from, [&](std::int64_t source, std::int64_t at) {
      move_row<C>(strided(from), source, strided(to), at, 1, false);
    });
  });
}

void put(const dsplan_tensor& from, const dsplan_tensor& places, const dsplan_tensor& to, bool add) {
  in_its_type(to, [&]<class C>(C) {
    each_place(places, to, [&](std::int64_t target, std::int64_t at) {
      move_row<C>(strided(from), at, strided(to), target, 1, add);
    });
  });
}

void put_number(double number, const dsplan_tensor& places, const dsplan_tensor& to) {
  each_place(places, to, [&](std::int64_t target, std::int64_t) { store(strided(to), target, 1, &number); });
}

// In place: a number, or the third input's elements.
void scatter(const Args& args) {
  if (args.has_in(2)) return put(args.in(2), args.in(1), args.in(0), false);
  put_number(args.number(), args.in(1), args.in(0));
}

void scatter_backward(const Args& args) {
  const dsplan_tensor& to = args.latest();
  if (args.slot(args.made_count() - 1) % 256 != 0) return gather(args.gradient_of(), args.saved_in(1), to);
  copy_in_order(args.gradient_of(), to);
  put_number(0, args.saved_in(1), to);
}

// The largest of each row one after another; of equal ones the first. No more is looked for than is asked.
template <class C>
void largest(const Args& args) {
  const dsplan_tensor& from = args.in(0);
  const Strided source = strided(from);
  const std::int64_t columns = last_of(from);
  const std::int64_t rows = lines_of(from);
  const std::int64_t most = count_of(args.output(0)) / std::max<std::int64_t>(1, rows);
  expect_count(args.output(1), rows * most, "the places of the largest");
  for (std::int64_t row = 0; row < rows; ++row) {
    C before = std::numeric_limits<C>::infinity();
    std::int64_t place = -1;
    for (std::int64_t k = 0; k < most; ++k) {
      C best = -std::numeric_limits<C>::infinity();
      std::int64_t at = -1;
      for (std::int64_t c = 0; c < columns; ++c) {
        C x{};
        load(source, row * columns + c, 1, &x);
        const bool behind = x < before || (x == before && c > place);
        if (behind && (at < 0 || x > best)) {
          best = x;
          at = c;
        }
      }
      expect(at >= 0, "a row has no such number of elements that can be ordered");
      store(strided(args.output(0)), row * most + k, 1, &best);
      store(strided(args.output(1)), row * most + k, 1, &at);
      before = best;
      place = at;
    }
  }
}

// Ascending, equal ones in their order; of one line.
void sort(const Args& args) {
  const Strided from = strided(args.in(0));
  const dsplan_tensor& places = args.output(1);
  const std::int64_t count = count_of(args.in(0));
  expect(last_of(args.in(0)) == count && is_contiguous(places), "what is sorted is no line");
  auto* place = static_cast<std::int64_t*>(places.data);
  for (std::int64_t i = 0; i < count; ++i) place[i] = i;
  std::sort(place, place + count, [&](std::int64_t a, std::int64_t b) {
    const std::int64_t x = integer_at(from, a);
    const std::int64_t y = integer_at(from, b);
    return x != y ? x < y : a < b;
  });
  const Strided to = strided(args.output(0));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t value = integer_at(from, place[i]);
    store(to, i, 1, &value);
  }
}

void stack(const Args& args) {
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  for (std::size_t i = 0; i < args.call().input_count; ++i) {
    copy_in_order(args.in(i), selected(args.output(), axis, static_cast<std::int64_t>(i)));
  }
}

// Each element of the last dimension several times in a row.
void repeat_interleave(const Args& args) {
  const Strided from = strided(args.in(0));
  const std::int64_t times = count_of(args.output()) / count_of(args.in(0));
  map<double, 0>(args.output(), {}, [&](std::int64_t at) {
    double x = 0;
    load(from, at / times, 1, &x);
    return x;
  });
}

void histogram(const Args& args) {
  const dsplan_tensor& counts = args.output();
  clear_all(counts);
  const Strided from = strided(args.in(0));
  const Strided to = strided(counts);
  for (std::int64_t i = 0; i < count_of(args.in(0)); ++i) {
    const std::int64_t bin = integer_at(from, i);
    if (bin < 0 || bin >= count_of(counts)) continue;  // What lies outside all bins is not counted.
    const std::int64_t more = integer_at(to, bin) + 1;
    store(to, bin, 1, &more);
  }
}

// out[indices] = values, of one dimension.
void index_put(const Args& args) {
  const Strided values = strided(args.in(1));
  each_place(args.in(0), args.output(), [&](std::int64_t target, std::int64_t at) {
    const std::int64_t value = integer_at(values, at);
    store(strided(args.output()), target, 1, &value);
  });
}

void floor_divide(const Args& args) {
  const auto by = static_cast<std::int64_t>(args.number());
  expect(by > 0, "a division by nothing");
  map<std::int64_t, 1>(args.output(), {&args.in(0)},
                       [=](std::int64_t x) { return x >= 0 ? x / by : -((-x + by - 1) / by); });
}

// Part of the first becomes the second.
void copy_into(const Args& args) {
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  copy_in_order(args.in(1),
                narrowed(args.in(0), axis, static_cast<std::int64_t>(args.number()), args.in(1).dims[axis]));
}

// A copy of the whole, then of the part; zeros, which take the part's place.
void copy_into_backward(const Args& args) {
  const dsplan_tensor* own = args.find(SlotKind::Gradient, 0);
  const dsplan_tensor& whole = own != nullptr ? *own : args.temporary(0);
  if (args.part() == 0) return copy_in_order(args.gradient_of(), whole);
  const dsplan_tensor& now = args.latest();
  const auto axis = static_cast<std::size_t>(args.integer(DSPLAN_AXIS));
  const dsplan_tensor part = narrowed(whole, axis, static_cast<std::int64_t>(args.number()), now.dims[axis]);
  const bool last = args.made_count() == static_cast<std::size_t>(args.integer(DSPLAN_BACKWARD_MADE));
  if (own == nullptr || !last) return copy_in_order(part, now);
  clear_all(now);
  copy_in_order(now, part);
}

bool pick_forward(const Args& args) {
  switch (args.op()) {
    case Op::Index: picks_along(args) ? index_along(args) : index_rows(args); return true;
    case Op::Gather: gather(args.in(0), args.in(1), args.output()); return true;
    case Op::Scatter: scatter(args); return true;
    case Op::TopK:
    case Op::Max: with_arithmetic(dtype_of(args.in(0)), [&]<class C>(C) { largest<C>(args); }); return true;
    case Op::Sort: sort(args); return true;
    case Op::Stack: stack(args); return true;
    case Op::RepeatInterleave: repeat_interleave(args); return true;
    case Op::Histogram: histogram(args); return true;
    case Op::IndexPut: index_put(args); return true;
    case Op::FloorDivScalar: floor_divide(args); return true;
    case Op::CopyInto: copy_into(args); return true;
    default: return false;
  }
}

}  // namespace

bool run_picks(const Args& args) {
  if (!args.backward()) return pick_forward(args);
  switch (args.op()) {
    case Op::Index: picks_along(args) ? index_along_backward(args) : index_backward(args); return true;
    case Op::Gather:
      clear_all(args.gradient(0));
      put(args.gradient_of(), args.saved_in(1), args.gradient(0), true);
      return true;
    case Op::TopK:
    case Op::Max:
      clear_all(args.gradient(0));
      put(args.gradient_of(), args.saved_out(1), args.gradient(0), false);
      return true;
    case Op::Scatter: scatter_backward(args); return true;
    case Op::Expand: sum_to(args.gradient_of(), args.gradient(0)); return true;
    case Op::CopyInto: copy_into_backward(args); return true;
    default: return false;
  }
}

}  // namespace dsplan::exec::host
